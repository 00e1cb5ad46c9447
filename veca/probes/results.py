"""What a probe leaves behind: one JSON for the report, a Markdown table for the reader, and a plot.

Beside what was measured stands what the paper measured on the same data (arXiv 2605.12491).

The JSON grows cell by cell while a probe runs, so an interrupted one goes on where it stopped.
"""

import json
import re
import statistics
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass, field
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Any

from veca.utils.chart import COLOURS, HEIGHT, WIDTH, Line, Points, line_chart
from veca.utils.files import write_text_atomic

FORMAT = "veca-probe"
VERSION = 2
CHECKPOINTS = "checkpoints"  # a run keeps its .ckpt there; what is known about it goes beside that folder
SHARES = ("accuracy", "top-1", "top-5", "mAP", "mIoU", "pixel accuracy", "δ<1.25")  # shown in percent
RATE = "learning rate"

# Accuracies and mIoU in percent, RMSE in metres. The columns are the datasets by the names they have here.
_CLASSIFY = """
model    budget IN1K     INv2      ReaL  Places365 Food101 CIFAR-10 CIFAR-100 SUN397
DINOv3-B      – 83.56    74.92     88.65 55.39     94.47   98.32   90.25    77.59
DINOv2-Reg-B  – 83.44    74.75     88.18 54.81     92.87   98.45   90.65    76.85
VECA-B       64 81.93    72.25     87.87 55.82     92.44   97.65   87.09    76.60
VECA-B        8 79.99    69.18     86.45 55.30     90.04   96.76   84.71    75.35
"""
_CLASSIFY_FINE = """
model    budget Cars  Aircraft VOC07 DTD   Caltech101 Pets  CUB   Flowers
DINOv3-B      – 93.32 81.97    73.99 80.32 92.65      96.54 89.82 99.69
DINOv2-Reg-B  – 90.62 70.78    84.22 79.20 93.86      95.97 89.52 99.67
VECA-B       64 91.84 74.47    71.64 77.01 92.08      95.67 88.02 99.35
VECA-B        8 90.18 70.72    70.47 75.80 91.98      95.12 87.00 98.98
"""
_DENSE = """
model    budget VOC12 Context-60 ADE20K COCO-Stuff COCO-Object Cityscapes NYUv2 KITTI
DINOv3-B      – 87.50 57.74     51.35  48.41      64.65       71.06      .3684 2.6915
DINOv2-Reg-B  – 84.23 55.02     48.92  45.42      61.77       70.23      .3953 2.8307
VECA-B       64 87.07 57.46     50.69  47.92      63.58       69.54      .3705 2.7252
VECA-B        8 83.84 53.30     44.51  43.85      58.27       61.97      .4330 3.1877
"""
_CURVES = """
IN1K   VECA-S  74.63 74.22 74.04 73.89 73.73 73.52 72.87 71.30
IN1K   VECA-S+ 77.03 76.97 76.97 76.97 77.03 76.65 76.17 74.39
IN1K   VECA-B  81.93 81.84 81.79 81.71 81.63 81.51 81.09 79.99
IN1K   VECA-L  84.51 84.27 84.35 84.23 84.23 84.15 83.90 83.06
VOC12  VECA-S  81.56 81.45 81.51 81.40 81.00 81.06 80.40 77.56
VOC12  VECA-S+ 84.12 83.92 83.94 83.84 83.84 83.43 82.60 79.18
VOC12  VECA-B  87.07 86.94 86.91 86.85 86.72 86.34 85.37 83.84
VOC12  VECA-L  88.62 88.62 88.59 88.51 88.37 87.78 87.67 86.50
ADE20K VECA-S  44.82 44.80 44.53 43.87 43.98 43.23 41.20 37.48
ADE20K VECA-S+ 46.55 46.24 46.08 45.71 45.56 44.60 43.03 38.96
ADE20K VECA-B  50.69 50.40 50.63 50.53 49.49 49.44 47.52 44.51
ADE20K VECA-L  54.17 54.17 54.09 53.81 53.90 53.65 52.20 48.10
NYUv2  VECA-S  .4347 .4352 .4361 .4382 .4430 .4476 .4562 .4975
NYUv2  VECA-S+ .4252 .4259 .4270 .4299 .4327 .4375 .4453 .4898
NYUv2  VECA-B  .3705 .3751 .3748 .3754 .3789 .3829 .3965 .4330
NYUv2  VECA-L  .3379 .3398 .3407 .3412 .3432 .3474 .3563 .3956
"""
BUDGETS = (64, 56, 48, 40, 32, 24, 16, 8)
# (dataset, model): the elastic curve, at BUDGETS
CURVES = {
    (line.split()[0], line.split()[1]): [float(word) for word in line.split()[2:]]
    for line in _CURVES.strip().splitlines()
}
_TABLES = {256: (_CLASSIFY, _CLASSIFY_FINE), 512: (_DENSE,)}  # by resolution

