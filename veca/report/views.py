"""Snapshots of a stage → what the report shows of them: features and core paths from step to step.

An image is in the file once; the paths are drawn over references to it.
"""

import io
from base64 import b64encode
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from veca.train.snapshots import Snapshot
from veca.utils.chart import COLOURS, number, spread
from veca.utils.maps import Array, as_pixels, core_paths, joint_colours

MAX_STEPS = 6
WIDTH = 160  # of the drawings over an image, in units of their view box


class SnapshotViews(NamedTuple):
    """A table: an image per row, a step per column."""

    steps: list[str]
    rows: list[dict[str, Any]]
    width: int
    height: int
    depth: int
    legend: list[str]  # colours of the first cores
    left_out: int


def snapshot_views(snapshots: list[Snapshot], *, prefix: str) -> SnapshotViews | None:
    """`prefix` sets the names of the images apart from those of other stages."""
    shown = spread(comparable(snapshots), count=MAX_STEPS)
    if not shown:
        return None
    last = shown[-1]
    depth, _, cores, _ = last.places.shape
    size = (WIDTH, round(WIDTH * last.images.shape[1] / last.images.shape[2]))
    rows = []
    for place, key in enumerate(last.keys):
        maps = [_png(as_pixels(colours, last.grid)) for colours in step_colours(shown, place)]
        paths = [_paths(one, place, size) if depth else [] for one in shown]
        cells = list(zip(maps, paths, strict=True))
        photo = _png(last.images[place])
        rows.append({"id": f"{prefix}-{place}", "key": key, "photo": photo, "cells": cells})
    steps, colours = [number(one.step) for one in shown], list(COLOURS[:cores])
    return SnapshotViews(steps, rows, *size, depth, colours, len(snapshots) - len(shown))


def comparable(snapshots: list[Snapshot]) -> list[Snapshot]:
    """Those of the images, grid, width and cores of the last: a run may have gone on with other data."""

    def kind(one: Snapshot) -> tuple[object, ...]:
        return one.keys, one.images.shape, one.grid, one.basis.shape[-1], one.places.shape

    return [one for one in snapshots if kind(one) == kind(snapshots[-1])]


def step_colours(snapshots: list[Snapshot], image: int) -> list[Array]:
    """RGB (N, 3) of an image's patches at each step, in one embedding of all of them."""
    bases = [torch.from_numpy(one.basis[image]).float() for one in snapshots]
    axes, _ = torch.linalg.qr(torch.cat(bases).T)  # what they span: few numbers per patch, the same distances
    scores = [torch.from_numpy(one.scores[image]) for one in snapshots]
    parts = [part @ (basis @ axes) for part, basis in zip(scores, bases, strict=True)]
    return joint_colours(parts, method="pca")


def _paths(one: Snapshot, image: int, size: tuple[int, int]) -> list[dict[str, Any]]:
    """The first cores' paths, layer by layer, and where their numbers stand."""
    found, paths = [], core_paths(torch.from_numpy(one.places[:, image]), size=size)
    for path, colour in zip(paths, COLOURS, strict=False):
        points = [(f"{x:.1f}", f"{y:.1f}") for x, y in path]
        x, y = path[-1]
        side, shift = ("end", -5) if x > WIDTH - 12 else ("start", 5)
        label = f"{x + shift:.1f}", f"{max(y - 2, 9):.1f}", side
        line = {"points": " ".join(map(",".join, points)), "start": points[0], "end": points[-1]}
        found.append({**line, "label": label, "colour": colour})
    return found


def data_address(kind: str, picture: bytes) -> str:
    """An address that holds a whole picture."""
    return f"data:image/{kind};base64,{b64encode(picture).decode('ascii')}"


def _png(pixels: NDArray[np.uint8]) -> str:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG", optimize=True)
    return data_address("png", buffer.getvalue())
