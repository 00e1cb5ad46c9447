"""The numbers of the analysis: pure functions of maps, places and labels. docs/figures.md defines them.

A view is a crop, perhaps flipped, perhaps sheared, moved or turned (veca.data.views); each step is affine,
and so is the way back to the plain view. Points are (x, y) in pixels from the top-left corner of the view.

Shapes: C cores, N patches of a grid (rows, cols), D width, V views. A map is a core's contributions over the
patches; only its form counts, so every function takes maps of any positive scale.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from veca.data.views import View

REGION = 0.5  # share of a map's mass that its region holds
_TINY = 1e-12
# Where the magnitude of an operation stands in the matrix that leads back, and its sign.
_ENTRIES = {
    "ShearX": ((0, 1), 1),
    "ShearY": ((1, 0), 1),
    "TranslateX": ((0, 2), -1),
    "TranslateY": ((1, 2), -1),
}

Affine = NDArray[np.float64]  # (3, 3)


class Estimate(NamedTuple):
    """A mean over images with its standard error; None for a single image."""

    value: float
    error: float | None


def effective_rank(rows: Tensor) -> float:
    """Number of directions that rows (C, D) spread over: exp of the entropy of their singular values.

    1 when all rows are parallel, C when they are orthogonal. Rows count by direction, not by length.
    """
    values = torch.linalg.svdvals(F.normalize(rows.double(), dim=1))
    return math.exp(float(torch.special.entr(values / values.sum().clamp_min(_TINY)).sum()))


def pairwise_similarity(rows: Tensor) -> float:
    """Mean cosine between two different rows of (C, D)."""
    unit, count = F.normalize(rows.double(), dim=1), len(rows)
    if count < 2:
        return 1.0
    return float((unit.sum(0).square().sum() - unit.square().sum()) / (count * (count - 1)))


def map_agreement(maps: Tensor, others: Tensor, valid: Tensor | None = None) -> float:
    """Mean over cores of the correlation between maps (C, N) and (C, N), over the patches in `valid` (N,).

    Not the cosine: maps are positive everywhere, so that unrelated ones would look alike.
    """
    if valid is not None:
        maps, others = maps[:, valid], others[:, valid]
    first, second = (each.double() - each.double().mean(1, keepdim=True) for each in (maps, others))
    return float(F.cosine_similarity(first, second, dim=1, eps=_TINY).mean())


def displacement(places: Tensor, others: Tensor) -> float:
    """Mean over cores of the distance between places (C, 2) in [-1, 1]², as a share of the image's side."""
    return float((places.double() - others.double()).norm(dim=1).mean() / 2)


def roundness(maps: Tensor, grid: tuple[int, int]) -> float:
    """Mean over cores of short over long axis of the region that a map (C, N) marks: 1 for a disc.

    The region is the fewest patches that hold REGION of the map's mass; its axes are those of the ellipse
    with the same second moments.
    """
    rows, cols = grid
    # Pixels are square, so a cell is the unit on both axes, and has a moment of 1/12 of its own.
    y, x = torch.meshgrid(torch.arange(rows).double(), torch.arange(cols).double(), indexing="ij")
    cells = torch.stack((x.flatten(), y.flatten()), dim=1)  # (N, 2)
    weights = regions(maps).double()
    weights = weights / weights.sum(1, keepdim=True)
    centred = cells - (weights @ cells)[:, None]  # (C, N, 2)
    moments = torch.einsum("cn,cni,cnj->cij", weights, centred, centred) + torch.eye(2).double() / 12
    values = torch.linalg.eigvalsh(moments)  # ascending
    return float((values[:, 0] / values[:, 1]).sqrt().mean())


def extent(maps: Tensor) -> float:
    """Mean over cores of exp(entropy) of a map (C, N) as a share of the patches: 1 for an even map."""
    shares = maps.double() / maps.double().sum(1, keepdim=True).clamp_min(_TINY)
    return float((torch.special.entr(shares).sum(1).exp() / maps.shape[1]).mean())


def regions(maps: Tensor) -> Tensor:
    """The fewest patches that hold REGION of each map's mass (C, N) → bool; equal patches stay together."""
    shares = maps.double() / maps.double().sum(1, keepdim=True).clamp_min(_TINY)
    ordered = shares.sort(dim=1, descending=True).values
    needed = (ordered.cumsum(1) < REGION - 1e-9).sum(1, keepdim=True).clamp_max(maps.shape[1] - 1)
    return shares >= ordered.gather(1, needed) * (1 - 1e-6)


def assign(maps: Tensor) -> Tensor:
    """The core that each patch belongs to: the one whose map (C, N) has the largest share of itself there.

    Maps are normalised over patches, so that a core which mostly reads other cores competes too.
    """
    return (maps / maps.sum(1, keepdim=True).clamp_min(_TINY)).argmax(0)


def contingency(
    cores: NDArray[np.int64], labels: NDArray[np.int64], *, shape: tuple[int, int]
) -> NDArray[np.int64]:
    """How often core and label meet: (num_cores, num_labels)."""
    flat = np.bincount(cores * shape[1] + labels, minlength=shape[0] * shape[1])
    return flat.reshape(shape)


def explained(table: NDArray[np.int64]) -> float:
    """Mutual information of core and label over the entropy of the label: 0 … 1; 1 for a single label."""
    joint = table / max(table.sum(), 1)
    cores, labels = joint.sum(1), joint.sum(0)
    entropy = _entropy(labels)
    if entropy < _TINY:
        return 1.0
    return (_entropy(cores) + entropy - _entropy(joint.ravel())) / entropy


def purity(table: NDArray[np.int64]) -> float:
    """Share of the labels that are the most frequent one of their core."""
    return float(table.max(1).sum() / max(table.sum(), 1))


def mean_and_error(values: list[float]) -> Estimate:
    """Mean over images with the standard error of the mean."""
    found = np.asarray(values)
    error = float(found.std(ddof=1) / math.sqrt(len(found))) if len(found) > 1 else None
    return Estimate(float(found.mean()), error)


def bootstrap(
    tables: NDArray[np.int64], function: Callable[[NDArray[np.int64]], float], *, seed: int, resamples: int
) -> Estimate:
    """A function of the sum of all images' tables (n, …), with its standard error over resampled images."""
    count = len(tables)
    if count < 2:
        return Estimate(function(tables.sum(0)), None)
    draws = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), size=resamples)
    values = [function(np.tensordot(draw, tables, axes=1)) for draw in draws]
    return Estimate(function(tables.sum(0)), float(np.std(values, ddof=1)))


def _entropy(shares: NDArray[np.float64]) -> float:
    positive = shares[shares > 0]
    return float(-(positive * np.log(positive)).sum())


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
