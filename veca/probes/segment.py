"""`veca probe segment`: a linear head on [patch ; CLS] that names every pixel (method, section 6).

Heads learn the cross-entropy of their maps, upsampled bilinearly to four labels per patch and side. The
learning rate is chosen by the mIoU of such maps on windows of validation images; the chosen one is fitted
again with them. Judged is the class of every pixel of the mask at its own size: the maps of an image's
windows ("slide", overlaps averaged) or of the whole image ("whole") are upsampled bilinearly, first to the
pixels the backbone saw, then to the mask.

mIoU is over all pixels of a split, IGNORED ones left out; a class that neither masks nor answers contain has
no part in the mean. The constant is the most frequent class of the training masks.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassJaccardIndex

from veca.probes.datasets.splits import IGNORED
from veca.probes.dense import DenseHeads, DenseProbe, Places, run_dense, window_maps
from veca.probes.features import Cached

PIXELS_AT_ONCE = 2**25  # of all classes: 128 MB


def segment(model: str, data: str, **options: Any) -> None:
    """Fit a linear segmentation head to patches and CLS and judge it on held-out images.

    Args:
        model: Folder with model.safetensors, a run's .ckpt, the authors' .pt, a Hub id, or a peer's name.
        data: Folder of images and masks, or NAME:FOLDER for a dataset of the paper.
        options: What dense probes take; see `veca.probes.dense.run_dense`.
    """
    run_dense(model, data, kind=SegmentProbe, task="segment", **options)


@dataclass(frozen=True)
class SegmentProbe(DenseProbe):
    """The probe of a sweep."""

    quantities = ("mIoU", "pixel accuracy")
    truth = np.int64

    def loss(self, maps: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(maps, targets)

    def choice_scores(self, heads: DenseHeads, features: Cached, views: Places) -> list[float]:
        metrics = [_metrics(self.num_outputs).to(heads.mean.device) for _ in heads.weights]
        for maps, targets in window_maps(heads, features, views):
            for metric, single in zip(metrics, maps, strict=True):
                upsampled = F.interpolate(single, size=targets.shape[1:], mode="bilinear")
                metric.update(upsampled.argmax(1), targets.long())
        return [float(metric.compute()["mIoU"]) for metric in metrics]

    def answer(self, found: Tensor, *, size: tuple[int, int]) -> Tensor:
        return upsampled_argmax(found, size=size)

    def judge(self, pairs: Iterable[tuple[Tensor, Tensor]]) -> dict[str, float]:
        metric = _metrics(self.num_outputs)
        for answer, mask in pairs:
            metric.update(answer[None], mask[None])
        return {name: float(value) for name, value in metric.compute().items()}

    @property
    def usual(self) -> float:
        return int(np.argmax([self.splits["train"].counts[name] for name in self.sweep.dataset.classes]))


def cross_entropy(maps: Tensor, targets: Tensor) -> Tensor:
    """The mean loss (G,) of maps (G, B, C, rows, columns) over the targets (B, …) that are not IGNORED."""
    num_heads, targets = len(maps), targets.long()
    upsampled = F.interpolate(maps.flatten(0, 1), size=targets.shape[1:], mode="bilinear")
    repeated = targets.repeat(num_heads, 1, 1)
    losses = F.cross_entropy(upsampled, repeated, ignore_index=IGNORED, reduction="none")
    counted = (targets != IGNORED).sum().clamp(min=1)
    return losses.view(num_heads, -1).sum(1) / counted


def upsampled_argmax(logits: Tensor, *, size: tuple[int, int]) -> Tensor:
    """The class (height, width) of the highest logit after bilinear upsampling of (C, rows, columns).

    Some classes at a time: 150 of them over a large photograph would fill the memory.
    """
    step = max(1, PIXELS_AT_ONCE // (size[0] * size[1]))
    best = logits.new_full(size, -torch.inf)
    found = torch.zeros(size, dtype=torch.int64, device=logits.device)
    for start in range(0, len(logits), step):
        part = F.interpolate(logits[None, start : start + step], size=size, mode="bilinear")[0]
        highest, place = part.max(dim=0)
        found = torch.where(highest > best, place + start, found)
        best = torch.maximum(best, highest)
    return found


def _metrics(num_classes: int) -> MetricCollection:
    options: dict[str, Any] = {"num_classes": num_classes, "ignore_index": IGNORED, "validate_args": False}
    return MetricCollection(
        {
            "mIoU": MulticlassJaccardIndex(average="macro", **options),
            "pixel accuracy": MulticlassAccuracy(average="micro", **options),
        },
        compute_groups=False,
    )
