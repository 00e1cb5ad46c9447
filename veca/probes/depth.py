"""`veca probe depth`: a linear head on [patch ; CLS] that says how far every pixel is (method, section 6).

Bins, not regression: the head gives 64 logits a patch, and its answer is the mean of 64 depths, equally
spaced up to the largest, weighted with their softmax. So does the linear probe of DINOv2, whose numbers the
paper's are close to, with 256; a mean of neighbours is as fine with a quarter of them. A plain regression
cannot bend, and would be another table. Answers are upsampled bilinearly, and the loss is the squared error
in metres, which is what RMSE reports.

Only measured pixels up to the data's largest depth count, at the depth map's own size. RMSE, AbsRel and
δ<1.25 are those of each image, averaged over images. The constant is the mean depth of the training images.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torchmetrics import MeanMetric
from torchmetrics.functional import mean_absolute_percentage_error, mean_squared_error

from veca.probes.dense import DenseHeads, DenseProbe, Places, run_dense, window_maps
from veca.probes.features import Cached

NUM_BINS = 64
NEAR = 1.25
QUANTITIES = ("RMSE", "AbsRel", "δ<1.25")


def depth(model: str, data: str, **options: Any) -> None:
    """Fit a linear depth head to patches and CLS and judge it on held-out images.

    Args:
        model: Folder with model.safetensors, a run's .ckpt, the authors' .pt, a Hub id, or a peer's name.
        data: Folder of images and depth maps, or NAME:FOLDER for a dataset of the paper.
        options: What dense probes take; see `veca.probes.dense.run_dense`.
    """
    run_dense(model, data, kind=DepthProbe, task="depth", **options)


@dataclass(frozen=True)
class DepthProbe(DenseProbe):
    """The probe of a sweep."""

    quantities = QUANTITIES
    truth = np.float32
    num_outputs = NUM_BINS

    @property
    def settings(self) -> dict[str, Any]:
        return {**super().settings, "bins": NUM_BINS, "max depth": self.max_depth}

    @property
    def max_depth(self) -> float:
        return self.sweep.dataset.max_depth or self.splits["train"].max_depth

    def loss(self, maps: Tensor, targets: Tensor) -> Tensor:
        errors, counted = self._errors(maps, targets)
        return errors.square().sum(dim=(1, 2, 3)) / counted.sum().clamp(min=1)

    def choice_scores(self, heads: DenseHeads, features: Cached, views: Places) -> list[float]:
        means = [MeanMetric().to(heads.mean.device) for _ in heads.weights]
        for maps, targets in window_maps(heads, features, views):
            errors, counted = self._errors(maps, targets)
            for mean, single in zip(means, errors, strict=True):
                mean.update(single[counted].square())
        return [-float(mean.compute().sqrt()) for mean in means]

    def finish(self, maps: Tensor) -> Tensor:
        return expected_depth(maps, self.max_depth)

    def answer(self, found: Tensor, *, size: tuple[int, int]) -> Tensor:
        return F.interpolate(found[None], size=size, mode="bilinear")[0, 0]

    def judge(self, pairs: Iterable[tuple[Tensor, Tensor]]) -> dict[str, float]:
        return depth_errors(pairs, max_depth=self.max_depth)

    @property
    def usual(self) -> float:
        return self.splits["train"].mean_depth

    def _errors(self, maps: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Errors in metres (G, B, …), zero where nothing counts, and where something does (B, …)."""
        answers = expected_depth(maps.flatten(0, 1), self.max_depth)
        upsampled = F.interpolate(answers, size=targets.shape[1:], mode="bilinear")[:, 0]
        counted = (targets > 0) & (targets <= self.max_depth)
        return (upsampled.unflatten(0, (len(maps), -1)) - targets) * counted, counted


def expected_depth(maps: Tensor, max_depth: float) -> Tensor:
    """Metres (B, 1, rows, columns) of the logits of bins (B, bins, rows, columns)."""
    bins = (torch.arange(maps.shape[1], device=maps.device) + 0.5) * (max_depth / maps.shape[1])
    return torch.einsum("bcij,c->bij", maps.softmax(dim=1), bins)[:, None]


def depth_errors(pairs: Iterable[tuple[Tensor, Tensor]], *, max_depth: float) -> dict[str, float]:
    """The quantities over (answer, truth) of each image; images without a measurement have no part."""
    means = {name: MeanMetric() for name in QUANTITIES}
    for answer, truth in pairs:
        counted = (truth > 0) & (truth <= max_depth)
        if not bool(counted.any()):
            continue
        found, true = answer[counted], truth[counted]
        means["RMSE"].update(mean_squared_error(found, true, squared=False))
        means["AbsRel"].update(mean_absolute_percentage_error(found, true))
        means["δ<1.25"].update((torch.maximum(found / true, true / found) < NEAR).float().mean())
    return {name: float(mean.compute()) for name, mean in means.items()}
