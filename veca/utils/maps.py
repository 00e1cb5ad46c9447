"""Features and traces → arrays to draw. Pure functions: tensors in, numpy arrays out.

Shapes: N patches of a grid (rows, cols), row-major, C cores, L layers, D width, V views of one image.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

Array = NDArray[np.float32]

CLIPPED = 0.02  # share of the patches that may lie outside the colour range, at either end


def pca_colours(views: list[Tensor]) -> list[Array]:
    """Dense features (N, D) of one or more views → RGB (N, 3) in [0, 1] for each.

    The three leading principal components of all views together, so that a colour means the same in each of
    them: two budgets can be compared by eye.
    """
    colours = stretch(principal_scores(torch.cat(views)))
    return [part.float().numpy() for part in colours.split([len(view) for view in views])]


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


def similarity_map(patches: Tensor, patch: int) -> Array:
    """Cosine between one patch and all of them: (N, D) → (N,) in [-1, 1]."""
    return cosine_map(patches, patches[patch])


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


def num_interactions(num_patches: int, budget: int) -> tuple[int, int]:
    """Query–key pairs of one layer: with cores, 2NC + C², and with full attention, N²."""
    return 2 * num_patches * budget + budget**2, num_patches**2


def _fix_signs(directions: Tensor) -> Tensor:
    """A principal direction has no sign of its own: make its largest entry positive."""
    largest = directions.gather(1, directions.abs().argmax(1, keepdim=True))
    return directions * torch.where(largest < 0, -1.0, 1.0)
