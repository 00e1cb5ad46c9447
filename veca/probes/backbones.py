"""What a probe evaluates: anything that turns pixels into one global feature per image.

Each backbone carries its own resolution and normalisation, so that a probe treats a student, a teacher and
a baseline alike.
"""

from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from veca.data.pixels import normalise
from veca.model import Size, Veca

RAW_SIDE = 16


class Backbone(Protocol):
    """A frozen map from uint8 images (B, 3, R, R), R = `resolution`, to global features (B, D)."""

    @property
    def resolution(self) -> int: ...

    def __call__(self, images: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class VecaAtBudget:
    """A Veca at one budget and resolution; its global feature is core 0."""

    model: Veca = field(repr=False)
    budget: int
    resolution: int

    def __call__(self, images: Tensor) -> Tensor:
        device = next(self.model.parameters()).device
        features = self.model(normalise(images.to(device)), budget=self.budget)
        cls: Tensor = features.cls
        return cls


@dataclass(frozen=True)
class RawPixels:
    """No model at all: the image at 16 × 16 pixels. A feature that loses to it knows nothing of content."""

    resolution: int = RAW_SIDE

    def __call__(self, images: Tensor) -> Tensor:
        return normalise(images).flatten(1)


def random_model(size: Size, *, seed: int) -> Veca:
    """Fresh weights of the given size in eval mode; the caller's random numbers stay as they are."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Veca(**size.as_dict()).eval()
