"""Vectors → colours: neighbours get like colours, for readers with any colour vision.

Vectors of several maps are embedded together, so that a colour means the same in all of them. The first of
the three dimensions becomes lightness, the second blue–yellow, the third green–red: a reader who cannot
tell red from green still sees the two that carry most. In plain RGB such a reader would lose one at random.
"""

import warnings
from importlib import import_module
from importlib.util import find_spec
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from veca.utils.extras import require_extra
from veca.utils.maps import Array, principal_scores, stretch

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
        warnings.simplefilter(
            "ignore"
        )  # of umap-learn's dependencies about each other, and about equal vectors
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
