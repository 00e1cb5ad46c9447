"""What the parts of a probe hand to each other: datasets give items, backbones features, heads take both.

Shapes: B batch, N patches of the backbone's grid, D width.
"""

from typing import Literal, NamedTuple, Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Task = Literal["classify", "multilabel", "segment", "depth"]
IGNORED = 255  # a label or mask value that counts neither for training nor for the score


class Item(NamedTuple):
    """One example as it lies on the disk.

    `target` is, by task: a label (int); 0, 1 or IGNORED per class (C,) uint8; class ids (H, W) uint8 or
    uint16 with IGNORED where there is none; metres (H, W) float32, 0 where nothing was measured.
    """

    name: str
    image: bytes  # the encoded file
    target: int | NDArray[np.generic]


class Split(Protocol):
    """The examples of one split; nothing is read before it is asked for."""

    def __len__(self) -> int: ...

    def __getitem__(self, place: int) -> Item: ...


class Dataset(NamedTuple):
    """A labelled dataset with the splits it has: `train`, and `val` or `test` or both."""

    name: str
    task: Task
    classes: list[str]  # empty for depth
    splits: dict[str, Split]
    max_depth: float | None = None  # metres; farther measurements do not count


class ProbeFeatures(NamedTuple):
    """What a backbone says about a batch, in float32."""

    cls: Tensor  # (B, D)
    patches: Tensor | None  # (B, N, D), row-major; None where the model has no dense feature
    grid: tuple[int, int]  # rows, columns
    has_cls: bool = True  # False where `cls` is pooled from the patches: a dense head takes these alone


class Backbone(Protocol):
    """A frozen model at one setting. Takes uint8 images whose sides are multiples of `patch_size`."""

    @property
    def name(self) -> str: ...

    @property
    def budget(self) -> int | None:
        """None for a model whose compute is fixed."""
        ...

    @property
    def patch_size(self) -> int: ...

    def __call__(self, images: Tensor) -> ProbeFeatures: ...

    def fingerprint(self) -> str:
        """A hash of weights, normalisation and budget: the name of what is cached of it."""
        ...


class ProbedModel(Protocol):
    """A model at all its budgets."""

    @property
    def name(self) -> str: ...

    @property
    def budgets(self) -> tuple[int, ...]:
        """Empty for a model whose compute is fixed."""
        ...

    @property
    def patch_size(self) -> int: ...

    def default_resolution(self, task: Task) -> int: ...

    def at(self, budget: int | None) -> Backbone: ...

    def to(self, device: torch.device | str) -> Self: ...
