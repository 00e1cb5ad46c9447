"""Numbers → SVG: line charts and bar charts, in colours that colour-blind readers can tell apart.

Positions are in the units of the view box; the page scales it to the width there is.
"""

import math
from collections.abc import Sequence
from html import escape
from itertools import cycle
from typing import NamedTuple

Points = list[tuple[float, float]]  # (x, y)

# Okabe and Ito's palette, yellow last: it is faint on white.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#f0e442")
# What others are measured against has one colour in every chart, outside of the palette.
BASELINES = {"constant": "#666666", "raw pixels": "#999933", "random weights": "#882255"}
WIDTH, HEIGHT = 480, 280
LEFT, RIGHT, TOP, BOTTOM = 72, 12, 12, 44
MAX_POINTS = 400  # a longer line is averaged down to this many
MAX_MARKED = 60  # up to this many points get a dot with a tooltip


class Line(NamedTuple):
    """A named line; `dashed` sets a reference apart from what is measured against it."""

    name: str
    points: Points
    colour: str = COLOURS[0]
    dashed: bool = False


class Scale(NamedTuple):
    """Data → view box, along one axis."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 1)


def line_chart(
    lines: list[Line], *, x_label: str, y_label: str, from_zero: bool = False, x_ticks: Sequence[float] = ()
) -> str:
    """Lines over a common axis; empty text when no line has a finite point."""
    lines = [line for line in map(_drawable, lines) if line.points]
    if not lines:
        return ""
    x = _fit([point[0] for line in lines for point in line.points], LEFT, WIDTH - RIGHT)
    values = [point[1] for line in lines for point in line.points] + [0.0] * from_zero
    y = _fit(values, HEIGHT - BOTTOM, TOP, margin=0.0 if from_zero else 0.05)
    places = x_ticks or ticks(x.low, x.high)
    axes = "".join(_text(x(at), HEIGHT - BOTTOM + 15, number(at)) for at in places) + _y_axis(y)
    drawn = "".join(_draw(line, x, y) for line in lines)
    return _frame(axes + drawn, x_label, y_label) + legend(lines)


def bar_chart(counts: dict[str, int], *, x_label: str, y_label: str) -> str:
    """One bar per entry with its share above it; empty text when nothing was counted."""
    total = sum(counts.values())
    if not total:
        return ""
    y = _fit([0.0, max(counts.values()) * 1.12], HEIGHT - BOTTOM, TOP)
    slot = (WIDTH - LEFT - RIGHT) / len(counts)
    body = _y_axis(y)
    for place, (name, count) in enumerate(counts.items()):
        middle, top = round(LEFT + slot * (place + 0.5), 1), y(count)
        width = round(min(slot * 0.7, 60), 1)
        body += f'<rect x="{middle - width / 2:.1f}" y="{top}" width="{width}" fill="{COLOURS[0]}" '
        body += f'height="{HEIGHT - BOTTOM - top:.1f}"><title>{escape(name)}: {count}</title></rect>'
        body += _text(middle, top - 4, f"{100 * count / total:.0f} %")
        body += _text(middle, HEIGHT - BOTTOM + 15, name)
    return _frame(body, x_label, y_label)


def coloured(lines: list[Line]) -> list[Line]:
    """Lines in the colours of the palette, in order; baselines, `NAME` or `NAME, 64 px`, in their own."""
    names = [line.name.partition(",")[0] for line in lines]
    palette = cycle(COLOURS)
    return [
        line._replace(colour=BASELINES.get(name) or next(palette))
        for line, name in zip(lines, names, strict=True)
    ]


def legend(lines: list[Line]) -> str:
    items = ""
    for line in lines:
        style = "dashed" if line.dashed else "solid"
        items += f'<span><i style="border-top:3px {style} {line.colour}"></i>{escape(line.name)}</span>'
    return f'<div class="legend">{items}</div>'


def finite(points: Points) -> Points:
    return [point for point in points if math.isfinite(point[1])]


def thin(points: Points) -> Points:
    """At most MAX_POINTS points, each the mean of a stretch of the line."""
    size = math.ceil(len(points) / MAX_POINTS)
    if size <= 1:
        return points
    parts = [points[start : start + size] for start in range(0, len(points), size)]
    return [(sum(x for x, _ in part) / len(part), sum(y for _, y in part) / len(part)) for part in parts]


def number(value: float) -> str:
    """Four significant digits, with a comma between thousands."""
    return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"


def ticks(low: float, high: float, *, count: int = 6) -> list[float]:
    """About `count` round numbers from `low` to `high`: 1, 2, 2.5 or 5 times a power of ten apart."""
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(place * step, 12) for place in range(first, last + 1)]


def _fit(values: list[float], start: float, end: float, *, margin: float = 0.0) -> Scale:
    low, high = min(values), max(values)
    if high - low <= 1e-9 * max(abs(low), abs(high)):  # a flat line runs in the middle
        room = abs(low) * 0.1 or 1.0
        low, high = low - room, high + room
    room = (high - low) * margin
    return Scale(low - room, high + room, start, end)


def _drawable(line: Line) -> Line:
    """Finite points, not too many; the legend says what is missing."""
    points = finite(line.points)
    missing = len(line.points) - len(points)
    name = f"{line.name} ({missing} values not finite)" if missing else line.name
    return line._replace(name=name, points=thin(points))


def _draw(line: Line, x: Scale, y: Scale) -> str:
    placed = [(x(at), y(value)) for at, value in line.points]
    path = " ".join(f"{a},{b}" for a, b in placed)
    dash = ' stroke-dasharray="6 4"' if line.dashed else ""
    svg = f'<polyline points="{path}" fill="none" stroke="{line.colour}" stroke-width="2"{dash}/>'
    if len(placed) <= MAX_MARKED and not line.dashed:
        for (a, b), (at, value) in zip(placed, line.points, strict=True):
            tip = escape(f"{line.name}, {number(at)}: {number(value)}")
            svg += f'<circle cx="{a}" cy="{b}" r="3" fill="{line.colour}"><title>{tip}</title></circle>'
    return svg


def _y_axis(y: Scale) -> str:
    svg = ""
    for at in ticks(y.low, y.high):
        svg += f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(at)}" y2="{y(at)}" class="grid"/>'
        svg += _text(LEFT - 6, y(at) + 4, number(at), anchor="end")
    return svg


def _frame(body: str, x_label: str, y_label: str) -> str:
    floor, middle = HEIGHT - BOTTOM, (TOP + HEIGHT - BOTTOM) / 2
    axis = f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{floor}" y2="{floor}" class="axis"/>'
    labels = _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, x_label, kind="label")
    turned = f'<g transform="rotate(-90 14 {middle})">{_text(14, middle, y_label, kind="label")}</g>'
    name = escape(f"{y_label} over {x_label}", quote=True)
    opening = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{name}">'
    return f"{opening}{body}{axis}{labels}{turned}</svg>"


def _text(x: float, y: float, words: str, *, anchor: str = "middle", kind: str = "tick") -> str:
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" class="{kind}">{escape(words)}</text>'
