"""Datasets in memory and backbones that know the answer, or nothing."""

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from veca.backbones import ProbeFeatures, Task
from veca.probes.datasets.splits import Dataset, Item, Split

STEP = 20  # colour of answer i is i * STEP: far enough apart to survive a resize
LEVELS = 12


@dataclass
class MemorySplit:
    """Encoded images and targets; counts what was read."""

    items: list[Item]
    reads: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, place: int) -> Item:
        self.reads.append(place)
        return self.items[place]


def png(pixels: NDArray[np.uint8]) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()


def coloured(answers: NDArray[np.generic], *, seed: int) -> bytes:
    """An image (H, W) whose red channel is the answer; blue is noise, so that no two images are alike."""
    pixels = np.zeros((*answers.shape, 3), dtype=np.uint8)
    pixels[..., 0] = answers.astype(np.uint8) * STEP
    pixels[..., 2] = np.random.default_rng(seed).integers(0, 255, answers.shape)
    return png(pixels)


def label_items(labels: Sequence[int], *, seed: int = 0, size: tuple[int, int] = (20, 24)) -> MemorySplit:
    """Images of one colour, which is their label."""
    images = [coloured(np.full(size, label), seed=seed + place) for place, label in enumerate(labels)]
    return MemorySplit([Item(f"{seed}-{i}", images[i], label) for i, label in enumerate(labels)])


def label_data(train: int = 40, test: int = 30, *, num_classes: int = 3) -> Dataset:
    splits: dict[str, Split] = {
        "train": label_items([i % num_classes for i in range(train)], seed=0),
        "test": label_items([(i * 7 + 1) % num_classes for i in range(test)], seed=1000),
    }
    return Dataset("fake", "classify", [f"class{i}" for i in range(num_classes)], splits)


def map_items(number: int, *, num_classes: int, seed: int, size: tuple[int, int]) -> MemorySplit:
    """Images of random rectangles, whose colours are the classes of their pixels."""
    items = []
    for place in range(number):
        rng = np.random.default_rng(seed + place)
        answers = np.full(size, rng.integers(num_classes), dtype=np.uint8)
        for _ in range(3):
            top, left = int(rng.integers(size[0] - 3)), int(rng.integers(size[1] - 3))
            answers[top : top + 6, left : left + 6] = rng.integers(num_classes)
        items.append(Item(f"{seed}-{place}", coloured(answers, seed=seed + place), answers))
    return MemorySplit(items)


@dataclass(frozen=True)
class FakeBackbone:
    """Features from pixels by way of a function: (B, 3, rows, columns of patches) → (B, D, rows, columns)."""

    name: str
    feature: Callable[[Tensor], Tensor]
    patch_size: int
    budget: int | None = None
    calls: list[tuple[int, ...]] = field(default_factory=list)

    def __call__(self, images: Tensor) -> ProbeFeatures:
        self.calls.append(tuple(images.shape))
        maps = self.feature(F.avg_pool2d(images.float(), self.patch_size))
        grid = maps.shape[-2], maps.shape[-1]
        return ProbeFeatures(maps.mean(dim=(2, 3)), maps.flatten(2).transpose(1, 2), grid)

    def fingerprint(self) -> str:
        return f"{self.name}-{self.budget}"


@dataclass(frozen=True)
class FakeModel:
    name: str
    feature: Callable[[Tensor], Tensor]
    patch_size: int = 8
    budgets: tuple[int, ...] = ()
    calls: list[tuple[int, ...]] = field(default_factory=list)

    def default_resolution(self, task: Task) -> int:
        return 16

    def at(self, budget: int | None) -> FakeBackbone:
        return FakeBackbone(self.name, self.feature, self.patch_size, budget, self.calls)

    def to(self, device: torch.device | str) -> "FakeModel":
        return self


def planted(pixels: Tensor) -> Tensor:
    """The answer, one-hot."""
    answers = (pixels[:, 0] / STEP).round().long().clamp(0, LEVELS - 1)
    return F.one_hot(answers, LEVELS).movedim(-1, 1).float()


def noise(pixels: Tensor) -> Tensor:
    """Depends on the image, but not on the answer."""
    seeds = pixels[:, 2].mean(dim=(1, 2)).mul(1e4).long().tolist()
    draws = [
        torch.randn(8, *pixels.shape[2:], generator=torch.Generator().manual_seed(seed)) for seed in seeds
    ]
    return torch.stack(draws)


Install = Callable[..., dict[str, FakeModel]]