_LEGEND_STEP = 18
_STYLE = (
    "text { font: 12px system-ui, sans-serif; fill: #1b2530; } .tick { fill: #5a6673; font-size: 11px; } "
    ".grid { stroke: #e6ebf0; } .axis { stroke: #8a96a3; }"
)


@dataclass(frozen=True)
class Cell:
    """One measurement: a model, perhaps of a seed, at one budget and resolution."""

    name: str
    budget: int | None
    resolution: int | None
    values: dict[str, float]
    seed: int | None = None
    chosen: dict[str, Any] = field(default_factory=dict)  # what validation images decided, and between what
    key: str = ""  # hash of everything that decides the values


@dataclass(frozen=True)
class Row:
    """A line of the table: the mean over seeds."""

    name: str
    budget: int | None
    resolution: int | None
    values: dict[str, float]
    spread: dict[str, float] = field(default_factory=dict)  # standard deviation over seeds
    rates: tuple[float, ...] = ()  # the learning rates chosen


@dataclass(frozen=True)
class Results:
    """The content of a probe's JSON; the first quantity is the one that counts."""

    probe: str
    model: str
    data: str
    quantities: list[str]
    cells: list[Cell] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    counts: dict[str, dict[str, int]] = field(default_factory=dict)  # split → class → images or pixels
    unreadable: dict[str, str] = field(default_factory=dict)  # image left out → reason
    paper: list[Cell] = field(default_factory=list)  # what the paper measured on this data
    complete: bool = True

    def rows(self) -> Iterator[Row]:
        """Cells that differ in their seed alone become one row."""
        for (name, budget, resolution), group in groupby(
            self.cells, key=lambda cell: (cell.name, cell.budget, cell.resolution)
        ):
            cells = list(group)
            values = {key: [cell.values[key] for cell in cells] for key in cells[0].values}
            means = {key: statistics.fmean(found) for key, found in values.items()}
            spread = {key: statistics.stdev(found) for key, found in values.items() if len(found) > 1}
            rates = tuple(sorted({cell.chosen[RATE] for cell in cells if RATE in cell.chosen}))
            yield Row(name, budget, resolution, means, spread, rates)

    def paper_rows(self) -> list[Row]:
        return [Row(cell.name, cell.budget, cell.resolution, cell.values) for cell in self.paper]


def results_path(model: str, out: Path | None, *, probe: str) -> Path:
    """Where to write: `out`, else beside the model, else here. Checked before the work, not after it."""
    source = Path(model)
    if out is not None:
        path = out
    elif source.is_dir():
        path = source / f"{probe}.json"
    elif source.is_file():
        folder = source.parent
        path = (folder.parent if folder.name == CHECKPOINTS else folder) / f"{probe}.json"
    else:
        path = Path(f"{probe}.json")
    if path.is_dir():
        raise ValueError(f"out must be a file; {path} is a folder. Try {path / f'{probe}.json'}.")
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def write_results(path: Path, results: Results) -> None:
    body = {"format": FORMAT, "version": VERSION, **asdict(results)}
    write_text_atomic(path, json.dumps(body, indent=1, ensure_ascii=False) + "\n")


def read_results(path: Path) -> Results | None:
    """A probe's JSON; None when the file is something else, ValueError when it is damaged."""
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{path} is not valid JSON ({error}). Run the probe again, or move it away."
        ) from None
    if not isinstance(body, dict) or body.pop("format", None) != FORMAT:
        return None
    if body.pop("version", None) != VERSION:
        raise ValueError(f"{path} is of another version than {VERSION}. Run the probe again.")
    try:
        cells, paper = ([Cell(**cell) for cell in body.pop(key)] for key in ("cells", "paper"))
        results = Results(cells=cells, paper=paper, **body)
        if not all(isinstance(text, str) for text in (results.probe, results.model, results.data)):
            raise TypeError("probe, model and data must be text")
        markdown(table(results)), elastic_picture(results)  # all that is done with it works
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is damaged: {error!r}. Run the probe again.") from None
    return results


