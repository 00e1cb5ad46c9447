"""Pixels ↔ model input: normalisation, and the validation transform for a single picture.

Batches travel as uint8 (a quarter of the bytes) and are normalised once, on the device that uses them.
"""

import os

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from veca.data.augment import centre_view, render_pixels
from veca.data.decode import decode_pixels, pixels_from_pil
from veca.data.folders import read_named

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)

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


def preprocess(image_or_path: Picture, *, resolution: int = 256) -> Tensor:
    """A picture as a model's input (1, 3, R, R): the validation view, normalised.

    Takes a path, a Pillow image, or a uint8 array of shape (H, W), (H, W, 3) or (H, W, 4).
    """
    if isinstance(image_or_path, str | os.PathLike):
        pixels = decode_pixels(read_named(image_or_path))
    elif isinstance(image_or_path, Image.Image):
        pixels = pixels_from_pil(image_or_path)
    else:
        pixels = pixels_from_pil(_image_from_array(image_or_path))
    view = centre_view(size=pixels.size, resolution=resolution)
    return normalise(torch.from_numpy(render_pixels(pixels, view))[None])


def _image_from_array(array: NDArray[np.uint8]) -> Image.Image:
    accepted = "a path, a Pillow image or a uint8 array of shape (H, W), (H, W, 3) or (H, W, 4)"
    if not isinstance(array, np.ndarray):
        raise ValueError(f"image_or_path must be {accepted}; got {type(array).__name__}.")
    plain = array.ndim == 2 or (array.ndim == 3 and array.shape[-1] in (3, 4))
    if array.dtype != np.uint8 or not plain:
        raise ValueError(f"image_or_path must be {accepted}; got {array.dtype} of shape {array.shape}.")
    return Image.fromarray(array)
