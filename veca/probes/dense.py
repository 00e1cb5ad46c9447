"""Linear heads on [patch ; CLS], trained side by side on cached windows, and what segment and depth share.

Each head is trained as it would be alone: AdamW, batches of 8 windows, a polynomial of power 0.9 from the
rate to zero (method, section 6). Features are standardised per channel as in heads.py, and heads start at
zero. Patches stay on the disk and are read batch by batch.

Shapes: B windows, N patches, D width, G heads, C outputs of a head.
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from veca.probes.features import LABELS_PER_PATCH, Cached, ViewRecord, Windows
from veca.probes.heads import SEED, Moments, split_holdout
from veca.probes.sweep import FittedProbe, Score, Sweep
from veca.utils.progress import progress_bar

RATES = (1e-3, 3e-3, 1e-2, 3e-2, 0.1)  # the highest for small data, where steps are few
BATCH = 8
POWER = 0.9
WEIGHT_DECAY = 1e-4
MOMENT_WINDOWS = 256  # enough patches to know the moments of a channel

Places = NDArray[np.int64]
Loss = Callable[[Tensor, Tensor], Tensor]  # maps (G, B, C, rows, columns), targets (B, …) → one loss a head


class DenseHeads(nn.Module):
    """G linear maps from a patch and its image's CLS to C outputs."""

    mean: Tensor
    std: Tensor

    def __init__(self, moments: Moments, *, num_outputs: int, num_heads: int) -> None:
        super().__init__()
        self.num_outputs = num_outputs
        self.register_buffer("mean", moments.mean)
        self.register_buffer("std", moments.std)
        width = len(moments.mean)  # of [patch ; CLS]
        # One parameter a head: each has the learning rate of its own group.
        self.weights = nn.ParameterList(torch.zeros(width, num_outputs) for _ in range(num_heads))
        self.biases = nn.ParameterList(torch.zeros(num_outputs) for _ in range(num_heads))

    def forward(self, patches: Tensor, cls: Tensor, grid: tuple[int, int]) -> Tensor:
        """Maps (G, B, C, rows, columns) of patches (B, N, D) and CLS (B, D)."""
        half = patches.shape[-1]
        weight = torch.cat(list(self.weights), dim=1)  # (2D, G·C)
        patches = (patches - self.mean[:half]) / self.std[:half]
        cls = (cls - self.mean[half:]) / self.std[half:]
        # CLS is the same for all patches of a window: its product is made once and added.
        shared = torch.addmm(torch.cat(list(self.biases)), cls, weight[half:])
        maps = patches @ weight[:half] + shared[:, None]  # (B, N, G·C)
        by_head: Tensor = maps.unflatten(2, (-1, self.num_outputs)).unflatten(1, grid)
        return by_head.permute(3, 0, 4, 1, 2)


@dataclass(frozen=True)
class DenseProbe(FittedProbe):
    """A probe with a linear head on patches and CLS."""

    whole: bool
    truth: ClassVar[type[np.generic]]  # of a pixel
    rates = RATES
    optimizer = f"AdamW, weight decay {WEIGHT_DECAY:g}, polynomial {POWER}, batch {BATCH}"

    @property
    def num_outputs(self) -> int:
        """Channels of a head's map."""
        return self.num_classes

    @abstractmethod
    def loss(self, maps: Tensor, targets: Tensor) -> Tensor:
        """The loss of each head, (G,)."""

    @abstractmethod
    def choice_scores(self, heads: DenseHeads, features: Cached, views: Places) -> list[float]:
        """How good each head is on labelled windows; higher is better."""

    def finish(self, maps: Tensor) -> Tensor:
        """What is upsampled of the maps of one head (B, C, rows, columns)."""
        return maps

    @abstractmethod
    def answer(self, found: Tensor, *, size: tuple[int, int]) -> Tensor:
        """The answer for each pixel of an image of that size, by its finished map (K, rows, columns)."""

    @abstractmethod
    def judge(self, pairs: Iterable[tuple[Tensor, Tensor]]) -> dict[str, float]:
        """The quantities over (answer, truth) of each image."""

    @property
    @abstractmethod
    def usual(self) -> float:
        """The answer that ignores the image."""

    def constant(self) -> dict[str, float]:
        truths, usual = map(self._truth, range(len(self.judged.items))), self.usual
        return self.judge((torch.full_like(truth, usual), truth) for truth in truths)

    @property
    def settings(self) -> dict[str, Any]:
        inference = "whole image" if self.whole else "sliding windows"
        return {**super().settings, "inference": inference, "labels per patch": LABELS_PER_PATCH**2}

    def viewer(self, split: str, *, resolution: int, patch_size: int) -> Windows:
        judged = split == self.sweep.judged
        return Windows(resolution, patch_size, whole=judged and self.whole, labelled=not judged)

    def score(self, features: dict[str, Cached]) -> Score:
        """Windows of validation images choose the rate; the chosen head is fitted again on all windows."""
        if (name := self.sweep.chooses) is not None:
            learnt = Cached(*features["train"].stores, *features[name].stores)
            fitted, held = np.split(np.arange(len(learnt)), [len(features["train"])])
        else:
            learnt = features["train"]
            kept = split_holdout(len(self.splits["train"].items))
            fitted, held = learnt.views_of(~kept), learnt.views_of(kept)
        candidates = self._heads(learnt, fitted, RATES)
        with torch.no_grad():
            rate, chosen = self.choose_rate(self.choice_scores(candidates, learnt, held))
        heads = self._heads(learnt, np.arange(len(learnt)), (rate,))
        return self.judge(self._answers(heads, features[self.sweep.judged])), chosen

    def _answers(self, heads: DenseHeads, features: Cached) -> Iterator[tuple[Tensor, Tensor]]:
        for item, found in image_maps(heads, features, self.finish):
            truth = self._truth(item)
            yield self.answer(found, size=(truth.shape[0], truth.shape[1])).cpu(), truth

    def _truth(self, item: int) -> Tensor:
        return torch.from_numpy(np.asarray(self.judged.items[item].target).astype(self.truth))

    def _heads(self, features: Cached, views: Places, rates: tuple[float, ...]) -> DenseHeads:
        return fit_dense(
            features,
            views,
            num_outputs=self.num_outputs,
            loss=self.loss,
            epochs=self.epochs,
            rates=rates,
            device=self.sweep.fabric.device,
        )