def table(results: Results) -> list[list[str]]:
    """Header and rows as text, for Markdown and HTML alike; the paper's rows come last."""
    rows = list(results.rows())
    fitted = any(row.rates for row in rows)
    lines = [["features", "budget", "resolution", *results.quantities, *([RATE] if fitted else [])]]
    for row in [*rows, *results.paper_rows()]:
        values = [shown(row, quantity) for quantity in results.quantities]
        rates = [", ".join(f"{rate:g}" for rate in row.rates) or "–"] if fitted else []
        lines.append([row.name, _or_dash(row.budget), _or_dash(row.resolution), *values, *rates])
    return lines


def markdown(lines: list[list[str]]) -> str:
    header, *rows = lines
    rule = ["---", *["---:"] * (len(header) - 1)]
    return "\n".join("| " + " | ".join(row) + " |" for row in [header, rule, *rows])


def is_share(quantity: str) -> bool:
    return quantity.split(" on ")[0] in SHARES  # `top-1 on DATA` is a transfer


def shown(row: Row, quantity: str) -> str:
    """`61.2 ± 0.4 %` for a share, `0.612 ± 0.004` otherwise, `–` for nothing."""
    if quantity not in row.values:
        return "–"
    factor, unit, digits = (100, " %", 1) if is_share(quantity) else (1, "", 3)
    spread = f" ± {factor * row.spread[quantity]:.{digits}f}" if quantity in row.spread else ""
    return f"{factor * row.values[quantity]:.{digits}f}{spread}{unit}"


def paper_cells(dataset: str, quantity: str, *, budgets: Collection[int | None] = ()) -> list[Cell]:
    """The paper's rows for a dataset of its; nothing for other data and other quantities.

    Of the elastic curves, `budgets` are shown beside the first and the last.
    """
    if quantity not in ("top-1", "mAP", "mIoU", "RMSE"):
        return []
    scale = 100 if is_share(quantity) else 1
    cells = []
    for resolution, texts in _TABLES.items():
        for text in texts:
            header, *lines = (line.split() for line in text.strip().splitlines())
            for name, word, *values in lines if dataset in header else ():
                budget = None if word == "–" else int(word)
                value = float(values[header.index(dataset) - 2]) / scale
                cells.append(Cell(f"paper: {name}", budget, resolution, {quantity: value}))
    tabled = {(cell.name, cell.budget) for cell in cells}
    cells += [
        Cell(f"paper: {name}", budget, cells[0].resolution, {quantity: value / scale})
        for (data, name), values in CURVES.items()
        for budget, value in zip(BUDGETS, values, strict=True)
        if data == dataset
        and (budget in budgets or budget in (BUDGETS[0], BUDGETS[-1]))
        and (f"paper: {name}", budget) not in tabled
    ]
    return cells


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
    height = HEIGHT + _LEGEND_STEP * len(lines) + 8
    legend = "".join(_legend_entry(line, HEIGHT + _LEGEND_STEP * place) for place, line in enumerate(lines))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{2 * WIDTH}">'
        f'<style>{_STYLE}</style><rect width="100%" height="100%" fill="white"/>{inner}{legend}</svg>\n'
    )


def elastic_lines(results: Results) -> list[Line]:
    """One line per model and resolution; what has a single value becomes a dashed level."""
    rows = [*results.rows(), *results.paper_rows()]
    quantity, curves, levels = results.quantities[0], dict[str, Points](), dict[str, float]()
    scale = 100 if is_share(quantity) else 1
    for (name, resolution), group in groupby(rows, key=lambda row: (row.name, row.resolution)):
        title = name if resolution is None else f"{name}, {resolution} px"
        values = [(row.budget, scale * row.values[quantity]) for row in group]
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


def _legend_entry(line: Line, y: float) -> str:
    dash = ' stroke-dasharray="6 4"' if line.dashed else ""
    return (
        f'<line x1="72" x2="96" y1="{y}" y2="{y}" stroke="{line.colour}" stroke-width="3"{dash}/>'
        f'<text x="104" y="{y + 4}">{escape(line.name)}</text>'
    )


def _or_dash(number: int | None) -> str:
    return "–" if number is None else str(number)
