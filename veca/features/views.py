"""An encoded image → the pixels the model sees, (3, H, W) uint8.

`crop` is what `veca.preprocess` does: short side to 9/8 of the resolution, then the central square. `whole`
keeps everything: short side to the resolution, both sides rounded to whole patches.
"""

import math
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from veca.data.augment import centre_view, render_pixels
from veca.data.decode import decode, decode_pixels

ViewKind = Literal["crop", "whole"]
_RESIZE_STEP = 8  # 9/8 of the resolution must be whole


def read_view(data: bytes, *, view: ViewKind, resolution: int, patch_size: int) -> NDArray[np.uint8]:
    """The pixels of a view; BadImage where there is no image."""
    if view == "crop":
        pixels = decode_pixels(data)
        return render_pixels(pixels, centre_view(size=pixels.size, resolution=resolution))
    rgb = decode(data)
    size = whole_size((rgb.shape[1], rgb.shape[0]), resolution=resolution, patch_size=patch_size)
    return _resize(rgb, size)


def whole_size(size: tuple[int, int], *, resolution: int, patch_size: int) -> tuple[int, int]:
    """(width, height) of the `whole` view of an image (width, height): the nearest whole patches."""
    scale = resolution / min(size)
    width, height = (max(patch_size, round(side * scale / patch_size) * patch_size) for side in size)
    return width, height


def check_resolution(resolution: int, *, view: ViewKind, patch_size: int) -> None:
    step = math.lcm(patch_size, _RESIZE_STEP) if view == "crop" else patch_size
    if resolution < step or resolution % step:
        near = max(step, round(resolution / step) * step)
        raise ValueError(f"resolution must be a multiple of {step}; got {resolution}. Try {near}.")


def _resize(rgb: NDArray[np.uint8], size: tuple[int, int]) -> NDArray[np.uint8]:
    channels = torch.from_numpy(rgb).permute(2, 0, 1)[None]
    resized = F.interpolate(channels, size=size[::-1], mode="bicubic", antialias=True)
    return np.ascontiguousarray(resized[0].numpy())
