"""Features and traces → arrays to draw. Pure functions: tensors in, numpy arrays out.

Vectors of several maps are embedded together, so that a colour means the same in all of them, and neighbours
get like colours. The embedding's first dimension becomes lightness, the second blue–yellow, the third
green–red: a reader who cannot tell red from green still sees the two that carry most. In plain RGB such a
reader would lose one at random.

Shapes: N patches of a grid (rows, cols), row-major, C cores, L layers, D width, V views of one image.
"""

import warnings
from importlib import import_module
from importlib.util import find_spec
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from veca.utils.imports import require_extra

Array = NDArray[np.float32]
Method = Literal["umap", "pca"]

NEIGHBOURS, MIN_DISTANCE = 15, 0.1  # as in the paper; the metric is the cosine
MAX_FITTED = 3000  # vectors UMAP learns from, drawn at random; the others are placed among them
MIN_FITTED = 4 * NEIGHBOURS  # fewer vectors have no neighbourhoods to speak of

# Ranges of OKLab that mostly lie inside sRGB.
_LIGHTNESS = (0.28, 0.95)
_BLUE_YELLOW = (-0.20, 0.16)
_GREEN_RED = (-0.15, 0.15)
# OKLab → cone responses (cube roots) → linear sRGB.
_TO_CONES = (
    (1, 0.3963377774, 0.2158037573),
    (1, -0.1055613458, -0.0638541728),
    (1, -0.0894841775, -1.2914855480),
)
_TO_RGB = (
    (4.0767416621, -3.3077115913, 0.2309699292),
    (-1.2684380046, 2.6097574011, -0.3413193965),
    (-0.0041960863, -0.7034186147, 1.7076147010),
)

CLIPPED = 0.02  # share of the patches that may lie outside the colour range, at either end


def principal_scores(rows: Tensor) -> Tensor:
    """Rows (n, D) along their three leading principal directions: (n, 3) in float64, centred."""
    centred = rows.double() - rows.double().mean(0)
    _, _, directions = torch.linalg.svd(centred, full_matrices=False)
    scores = centred @ _fix_signs(directions[:3]).T  # fewer columns for fewer rows
    return F.pad(scores, (0, 3 - scores.shape[1]))


def stretch(scores: Tensor) -> Tensor:
    """Each column to [0, 1]; the outermost CLIPPED of the rows at either end stay there."""
    ends = torch.quantile(scores, torch.tensor([CLIPPED, 1 - CLIPPED], dtype=scores.dtype), dim=0)
    spread = (ends[1] - ends[0]).clamp_min(torch.finfo(scores.dtype).tiny)
    return ((scores - ends[0]) / spread).clamp(0, 1)


def cosine_map(patches: Tensor, token: Tensor) -> Array:
    """Cosine between a token (D,), such as a core, and every patch (N, D): (N,) in [-1, 1]."""
    unit = F.normalize(patches.float(), dim=1)
    return (unit @ F.normalize(token.float(), dim=0)).numpy()


def core_maps(contributions: Tensor) -> Array:
    """Contributions of one layer (C, N) → (C, N) in [0, 1]: each core's own largest is 1.

    Cores differ in how much of their output comes from patches at all; what a picture shows is where.
    """
    largest = contributions.amax(1, keepdim=True).clamp_min(torch.finfo(contributions.dtype).tiny)
    return (contributions / largest).float().numpy()


def as_pixels(colours: Array, grid: tuple[int, int]) -> NDArray[np.uint8]:
    """RGB per patch (N, 3) in [0, 1] → uint8 (rows, cols, 3)."""
    return (colours.reshape(*grid, 3) * 255).round().astype(np.uint8)


def core_paths(places: Tensor, *, size: tuple[int, int]) -> Array:
    """Core coordinates over the layers (L, C, 2) in [-1, 1]² → pixels (C, L, 2) of a (width, height)."""
    corner = (places.float().transpose(0, 1) + 1) / 2
    return (corner * torch.tensor(size)).numpy()


def patch_at(x: float, y: float, *, size: tuple[int, int], grid: tuple[int, int]) -> int:
    """The patch under a pixel of an image (width, height); points outside count as the border."""
    rows, cols = grid
    row = min(max(int(y / size[1] * rows), 0), rows - 1)
    col = min(max(int(x / size[0] * cols), 0), cols - 1)
    return row * cols + col


def _fix_signs(directions: Tensor) -> Tensor:
    """A principal direction has no sign of its own: make its largest entry positive."""
    largest = directions.gather(1, directions.abs().argmax(1, keepdim=True))
    return directions * torch.where(largest < 0, -1.0, 1.0)


def choose_method(method: Method | None) -> Method:
    """UMAP where umap-learn is installed, else PCA; what was asked for must be there."""
    if method == "umap":
        require_extra("figures", "umap")
    return method or ("umap" if find_spec("umap") else "pca")


def joint_colours(parts: list[Tensor], *, method: Method, seed: int = 0) -> list[Array]:
    """Vectors (n, D) of several maps → RGB (n, 3) in [0, 1] for each."""
    rows = torch.cat(parts)
    if method == "umap" and len(rows) >= MIN_FITTED:
        rows = _umap(rows, seed=seed)
    else:
        rows = F.normalize(rows, dim=1)  # so that PCA too compares directions
    colours = opponent_rgb(stretch(principal_scores(rows)).numpy().astype(np.float32))
    return np.split(colours, np.cumsum([len(part) for part in parts])[:-1])


def opponent_rgb(scores: Array) -> Array:
    """Scores (n, 3) in [0, 1] as lightness, blue–yellow and green–red of OKLab → sRGB in [0, 1]."""
    ranges = np.array((_LIGHTNESS, _GREEN_RED, _BLUE_YELLOW), dtype=np.float32)  # OKLab's order: L, a, b
    lab = ranges[:, 0] + scores[:, [0, 2, 1]] * (ranges[:, 1] - ranges[:, 0])
    linear = ((lab @ np.array(_TO_CONES).T) ** 3 @ np.array(_TO_RGB).T).clip(0, 1)
    curved = np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
    colours: Array = curved.clip(0, 1).astype(np.float32)
    return colours


def _umap(rows: Tensor, *, seed: int) -> Tensor:
    """(n, D) → (n, 3)."""
    vectors = rows.float().numpy()
    fitted = np.zeros(len(vectors), dtype=bool)
    fitted[np.random.default_rng(seed).permutation(len(vectors))[:MAX_FITTED]] = True
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # dependencies of umap-learn about each other, and equal vectors
        # One thread and a seed: the same picture every time.
        mapper = import_module("umap").UMAP(
            n_components=3,
            n_neighbors=NEIGHBOURS,
            min_dist=MIN_DISTANCE,
            metric="cosine",
            random_state=seed,
            n_jobs=1,
        )
        placed = np.empty((len(vectors), 3), dtype=np.float32)
        placed[fitted] = mapper.fit_transform(vectors[fitted])
        if not fitted.all():
            placed[~fitted] = mapper.transform(vectors[~fitted])
    # A vector whose neighbours all lie apart from the rest has no place: it takes the middle.
    middle = np.nanmean(placed, axis=0)
    return torch.from_numpy(np.where(np.isfinite(placed), placed, middle))
