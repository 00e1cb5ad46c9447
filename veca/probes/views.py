"""Which pixels of an image a backbone sees, and where the labels of those pixels lie.

Classification sees one view: short side to 9/8 of the resolution R, centre crop of R × R (method, section 6).

Dense probes see windows. The short side becomes R and the long one follows; windows of R × R then cover the
image, each overlapping the last by a third or more. Heads are trained on these windows: features are made
once, so there are no random crops. Judged images are covered the same way ("slide"), or are seen whole,
the long side rounded to patches ("whole").
"""

import math
from dataclasses import asdict, dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from veca.data.decode import BadImage, Pixels, decode_pixels
from veca.data.views import centre_view, render_pixels
from veca.probes.datasets.splits import Item

LABELS_PER_PATCH = 4  # along a side: heads learn from every fourth pixel of a patch of 16


class Window(NamedTuple):
    """A rectangle of the resized image, in its pixels."""

    width: int  # of the resized image
    height: int
    left: int
    top: int
    columns: int  # of the window
    rows: int


class View(NamedTuple):
    """What a backbone sees of an item; `target` on the grid of labels when heads learn from this view."""

    pixels: NDArray[np.uint8]  # (3, rows, columns)
    window: Window
    target: NDArray[np.generic] | None = None


@dataclass(frozen=True)
class CentreView:
    """One centre crop of R × R, the validation view of training."""

    resolution: int
    dense: ClassVar[bool] = False  # patches are of no use

    def views(self, item: Item) -> list[View]:
        pixels = _decode(item)
        view = centre_view(size=pixels.size, resolution=self.resolution)
        side = view.resolution
        window = Window(view.width, view.height, view.left, view.top, side, side)
        return [View(render_pixels(pixels, view), window)]

    def rule(self) -> dict[str, object]:
        """Everything that decides the views, as JSON."""
        return {"view": "centre", "resolution": self.resolution}


@dataclass(frozen=True)
class Windows:
    """Windows of R × R that cover the image, or one window of all of it; with the labels to learn from."""

    resolution: int
    patch_size: int
    whole: bool = False
    labelled: bool = False
    dense: ClassVar[bool] = True

    def views(self, item: Item) -> list[View]:
        pixels = _decode(item)
        windows = cover(pixels.size, self.resolution, patch_size=self.patch_size, whole=self.whole)
        resized = _resize(pixels, width=windows[0].width, height=windows[0].height)
        return [View(_cut(resized, window), window, self._target(item, window)) for window in windows]

    def rule(self) -> dict[str, object]:
        return {"view": "windows", "labels": LABELS_PER_PATCH, **asdict(self)}

    def _target(self, item: Item, window: Window) -> NDArray[np.generic] | None:
        if not self.labelled:
            return None
        assert isinstance(item.target, np.ndarray)
        sides = (LABELS_PER_PATCH * side // self.patch_size for side in (window.rows, window.columns))
        return sample_target(item.target, window, grid=(next(sides), next(sides)))


Viewer = CentreView | Windows


def cover(size: tuple[int, int], resolution: int, *, patch_size: int, whole: bool) -> list[Window]:
    """The windows of an image of `size` = (width, height)."""
    short, long = min(size), max(size)
    step = patch_size if whole else 1
    stretched = max(resolution, round(long * resolution / short / step) * step)
    width, height = (stretched, resolution) if size[0] >= size[1] else (resolution, stretched)
    if whole:
        return [Window(width, height, 0, 0, width, height)]
    extra = stretched - resolution
    number = 1 + math.ceil(extra / (resolution * 2 / 3))
    starts = [round(place * extra / max(1, number - 1)) for place in range(number)]
    corners = [(start, 0) if width > height else (0, start) for start in starts]
    return [Window(width, height, left, top, resolution, resolution) for left, top in corners]


def sample_target(
    target: NDArray[np.generic], window: Window, *, grid: tuple[int, int]
) -> NDArray[np.generic]:
    """The target nearest to the centres of `grid` = (rows, columns) equal cells of a window."""
    rows = window.top + (np.arange(grid[0]) + 0.5) * window.rows / grid[0]
    columns = window.left + (np.arange(grid[1]) + 0.5) * window.columns / grid[1]
    height, width = target.shape
    rows = np.minimum(rows * height / window.height, height - 1).astype(np.int64)
    columns = np.minimum(columns * width / window.width, width - 1).astype(np.int64)
    return np.ascontiguousarray(target[rows[:, None], columns])


def _decode(item: Item) -> Pixels:
    try:
        return decode_pixels(item.image)
    except BadImage as error:
        raise ValueError(f"{item.name}: {error}. Replace or delete it.") from None


def _resize(pixels: Pixels, *, width: int, height: int) -> NDArray[np.uint8]:
    """(height, width, 4): bicubic, antialiased."""
    if pixels.size == (width, height):
        return pixels.rgb
    source = torch.from_numpy(pixels.rgb)[None].permute(0, 3, 1, 2)
    resized = F.interpolate(source, size=(height, width), mode="bicubic", antialias=True)
    rgb: NDArray[np.uint8] = resized.permute(0, 2, 3, 1)[0].numpy()
    return rgb


def _cut(rgb: NDArray[np.uint8], window: Window) -> NDArray[np.uint8]:
    bottom, right = window.top + window.rows, window.left + window.columns
    part = rgb[window.top : bottom, window.left : right]
    return np.ascontiguousarray(part.transpose(2, 0, 1))
