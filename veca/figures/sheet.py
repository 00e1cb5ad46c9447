"""Figures on paper: tiles in rows, and files, PNG or SVG as their names say, written whole or not at all."""

from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from veca.utils.chart import COLOURS, save_figure
from veca.utils.files import atomic_path, check_writable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg")
RAMP = "viridis"  # even in lightness, and told apart with any colour vision
PATH_RAMP = "viridis_r"  # the last layer dark on a faded picture
TILE = 1.5  # inches
NUMBERED = 16  # cores at most, for numbers at their paths


class Tile(NamedTuple):
    """A picture (rows, cols, 3), or values (rows, cols) that the scale of their row colours."""

    pixels: NDArray[Any]
    marks: NDArray[np.float32] | None = None  # (K, 2): x and y as shares of the tile
    paths: NDArray[np.float32] | None = None  # (C, L, 2) likewise: places of cores, layer by layer


class TileRow(NamedTuple):
    """Tiles beside a label; `scale` names what their values, or the colours of their paths, are."""

    label: str
    tiles: Sequence[Tile | None]  # None stays empty, as does what a short row lacks
    scale: str = ""
    limits: tuple[float, float] | None = None  # of the scale; by default those of the values
    ramp: str = RAMP


def check_out(out: Path) -> None:
    """Refuse a name no picture can have, before any work."""
    if out.suffix.lower() not in SUFFIXES or out.is_dir():
        raise ValueError(
            f"out must be a file that ends in .png or .svg; got {out}. Try {out.with_suffix('.png')}."
        )
    check_writable(out.parent)


def save(figure: "Figure", out: Path) -> None:
    """Write a figure as its suffix says, and say where it is."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(out) as path:
        save_figure(figure, path, kind=out.suffix.lower().removeprefix("."))
    print(out)


def draw_sheet(
    rows: list[TileRow], *, title: str, columns: list[str], note: str = "", side: float = TILE
) -> "Figure":
    """Tiles in rows and columns, with titles above the first row and a colour bar beside each scale."""
    from matplotlib.figure import Figure

    left, right, top, bottom = 0.55, 0.75, 0.62, 0.35 if note else 0.1
    width, height = left + right + side * len(columns), top + bottom + side * len(rows)
    figure = Figure(figsize=(width, height))
    figure.subplots_adjust(left / width, bottom / height, 1 - right / width, 1 - top / height, 0.05, 0.05)
    axes = figure.subplots(len(rows), len(columns), squeeze=False)
    figure.suptitle(title, x=left / width, y=1 - 0.12 / height, ha="left", va="top", fontsize=11)
    figure.text(left / width, 0.1 / height, note, fontsize=7.5, color="0.35")
    for row, cells in zip(rows, axes, strict=True):
        _draw_row(figure, row, list(cells))
    for name, cell in zip(columns, axes[0], strict=True):
        cell.set_title(name, fontsize=8.5, pad=3)
    return figure


def ramp_colours(count: int) -> list[str]:
    """Colours for ordered things, dark to light, without the palest."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    return [to_hex(colormaps[RAMP](place)) for place in np.linspace(0, 0.85, count)]


def _draw_row(figure: "Figure", row: TileRow, axes: "list[Axes]") -> None:
    values = [tile.pixels.ravel() for tile in row.tiles if tile is not None and tile.pixels.ndim == 2]
    # The outermost hundredth shall not take the contrast from the rest.
    ends = np.quantile(np.concatenate(values), (0.01, 0.99)) if values else (0, 1)
    low, high = row.limits or (ends[0], max(ends[1], ends[0] + 1e-9))
    for tile, axis in zip_longest(row.tiles, axes):
        axis.set(xticks=[], yticks=[])
        axis.spines[:].set_visible(False)
        if tile is not None:
            _draw_tile(axis, tile, low, high)
    axes[0].set_ylabel(row.label, fontsize=8.5)
    if row.scale:
        _add_bar(figure, axes[-1], low, high, row)


def _draw_tile(axis: "Axes", tile: Tile, low: float, high: float) -> None:
    pixels, ramp = tile.pixels, RAMP
    if tile.paths is not None:  # the picture is only behind them
        pixels, ramp, low, high = 255 - (255 - pixels.mean(-1)) * 0.45, "gray", 0, 255
    axis.imshow(pixels, cmap=ramp, vmin=low, vmax=high, extent=(0, 1, 1, 0), interpolation="nearest")
    if tile.marks is not None:
        x, y = tile.marks.T
        axis.scatter(x, y, marker="+", s=60, c="black", linewidths=2.6)
        axis.scatter(x, y, marker="+", s=50, c="white", linewidths=1.3)
    if tile.paths is not None:
        _draw_paths(axis, tile.paths)
    axis.set(xlim=(0, 1), ylim=(1, 0))


def _draw_paths(axis: "Axes", paths: NDArray[np.float32]) -> None:
    """A dot per layer, light to dark, core 0 in a ring; few cores have their numbers."""
    (x, y), layers = paths.transpose(2, 0, 1), np.tile(np.arange(paths.shape[1]), (len(paths), 1))
    axis.plot(x.T, y.T, color="0.25", linewidth=0.6, zorder=2)
    axis.scatter(x, y, c=layers, cmap=PATH_RAMP, s=9, linewidths=0, zorder=3)
    ring = axis.scatter(x[:1, -1], y[:1, -1], s=60, facecolors="none", linewidths=1.5, zorder=4)
    ring.set_edgecolor(COLOURS[1])
    for core, place in enumerate(paths[:, -1] if len(paths) <= NUMBERED else ()):
        axis.annotate(str(core), place, xytext=(3, 3), textcoords="offset points", fontsize=6)


def _add_bar(figure: "Figure", axis: "Axes", low: float, high: float, row: TileRow) -> None:
    """A colour bar beside a row, outside of it."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize
    from matplotlib.ticker import MaxNLocator

    box, width = axis.get_position(), figure.get_figwidth()
    place = (box.x1 + 0.12 / width, box.y0 + 0.1 * box.height, 0.08 / width, 0.8 * box.height)
    bar = figure.colorbar(ScalarMappable(Normalize(low, high), row.ramp), cax=figure.add_axes(place))
    if row.limits is not None:  # whole numbers, as layers
        bar.ax.yaxis.set_major_locator(MaxNLocator(integer=True))
    bar.ax.tick_params(labelsize=6, length=2)
    bar.set_label(row.scale, fontsize=7)
