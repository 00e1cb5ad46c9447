"""Back from an augmented view to the plain one: where each of its points lies there.

A view is a crop, perhaps flipped, perhaps sheared, moved or turned (veca.data.augment); each step is affine,
and so is the way back. Points are (x, y) in pixels with (0, 0) the top-left corner of the view.
"""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from veca.data.augment import View

Affine = NDArray[np.float64]  # (3, 3)

# Where the magnitude of an operation stands in the matrix that leads back, and its sign.
_ENTRIES = {
    "ShearX": ((0, 1), 1),
    "ShearY": ((1, 0), 1),
    "TranslateX": ((0, 2), -1),
    "TranslateY": ((1, 2), -1),
}


def way_back(view: View, plain: View) -> Affine:
    """The map from points of `view` to points of `plain`, two views of one image at one resolution."""
    if (view.width, view.height) != (plain.width, plain.height):
        raise ValueError(f"two views of one image at one resolution can be matched; got {view} and {plain}.")
    side = view.resolution
    flip = np.array([[-1, 0, side], [0, 1, 0], [0, 0, 1]], dtype=float) if view.flip else np.eye(3)
    crop = np.array([[1, 0, view.left - plain.left], [0, 1, view.top - plain.top], [0, 0, 1]], dtype=float)
    back: Affine = crop @ flip @ _op_back(view.op, view.magnitude, side)
    return back


def match_places(places: Tensor, back: Affine, *, side: int) -> Tensor:
    """Core places (…, 2) in [-1, 1]² of the augmented view → of the plain one."""
    matrix = torch.from_numpy(back).to(places.dtype)
    pixels = (places + 1) / 2 * side
    return (pixels @ matrix[:2, :2].T + matrix[:2, 2]) / side * 2 - 1


def match_maps(maps: Tensor, back: Affine, *, view: View, grid: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Maps (C, N) of the plain view, as they should look in the augmented one, and where that is known (N,).

    A patch is known when its centre lies inside both crops; what an operation fills with black lies in
    neither.
    """
    rows, cols = grid
    side = view.resolution
    x, y = (np.arange(cols) + 0.5) * side / cols, (np.arange(rows) + 0.5) * side / rows
    centres = torch.from_numpy(np.stack(np.meshgrid(x, y), axis=-1).reshape(-1, 2) / side * 2 - 1)  # (N, 2)
    there = match_places(centres, back, side=side)
    before_op = match_places(centres, _op_back(view.op, view.magnitude, side), side=side)
    valid = (there.abs() <= 1).all(1) & (before_op.abs() <= 1).all(1)
    pictures = maps.double().reshape(1, -1, rows, cols)
    sampled = F.grid_sample(
        pictures, there.reshape(1, 1, -1, 2), mode="bilinear", padding_mode="border", align_corners=False
    )
    return sampled[0, :, 0], valid


def resize_maps(maps: Tensor, grid: tuple[int, int], *, to: tuple[int, int]) -> Tensor:
    """Maps (C, N) of one grid on a coarser one, by area: the mass of a place stays there."""
    pictures = maps.reshape(1, -1, *grid)
    return F.interpolate(pictures, size=to, mode="area").flatten(2)[0]


def _op_back(op: str, magnitude: float, side: int) -> Affine:
    """Points after an operation → points before it; operations on colours move nothing."""
    rows = np.eye(3)
    if op == "Rotate":
        cos, sin, half = math.cos(math.radians(magnitude)), math.sin(math.radians(magnitude)), side / 2
        rows[:2] = (cos, -sin, half * (1 - cos + sin)), (sin, cos, half * (1 - sin - cos))
    elif op in _ENTRIES:
        place, sign = _ENTRIES[op]
        rows[place] = sign * magnitude
    return rows
