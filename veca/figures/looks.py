"""What the analysis takes from a model and a folder of images, one image at a time.

Shapes: L layers, C cores, N patches, D width.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from veca.data.decode import Pixels, decode_pixels
from veca.data.folders import read_named
from veca.data.views import View, centre_view, draw_view, render_pixels, sample_generator
from veca.figures.inputs import find_images, trace_images
from veca.model import Veca
from veca.probes.datasets.pairs import FolderPairs, Meaning, Pair
from veca.probes.datasets.splits import Item
from veca.probes.features import LABELS_PER_PATCH, Window, sample_target

T = TypeVar("T")


class Look(NamedTuple):
    """What the cores do with one image at one budget."""

    cores: Tensor  # (L, C, D), the residual stream after each layer
    maps: Tensor  # (L, C, N), contributions of the patches
    places: Tensor  # (L, C, 2) in [-1, 1]²
    grid: tuple[int, int]


class Scene(NamedTuple):
    """An image with its mask, if there is one."""

    name: str
    pixels: Pixels
    mask: NDArray[np.generic] | None

    def plain(self, resolution: int) -> View:
        return centre_view(size=self.pixels.size, resolution=resolution)

    def augmented(self, resolution: int, *, number: int, seed: int) -> View:
        """A training view, the same one for every model and budget."""
        rng = sample_generator(seed, number, self.name)
        return draw_view(rng, size=self.pixels.size, resolution=resolution)

    def labels(self, view: View, grid: tuple[int, int]) -> NDArray[np.int64]:
        """Mask values at LABELS_PER_PATCH² points of each patch: (N, points)."""
        assert self.mask is not None
        window = Window(view.width, view.height, view.left, view.top, view.resolution, view.resolution)
        per, (rows, cols) = LABELS_PER_PATCH, grid
        found = sample_target(self.mask, window, grid=(per * rows, per * cols)).astype(np.int64)
        return found.reshape(rows, per, cols, per).swapaxes(1, 2).reshape(rows * cols, per * per)


def look(model: Veca, scene: Scene, views: list[View], *, budget: int) -> list[Look]:
    """What the cores do with each of the views, which have one resolution."""
    images = torch.from_numpy(np.stack([render_pixels(scene.pixels, view) for view in views]))
    after: list[Tensor] = []
    with ExitStack() as hooks:
        for block in model.blocks:
            handle = block.register_forward_hook(
                lambda _, __, out: after.append(out[:, :budget].float().cpu())
            )
            hooks.callback(handle.remove)
        features, places, contributions = trace_images(model, images, budget=budget)
    cores = torch.stack(after)
    return [Look(cores[:, i], contributions[:, i], places[:, i], features.grid) for i in range(len(views))]


def open_scenes(images: str, masks: Path | None, *, count: int) -> Iterator[Scene]:
    """`count` images of a folder, evenly spread over their names; with masks, those of the same names."""
    if masks is None:
        paths = find_images(images)
        items: Iterator[Item] = (Item(str(path), read_named(path), 0) for path in _spread(paths, count))
    else:
        folders = Pair(str(Path(images).absolute()), str(masks.absolute()))
        split = FolderPairs({"all": folders}, Meaning())(Path()).splits["all"]
        items = (split[place] for place in _spread(list(range(len(split))), count))
    for item in items:
        mask = item.target if isinstance(item.target, np.ndarray) else None
        yield Scene(item.name, decode_pixels(item.image), mask)


def _spread(things: list[T], count: int) -> list[T]:
    places = np.linspace(0, len(things) - 1, min(count, len(things))).round().astype(int)
    return [things[place] for place in places]
