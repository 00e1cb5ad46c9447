"""Snapshots of a stage → what the report shows of them: features and core paths from step to step.

Pictures are inside the file. An image is there once; the paths are drawn over references to it.
"""

import io
from base64 import b64encode
from typing import Any, NamedTuple

import numpy as np
import torch
from markupsafe import Markup
from numpy.typing import NDArray
from PIL import Image

from veca.train.snapshots import Snapshot
from veca.utils.chart import COLOURS, Line, legend, number
from veca.utils.maps import Array, core_paths, joint_colours

MAX_STEPS = 6
NUM_CORES = len(COLOURS)
WIDTH = 160  # of the drawings over an image, in units of their view box


class SnapshotViews(NamedTuple):
    """A table: an image per row, a step per column."""

    steps: list[str]
    rows: list[dict[str, Any]]
    width: int
    height: int
    depth: int
    num_cores: int
    legend: Markup
    left_out: int


def snapshot_views(snapshots: list[Snapshot], *, prefix: str) -> SnapshotViews | None:
    """`prefix` sets the names of the images apart from those of other stages."""
    shown = spread(comparable(snapshots))
    if not shown:
        return None
    last = shown[-1]
    depth, _, cores, _ = last.places.shape
    size = (WIDTH, round(WIDTH * last.images.shape[1] / last.images.shape[2]))
    rows = []
    for place, key in enumerate(last.keys):
        maps = [_png(_pixels(colours, last.grid)) for colours in step_colours(shown, place)]
        paths = [_paths(one, place, size) if depth else [] for one in shown]
        cells = list(zip(maps, paths, strict=True))
        rows.append(
            {"id": f"{prefix}-{place}", "key": key, "photo": _png(last.images[place]), "cells": cells}
        )
    count = min(cores, NUM_CORES)
    names = legend([Line(f"core {core}", [], COLOURS[core]) for core in range(count)]) if depth else ""
    steps = [number(one.step) for one in shown]
    return SnapshotViews(steps, rows, *size, depth, count, Markup(names), len(snapshots) - len(shown))


def comparable(snapshots: list[Snapshot]) -> list[Snapshot]:
    """Those of the images, grid, width and cores of the last: a run may have gone on with other data."""

    def kind(one: Snapshot) -> tuple[object, ...]:
        return one.keys, one.images.shape, one.grid, one.basis.shape[-1], one.places.shape

    return [one for one in snapshots if kind(one) == kind(snapshots[-1])]


def spread(snapshots: list[Snapshot], *, count: int = MAX_STEPS) -> list[Snapshot]:
    """At most `count`, evenly spread, the first and the last among them."""
    places = np.linspace(0, len(snapshots) - 1, min(count, len(snapshots)))
    return [snapshots[place] for place in places.round().astype(int)]


def step_colours(snapshots: list[Snapshot], image: int) -> list[Array]:
    """RGB (N, 3) of an image's patches at each step, in one embedding of all of them."""
    bases = [torch.from_numpy(one.basis[image]).float() for one in snapshots]
    axes, _ = torch.linalg.qr(torch.cat(bases).T)  # what they span: few numbers per patch, the same distances
    scores = [torch.from_numpy(one.scores[image]) for one in snapshots]
    parts = [part @ (basis @ axes) for part, basis in zip(scores, bases, strict=True)]
    return joint_colours(parts, method="pca")


def _paths(one: Snapshot, image: int, size: tuple[int, int]) -> list[dict[str, Any]]:
    """The first cores' paths, layer by layer, and where their numbers stand."""
    found = []
    for path, colour in zip(
        core_paths(torch.from_numpy(one.places[:, image]), size=size), COLOURS, strict=False
    ):
        points = [(f"{x:.1f}", f"{y:.1f}") for x, y in path]
        x, y = path[-1]
        side, shift = ("end", -5) if x > WIDTH - 12 else ("start", 5)
        label = f"{x + shift:.1f}", f"{max(y - 2, 9):.1f}", side
        line = {"points": " ".join(map(",".join, points)), "start": points[0], "end": points[-1]}
        found.append({**line, "label": label, "colour": colour})
    return found


def _pixels(colours: Array, grid: tuple[int, int]) -> NDArray[np.uint8]:
    return (colours.reshape(*grid, 3) * 255).round().astype(np.uint8)


def _png(pixels: NDArray[np.uint8]) -> str:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG", optimize=True)
    return "data:image/png;base64," + b64encode(buffer.getvalue()).decode("ascii")
