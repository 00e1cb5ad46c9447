"""2-D axial rotary embedding over continuous coordinates (method §1).

Coordinates are (x, y), each axis spanning [-1, 1]. A head's first h/2 channels turn with x and its
last h/2 with y; channels are paired (0,1), (2,3), … and pair i turns by 2π·coordinate/period_i.

Shapes: B batch, N patches, h head width. A *rotation* is (…, h/2, 2): the cosine and sine per pair.
"""

import math

import torch
from torch import Tensor

BASE = 100.0
STILL_SHARE = 0.125  # the longest periods are infinite: those channels carry content only
MAX_SHIFT = 0.08
MAX_SCALE = 2.0


def patch_coordinates(rows: int, cols: int, *, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Cell centres of a grid, row-major: (1, rows·cols, 2)."""
    y = (torch.arange(rows, device=device, dtype=dtype) + 0.5) * (2 / rows) - 1
    x = (torch.arange(cols, device=device, dtype=dtype) + 0.5) * (2 / cols) - 1
    grid_y, grid_x = torch.meshgrid(y, x, indexing="ij")
    return torch.stack((grid_x, grid_y), dim=-1).reshape(1, rows * cols, 2)


def augment_coordinates(coordinates: Tensor) -> Tensor:
    """Shift each axis, then scale both: one draw of torch's generator for the whole batch."""
    draw = 2 * torch.rand(3, device=coordinates.device, dtype=coordinates.dtype) - 1
    shift, log_scale = draw[:2] * MAX_SHIFT, draw[2] * math.log(MAX_SCALE)
    return (coordinates + shift) * log_scale.exp()


def frequencies(head_width: int, *, device: torch.device, dtype: torch.dtype) -> Tensor:
    """2π/period for the h/4 pairs of one axis; 0 where the period is infinite."""
    pairs = head_width // 4
    periods = BASE ** (2 * torch.arange(pairs, device=device, dtype=dtype) / (head_width / 2))
    moving = pairs - round(STILL_SHARE * pairs)
    return torch.where(torch.arange(pairs, device=device) < moving, 2 * math.pi / periods, 0.0)


def rotation(coordinates: Tensor, frequencies: Tensor) -> Tensor:
    """Coordinates (…, 2) → rotation (…, h/2, 2), in the coordinates' precision."""
    angles = (coordinates[..., None] * frequencies).flatten(-2)  # (…, h/2): x pairs, then y pairs
    return torch.stack((angles.cos(), angles.sin()), dim=-1)


def rotate(x: Tensor, rotation: Tensor) -> Tensor:
    """Turn the channel pairs of x (…, h): (a, b) → (a·cos − b·sin, a·sin + b·cos), in x's dtype."""
    pairs = x.unflatten(-1, (-1, 2))
    rotation = rotation.to(x.dtype)
    # A complex product is the same arithmetic in one pass over memory (6× faster on a CPU), but it
    # exists neither in half precision nor for the compiler and exporters.
    if x.dtype in (torch.float32, torch.float64) and not torch.compiler.is_compiling():
        turned = torch.view_as_complex(pairs) * torch.view_as_complex(rotation)
        return torch.view_as_real(turned).flatten(-2)
    a, b = pairs.unbind(-1)
    cos, sin = rotation.unbind(-1)
    return torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(-2)
