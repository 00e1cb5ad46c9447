"""The contracts between stages, in the order the data flows.

images → shards → **Batch** → **Targets** (teacher) + **Features** (student) → loss

Shapes: B batch, C active cores, N patches, D width. Patches are row-major over `grid = (rows, cols)`.
"""

from typing import NamedTuple

from torch import Tensor


class Targets(NamedTuple):
    """What the teacher gives for a batch."""

    cls: Tensor  # (B, D)
    patches: Tensor  # (B, N, D)


class Batch(NamedTuple):
    """What the loader gives: pixels as bytes, normalised on the device."""

    images: Tensor  # (B, 3, H, W) uint8
    keys: list[str]
    targets: Targets | None = None  # present when targets are read from a cache


class Features(NamedTuple):
    """What the student gives for a batch."""

    cls: Tensor  # (B, D)
    patches: Tensor  # (B, N, D)
    cores: Tensor  # (B, C, D); core 0 is cls
    grid: tuple[int, int]