def run_dense(
    model: str,
    data: str,
    *,
    kind: type[DenseProbe],
    task: Literal["segment", "depth"],
    inference: Literal["slide", "whole"] = "slide",
    epochs: int = 20,
    seeds: int = 1,
    **sweep: Any,
) -> None:
    """Run a dense probe, which has the name of its task.

    Args:
        inference: How judged images are seen: in windows (slide), or each at once (whole).
        epochs: Passes over the training windows.
        seeds: Models with random weights to compare with; 0 for none.
        sweep: What all probes take; see `veca.probes.sweep.Sweep`.
    """
    if epochs < 1:
        raise ValueError(f"epochs must be at least 1; got {epochs}. Try 20.")
    opened = Sweep(model, data, probe=task, task=task, classes="all", seeds=seeds, **sweep)
    splits = opened.scan("train", opened.chooses, opened.judged)
    opened.run(kind(opened, splits, epochs, inference == "whole"))


def fit_dense(
    features: Cached,
    views: Places,
    *,
    num_outputs: int,
    loss: Loss,
    epochs: int,
    rates: tuple[float, ...] = RATES,
    device: torch.device | str = "cpu",
) -> DenseHeads:
    """Fit heads to some of the labelled windows of a split."""
    moments = _moments(features, views)
    heads = DenseHeads(moments, num_outputs=num_outputs, num_heads=len(rates)).to(device)
    groups = [
        {"params": [weight, bias], "lr": rate}
        for weight, bias, rate in zip(heads.weights, heads.biases, rates, strict=True)
    ]
    optimizer = torch.optim.AdamW(groups, weight_decay=WEIGHT_DECAY, fused=True)
    steps = epochs * math.ceil(len(views) / BATCH)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: (1 - step / steps) ** POWER)
    order = np.random.default_rng(SEED)
    with progress_bar("heads", epochs, unit="epoch") as progress:
        for _ in range(epochs):
            for maps, targets in window_maps(heads, features, order.permutation(views)):
                optimizer.zero_grad()
                loss(maps, targets).sum().backward()
                optimizer.step()
                schedule.step()
            progress.update()
    return heads.eval()


def window_maps(heads: DenseHeads, features: Cached, views: Places) -> Iterator[tuple[Tensor, Tensor]]:
    """Maps and targets of labelled windows, a batch at a time."""
    device = heads.mean.device
    for start in range(0, len(views), BATCH):
        part = views[start : start + BATCH].tolist()
        patches, cls, grid = _gather(features, part)
        targets = torch.stack([features.target(view) for view in part])
        yield heads(patches.to(device), cls.to(device), grid), targets.to(device)


@torch.no_grad()
def image_maps(
    heads: DenseHeads, features: Cached, finish: Callable[[Tensor], Tensor]
) -> Iterator[tuple[int, Tensor]]:
    """(item, map (K, height, width) of its resized image) by the first head; overlaps are averaged."""
    device = heads.mean.device
    places = range(len(features))
    for item, group in groupby(places, key=lambda view: features.records[view].item):
        views = list(group)
        records = [features.records[view] for view in views]
        patches, cls, grid = _gather(features, views)
        maps = finish(heads(patches.to(device), cls.to(device), grid)[0])
        yield item, _merge(maps, records)


def _merge(maps: Tensor, records: list[ViewRecord]) -> Tensor:
    """Windows (B, K, rows, columns) laid over the image they were cut from."""
    window = records[0].window
    if len(records) == 1:
        return F.interpolate(maps, size=(window.rows, window.columns), mode="bilinear")[0]
    total = maps.new_zeros(maps.shape[1], window.height, window.width)
    times = maps.new_zeros(window.height, window.width)
    for single, record in zip(maps, records, strict=True):
        rows = slice(record.top, record.top + record.rows)
        columns = slice(record.left, record.left + record.columns)
        total[:, rows, columns] += F.interpolate(
            single[None], size=(record.rows, record.columns), mode="bilinear"
        )[0]
        times[rows, columns] += 1
    return total / times


def _gather(features: Cached, views: list[int]) -> tuple[Tensor, Tensor, tuple[int, int]]:
    records = [features.records[view] for view in views]
    grid = records[0].grid_rows, records[0].grid_columns
    # Where CLS is only pooled from the patches, the head gets nothing there.
    has_cls = torch.tensor([record.has_cls for record in records])[:, None]
    return torch.stack([features.patches(view) for view in views]), features.cls[views] * has_cls, grid


def _moments(features: Cached, views: Places) -> Moments:
    """Of [patch ; CLS], over evenly spaced windows."""
    some = views[:: max(1, len(views) // MOMENT_WINDOWS)].tolist()
    patches, cls, _ = _gather(features, some)
    parts = Moments.of(patches.flatten(0, 1)), Moments.of(cls)
    return Moments(*(torch.cat(pair) for pair in zip(*parts, strict=True)))
