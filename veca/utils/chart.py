"""Numbers → charts of lines and bars, in colours that colour-blind readers can tell apart.

Figures are objects of their own (no pyplot, no global state). matplotlib loads when the first one is drawn:
whoever imports this module may never draw.
"""

import io
import math
import warnings
from collections.abc import Iterator, Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

T = TypeVar("T")
Points = list[tuple[float, float]]  # (x, y)

# Okabe and Ito's palette, yellow last: it is faint on white.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#f0e442")
# What others are measured against has one colour in every chart, outside of the palette.
BASELINES = {"constant": "#666666", "raw pixels": "#999933", "random weights": "#882255"}
MAX_POINTS = 400  # a longer line is averaged down to this many
MAX_MARKED = 60  # up to this many points get a dot
DOTS_PER_INCH = 200
_WIDE = (4.8, 2.6)  # inches, of a chart that stands alone


class Line(NamedTuple):
    """A named line; `dashed` sets a reference apart from what is measured against it."""

    name: str
    points: Points
    error: list[float] | None = None
    colour: str | None = None  # by default the baseline's of this name, or the next of the palette
    dashed: bool = False
    marker: str | None = None  # by default dots on solid lines


class Panel(NamedTuple):
    """Lines over common axes."""

    title: str
    lines: list[Line]
    x_label: str
    y_label: str
    log: str = ""  # "x", "y" or "xy"
    x_ticks: Sequence[float] = ()
    from_zero: bool = False


def line_chart(
    lines: list[Line], *, x_label: str, y_label: str, from_zero: bool = False, x_ticks: Sequence[float] = ()
) -> str:
    """Lines over a common axis as SVG; empty text when no line has a finite point."""
    lines = [line for line in lines if finite(line.points)]
    panel = Panel("", lines, x_label, y_label, x_ticks=x_ticks, from_zero=from_zero)
    return to_svg(draw_panels([panel], columns=1, size=_WIDE)) if lines else ""


def bar_chart(counts: dict[str, int], *, x_label: str, y_label: str) -> str:
    """One bar per entry with its share above it, as SVG; empty text when nothing was counted."""
    from matplotlib.figure import Figure

    if not counts:
        return ""
    figure = Figure(figsize=_WIDE, layout="constrained")
    axis, total = figure.subplots(), sum(counts.values())
    bars = axis.bar(range(len(counts)), list(counts.values()), width=0.6, color=COLOURS[0], zorder=2)
    axis.bar_label(bars, [f"{100 * count / total:.0f} %" for count in counts.values()], fontsize=7)
    _style(axis, "", x_label, y_label)
    axis.set_xticks(range(len(counts)), list(counts))
    axis.set_xlim(-1, len(counts))
    return to_svg(figure)


