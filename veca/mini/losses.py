"""The validation loss of every image, and differences between models on the same images.

Images differ from each other far more than models do, so models are compared image by image: the mean of the
differences, and its standard error over images. Where there are several seeds, the losses of an image are
averaged over them first; the error then tells about other images, not about other seeds.
"""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from veca.data.cached import find_cache
from veca.data.cached_arrays import open_targets
from veca.data.datamodule import ShardDataModule
from veca.data.resolutions import Phase, ResolutionSchedule
from veca.data.views import normalise
from veca.mini.students import Student
from veca.train.losses import distillation_loss
from veca.types import Batch, Features, Targets

BATCH_SIZE = 16
Losses = NDArray[np.float64]


class Paired(NamedTuple):
    """A mean difference over images and its standard error."""

    mean: float
    error: float

    def __str__(self) -> str:
        return f"{self.mean:+.4f} ± {self.error:.4f}"


def paired(ours: Losses, theirs: Losses) -> Paired:
    """`ours − theirs`, image by image."""
    if ours.shape != theirs.shape or len(ours) < 2:
        raise ValueError(
            f"paired losses need the same two images or more; got {ours.shape} and {theirs.shape}. "
            "Make more validation images."
        )
    differences = ours - theirs
    return Paired(float(differences.mean()), float(differences.std(ddof=1)) / math.sqrt(len(differences)))


def over_seeds(losses: Sequence[Losses]) -> Losses:
    """The mean over seeds of every image."""
    return np.mean(np.stack(losses), axis=0)  # type: ignore[no-any-return]  # numpy says Any


class Validation:
    """The validation images of cached shards with their targets, in memory."""

    def __init__(self, shards: Path, *, resolution: int, views: int) -> None:
        schedule = ResolutionSchedule(phases=[Phase(0, {resolution: 1.0})], batch_size=BATCH_SIZE)
        data = ShardDataModule(sources=str(shards), resolutions=schedule, num_workers=0)
        data.setup("validate")
        data.replay(find_cache(shards, teacher="EfficientNetTeacher", views=views, dtype="int8"), "validate")
        (loader,) = data.eval_loaders("val")
        self.batches: list[Batch] = [
            batch._replace(targets=open_targets(batch.targets))
            for batch in loader
            if batch.targets is not None
        ]

    def are_photos(self) -> NDArray[np.bool_]:
        """Which images are photos; the others are scenes."""
        return np.array([key.startswith("photo") for batch in self.batches for key in batch.keys])

    def losses(self, student: Student, *, budget: int) -> Losses:
        """The loss of each image."""
        found: list[float] = []
        with torch.no_grad():
            for batch in self.batches:
                features = student(normalise(batch.images), budget=budget)
                found += _each(features, _targets(batch))
        return np.array(found)

    def constant(self) -> Losses:
        """The loss of each image for one vector per position, the mean of these very targets."""
        targets = [_targets(batch) for batch in self.batches]
        cls = _mean(one.cls for one in targets)
        patches = _mean(one.patches for one in targets)
        found: list[float] = []
        for one in targets:
            size = len(one.cls)
            constant = Features(
                cls.expand(size, -1), patches.expand(size, -1, -1), cls.expand(size, 1, -1), (1, len(patches))
            )
            found += _each(constant, one)
        return np.array(found)


def _each(features: Features, targets: Targets) -> Iterator[float]:
    """The objective, of one image at a time."""
    for place in range(len(targets.cls)):
        one = slice(place, place + 1)
        single = features._replace(
            cls=features.cls[one], patches=features.patches[one], cores=features.cores[one]
        )
        yield float(distillation_loss(single, Targets(targets.cls[one], targets.patches[one])).loss)


def _targets(batch: Batch) -> Targets:
    assert batch.targets is not None
    return batch.targets


def _mean(parts: Iterator[Tensor]) -> Tensor:
    return torch.cat(list(parts)).mean(dim=0)
