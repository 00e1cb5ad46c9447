"""Pixels ↔ model input: normalisation, and the validation view of a single picture, which all figures,
features and probes share: short side to 9/8 of the resolution, centre crop.

Batches travel as uint8 (a quarter of the bytes) and are normalised once, on the device that uses them.
"""

import math
import os

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from veca.data.augment import centre_view, render_pixels
from veca.data.decode import Pixels, decode_pixels, pixels_from_pil
from veca.data.folders import read_named
from veca.data.resolutions import PATCH_SIZE

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
RESIZE_STEP = 8  # 9/8 of the resolution must be whole

Picture = str | os.PathLike[str] | Image.Image | NDArray[np.uint8]


def normalise(
    images: Tensor,
    *,
    mean: tuple[float, ...] = MEAN,
    std: tuple[float, ...] = STD,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """uint8 (B, 3, H, W) → (images / 255 − mean) / std, computed in float32, given in `dtype`."""
    if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] != len(mean):
        raise ValueError(
            f"images must be uint8 of shape (B, {len(mean)}, H, W); got {images.dtype} of shape "
            f"{tuple(images.shape)}. Images that are floats already must not be normalised again."
        )
    normalised = images.contiguous().float()  # batches come channels last
    # Python scalars, channel by channel: a tensor of means would be copied to the device in every step.
    for channel, (centre, spread) in enumerate(zip(mean, std, strict=True)):
        normalised[:, channel].mul_(1 / (255 * spread)).sub_(centre / spread)
    return normalised.to(dtype)


def preprocess(image_or_path: Picture, *, resolution: int = 256, patch_size: int = PATCH_SIZE) -> Tensor:
    """A picture as a model's input (1, 3, R, R): the validation view, normalised.

    Takes a path, a Pillow image, or a uint8 array of shape (H, W), (H, W, 3) or (H, W, 4). `patch_size` is
    that of the model, which `resolution` must be a multiple of.
    """
    check_resolution(resolution, patch_size=patch_size)
    if isinstance(image_or_path, str | os.PathLike):
        pixels = decode_pixels(read_named(image_or_path))
    elif isinstance(image_or_path, Image.Image):
        pixels = pixels_from_pil(image_or_path)
    else:
        pixels = pixels_from_pil(_image_from_array(image_or_path))
    return normalise(torch.from_numpy(centre_crop(pixels, resolution=resolution))[None])


def centre_crop(pixels: Pixels, *, resolution: int) -> NDArray[np.uint8]:
    """The validation view of a decoded image: (3, R, R)."""
    return render_pixels(pixels, centre_view(size=pixels.size, resolution=resolution))


def check_resolution(resolution: int, *, patch_size: int, resized: bool = True) -> None:
    """Refuse a side that is no whole number of patches or, for a view that is `resized` by 9/8, of pixels."""
    step = math.lcm(patch_size, RESIZE_STEP) if resized else patch_size
    if resolution < step or resolution % step:
        near = max(step, round(resolution / step) * step)
        raise ValueError(f"resolution must be a multiple of {step}; got {resolution}. Try {near}.")


def _image_from_array(array: NDArray[np.uint8]) -> Image.Image:
    accepted = "a path, a Pillow image or a uint8 array of shape (H, W), (H, W, 3) or (H, W, 4)"
    if not isinstance(array, np.ndarray):
        raise ValueError(f"image_or_path must be {accepted}; got {type(array).__name__}.")
    plain = array.ndim == 2 or (array.ndim == 3 and array.shape[-1] in (3, 4))
    if array.dtype != np.uint8 or not plain:
        raise ValueError(f"image_or_path must be {accepted}; got {array.dtype} of shape {array.shape}.")
    return Image.fromarray(array)