def draw_panels(
    panels: list[Panel],
    *,
    columns: int,
    title: str = "",
    note: str = "",
    size: tuple[float, float] = (3.6, 2.9),
) -> "Figure":
    """Panels of `size` inches; one legend below for all of them."""
    from matplotlib.figure import Figure

    number = -(-len(panels) // columns)
    figure = Figure(figsize=(size[0] * columns, size[1] * number + 0.5), layout="constrained")
    figure.suptitle(plain(title), fontsize=12)
    axes = figure.subplots(number, columns, squeeze=False).ravel()
    legend: dict[tuple[str, int], Any] = {}
    palette = cycle(COLOURS)
    for axis, panel in zip(axes, panels, strict=False):
        _draw_panel(axis, panel, legend, palette)
    handles = [handle for (name, _), handle in legend.items() if name]
    longest = max((len(name) for name, _ in legend), default=0)
    fitting = int(72 * figure.get_figwidth() / (40 + 4.2 * longest))  # points, of a handle and per letter
    figure.legend(
        handles,
        [handle.get_label() for handle in handles],
        title=note,
        loc="outside lower center",
        ncols=max(1, min(8, fitting)),
        fontsize=7.5,
        title_fontsize=7.5,
        frameon=False,
    )
    for axis in axes[len(panels) :]:
        axis.set_visible(False)
    return figure


def save_figure(figure: "Figure", file: "Path | io.StringIO", *, kind: str) -> None:
    """The same figure gives the same bytes."""
    from matplotlib import rc_context

    metadata = {"Date": None} if kind == "svg" else None
    with rc_context({"svg.hashsalt": "veca"}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # a name in a script that the font lacks
        figure.savefig(file, format=kind, dpi=DOTS_PER_INCH, metadata=metadata)


def to_svg(figure: "Figure") -> str:
    """SVG whose words are text: small, and in the reader's font where ours lacks a script."""
    from matplotlib import rc_context

    buffer = io.StringIO()
    with rc_context({"svg.fonttype": "none"}):
        save_figure(figure, buffer, kind="svg")
    return buffer.getvalue()


def plain(words: str) -> str:
    """Anybody's text as it is: between two dollar signs matplotlib would look for formulas."""
    return words.replace("$", r"\$")


def finite(points: Points) -> Points:
    return [point for point in points if math.isfinite(point[1])]


def thin(points: Points) -> Points:
    """At most MAX_POINTS points, each the mean of a stretch of the line."""
    size = math.ceil(len(points) / MAX_POINTS)
    if size <= 1:
        return points
    parts = [points[start : start + size] for start in range(0, len(points), size)]
    return [(sum(x for x, _ in part) / len(part), sum(y for _, y in part) / len(part)) for part in parts]


def spread(things: Sequence[T], *, count: int) -> list[T]:
    """At most `count`, evenly spread, the first and the last among them."""
    places = np.linspace(0, len(things) - 1, min(count, len(things))).round()
    return [things[int(place)] for place in places]


def number(value: float) -> str:
    """Four significant digits, with a comma between thousands."""
    return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"


def _draw_panel(
    axis: "Axes", panel: Panel, legend: dict[tuple[str, int], Any], palette: Iterator[str]
) -> None:
    """A name has one colour and one place in the legend, unless it is in a panel twice."""
    names = [line.name for line in panel.lines]
    for place, line in enumerate(panel.lines):
        key = line.name, names[:place].count(line.name)
        baseline = BASELINES.get(line.name.partition(",")[0])  # `NAME` or `NAME, 64 px`
        known = legend[key].lines[0].get_color() if key in legend else None
        points = line.points if line.error else thin(finite(line.points))
        missing = len(line.points) - len(finite(line.points))
        drawn = axis.errorbar(
            [x for x, _ in points],
            [y for _, y in points],
            yerr=line.error,
            color=line.colour or baseline or known or next(palette),
            linestyle="--" if line.dashed else "-",
            marker=line.marker if line.marker is not None else "o" * (not line.dashed),
            markersize=3 if len(points) <= MAX_MARKED else 0,
            linewidth=1.4,
            capsize=2,
            label=plain(line.name) + f" ({missing} values not finite)" * bool(missing),
        )
        legend.setdefault(key, drawn)
    _style(axis, panel.title, panel.x_label, panel.y_label)
    for side in panel.log:
        getattr(axis, f"set_{side}scale")("log", base=2 if side == "x" else 10)
    if panel.x_ticks:
        axis.set_xticks(panel.x_ticks, [f"{tick:g}" for tick in panel.x_ticks])
        axis.minorticks_off()
    if panel.from_zero:
        axis.set_ylim(bottom=0)


def _style(axis: "Axes", title: str, x_label: str, y_label: str) -> None:
    axis.set_title(plain(title), fontsize=10)
    axis.set_xlabel(plain(x_label), fontsize=8)
    axis.set_ylabel(plain(y_label), fontsize=8)
    axis.tick_params(labelsize=7)
    axis.locator_params(nbins=6)
    axis.ticklabel_format(axis="y", useOffset=False)
    axis.grid(color="0.9", linewidth=0.6)
    axis.spines[["top", "right"]].set_visible(False)
