"""What a backbone is to those who call it: features at a budget, or models at all their budgets.

Shapes: B batch, N patches of the backbone's grid, D width.
"""

from typing import Literal, NamedTuple, Protocol, Self

import torch
from torch import Tensor

Task = Literal["classify", "multilabel", "segment", "depth"]


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
