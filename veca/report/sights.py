"""Snapshots of a stage → HTML: an image, its features and the paths of its cores, from step to step.

Pictures are inside the file. An image is there once; the paths are drawn over references to it.
"""

import io
from base64 import b64encode
from html import escape

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from veca.report.tables import html_table
from veca.train.snapshots import Snapshot
from veca.utils.chart import COLOURS, Line, legend, number
from veca.utils.maps import Array, core_paths, joint_colours

MAX_STEPS = 6
NUM_CORES = len(COLOURS)
WIDTH = 160  # of the drawings over an image, in units of their view box
NOTE = (
    "The same validation images after each validation, at the full budget. In colour: the three main "
    "directions of the patch features as lightness, blue to yellow and green to red. A row's steps share "
    "them, so a colour means the same in all of them, and patches of like colours look alike to the model. "
)
PATHS_NOTE = (
    "In grey, the core paths: where the first {count} cores sit at each layer, from the ring at layer 1 to "
    "the numbered dot at layer {depth}; core 0 is the global feature. "
)


def sights(snapshots: list[Snapshot], *, prefix: str) -> str:
    """The part of the report; `prefix` sets the names of its images apart from those of other stages."""
    shown = spread(comparable(snapshots))
    if not shown:
        return ""
    last = shown[-1]
    depth, _, cores, _ = last.places.shape
    rows = [["image", *(f"after {number(one.step)} steps" for one in shown)]]
    for place, key in enumerate(last.keys):
        name = f"{prefix}-{place}"
        cells = [_map(colours, last.grid) for colours in step_colours(shown, place)]
        if depth:
            cells = [cell + _paths(one, place, name) for cell, one in zip(cells, shown, strict=True)]
        rows.append([_photo(last.images[place], key, name), *cells])
    count = min(cores, NUM_CORES)
    lines = [Line(f"core {core}", [], COLOURS[core]) for core in range(count)]
    note = NOTE + (PATHS_NOTE.format(count=count, depth=depth) if depth else "")
    return (
        f'<h3>What the model sees, over time</h3><div class="sights">{html_table(rows)}</div>'
        f'{legend(lines) if depth else ""}<p class="note">{note}{_other(snapshots, shown)}</p>'
    )


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


def _map(colours: Array, grid: tuple[int, int]) -> str:
    pixels = (colours.reshape(*grid, 3) * 255).round().astype(np.uint8)
    return f'<img src="{_png(pixels)}" alt="feature map">'


def _photo(pixels: NDArray[np.uint8], key: str, name: str) -> str:
    size = f'width="{WIDTH}" height="{_height(pixels)}"'
    picture = f'<image id="{escape(name, quote=True)}" href="{_png(pixels)}" {size}/>'
    return f'{_svg(pixels, f"image {key}", picture)}<div class="note">{escape(key)}</div>'


def _paths(one: Snapshot, image: int, name: str) -> str:
    pixels = one.images[image]
    places = torch.from_numpy(one.places[:, image, :NUM_CORES])
    body = f'<use href="#{escape(name, quote=True)}" class="faded"/>'
    paths = core_paths(places, size=(WIDTH, _height(pixels)))
    for path, colour in zip(paths, COLOURS, strict=False):
        body += _path(path, colour)
    for core, path in enumerate(paths):  # above all lines
        x, y = path[-1]
        anchor, shift = ("end", -5) if x > WIDTH - 12 else ("start", 5)
        body += f'<text x="{x + shift:.1f}" y="{max(y - 2, 9):.1f}" text-anchor="{anchor}">{core}</text>'
    return _svg(pixels, f"core paths after {one.step} steps", body)


def _path(path: Array, colour: str) -> str:
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in path)
    (x0, y0), (x1, y1) = path[0], path[-1]
    open_shapes = f'<polyline points="{points}"/><circle cx="{x0:.1f}" cy="{y0:.1f}" r="4"/>'
    return (
        f'<g class="edge">{open_shapes}</g><g stroke="{colour}">{open_shapes}</g>'
        f'<circle cx="{x1:.1f}" cy="{y1:.1f}" r="2.5" fill="{colour}" class="end"/>'
    )


def _svg(pixels: NDArray[np.uint8], label: str, body: str) -> str:
    box = f"0 0 {WIDTH} {_height(pixels)}"
    return f'<svg viewBox="{box}" role="img" aria-label="{escape(label, quote=True)}">{body}</svg>'


def _height(pixels: NDArray[np.uint8]) -> int:
    height: int = round(WIDTH * pixels.shape[0] / pixels.shape[1])
    return height


def _png(pixels: NDArray[np.uint8]) -> str:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG", optimize=True)
    return "data:image/png;base64," + b64encode(buffer.getvalue()).decode("ascii")


def _other(snapshots: list[Snapshot], shown: list[Snapshot]) -> str:
    left_out = len(snapshots) - len(shown)
    return f"Snapshots in the run's folder that are not shown: {left_out}." if left_out else ""
