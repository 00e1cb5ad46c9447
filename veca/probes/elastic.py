"""The elastic curve of a probe: its first quantity against the budget, beside what does not depend on it."""

import re
from html import escape
from itertools import groupby

from veca.probes.results import Cell, Results, Row, is_share
from veca.utils.chart import COLOURS, HEIGHT, WIDTH, Line, Points, line_chart

LEGEND_STEP = 18
STYLE = (
    "text { font: 12px system-ui, sans-serif; fill: #1b2530; } .tick { fill: #5a6673; font-size: 11px; } "
    ".grid { stroke: #e6ebf0; } .axis { stroke: #8a96a3; }"
)


def elastic_chart(results: Results) -> str:
    """The curve as HTML; empty text when nothing was measured at two budgets."""
    lines = elastic_lines(results)
    budgets = sorted({at for line in lines for at, _ in line.points})
    if not lines:
        return ""
    quantity = results.quantities[0]
    unit = f"{quantity} (%)" if is_share(quantity) else quantity
    return line_chart(lines, x_label="budget (active cores)", y_label=unit, x_ticks=budgets)


def elastic_picture(results: Results) -> str:
    """The same as an SVG file of its own, the legend below the chart."""
    svg, end, _ = elastic_chart(results).partition("</svg>")
    if not end:
        return ""
    lines = elastic_lines(results)
    inner = re.sub(r"^<svg ", f'<svg width="{WIDTH}" height="{HEIGHT}" ', svg) + end
    height = HEIGHT + LEGEND_STEP * len(lines) + 8
    legend = "".join(_legend_entry(line, HEIGHT + LEGEND_STEP * place) for place, line in enumerate(lines))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{2 * WIDTH}">'
        f'<style>{STYLE}</style><rect width="100%" height="100%" fill="white"/>{inner}{legend}</svg>\n'
    )


def elastic_lines(results: Results) -> list[Line]:
    """One line per model and resolution; what has a single value becomes a dashed level."""
    rows = [*results.rows(), *map(_paper_row, results.paper)]
    curves: dict[str, Points] = {}
    levels: dict[str, float] = {}
    for (name, resolution), group in groupby(rows, key=lambda row: (row.name, row.resolution)):
        title = name if resolution is None else f"{name}, {resolution} px"
        values = [(row.budget, _value(row, results)) for row in group]
        points = sorted((float(budget), value) for budget, value in values if budget is not None)
        if len(points) > 1:
            curves[title] = points
        else:
            levels[title] = values[0][1]
    budgets = [at for points in curves.values() for at, _ in points]
    if not budgets:
        return []
    flat = {title: [(min(budgets), value), (max(budgets), value)] for title, value in levels.items()}
    return [
        Line(title, points, COLOURS[place % len(COLOURS)], dashed=title in levels)
        for place, (title, points) in enumerate({**curves, **flat}.items())
    ]


def _paper_row(cell: Cell) -> Row:
    return Row(cell.name, cell.budget, cell.resolution, cell.values)


def _value(row: Row, results: Results) -> float:
    quantity = results.quantities[0]
    return row.values[quantity] * (100 if is_share(quantity) else 1)


def _legend_entry(line: Line, y: float) -> str:
    dash = ' stroke-dasharray="6 4"' if line.dashed else ""
    return (
        f'<line x1="72" x2="96" y1="{y}" y2="{y}" stroke="{line.colour}" stroke-width="3"{dash}/>'
        f'<text x="104" y="{y + 4}">{escape(line.name)}</text>'
    )
