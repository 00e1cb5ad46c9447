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


def check_images(
    images: Tensor, *, channels: int = 3, patch_size: int = 16, normalised: bool = False
) -> None:
    """Raise ValueError unless `images` is (B, channels, H, W) of whole patches; `normalised` wants floats."""
    if images.ndim != 4 or images.shape[1] != channels:
        raise ValueError(
            f"images must have shape (B, {channels}, H, W); got {tuple(images.shape)}. "
            "For one image add a batch dimension: image[None]."
        )
    if normalised and not images.is_floating_point():
        raise ValueError(
            f"images must be normalised floats; got {images.dtype}. Use veca.preprocess or normalise."
        )
    height, width = images.shape[-2:]
    if height % patch_size or width % patch_size or not height or not width:
        near = [max(1, round(side / patch_size)) * patch_size for side in (height, width)]
        raise ValueError(
            f"image sides must be multiples of {patch_size}; got {height}×{width}. "
            f"Resize to {near[0]}×{near[1]}."
        )
