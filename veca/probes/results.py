"""What a probe leaves behind: one JSON for the report, a Markdown table for the reader, and a plot.

Beside what was measured stands what the paper measured on the same data (arXiv 2605.12491).

The JSON grows cell by cell while a probe runs, so an interrupted one goes on where it stopped.
"""

import csv
import json
import statistics
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass, field
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

from veca.utils.chart import Line, Points, line_chart
from veca.utils.files import write_text_atomic

FORMAT = "veca-probe"
VERSION = 2
CHECKPOINTS = "checkpoints"  # a run keeps its .ckpt there; what is known about it goes beside that folder
SHARES = ("accuracy", "top-1", "top-5", "mAP", "mIoU", "pixel accuracy", "δ<1.25")  # shown in percent
RATE = "learning rate"

BUDGETS = (64, 56, 48, 40, 32, 24, 16, 8)


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
    except ValueError as error:
        raise ValueError(
            f"{path} is not valid JSON ({error}). Run the probe again, or move it away."
        ) from None
    if not isinstance(body, dict) or body.pop("format", None) != FORMAT:
        return None
    if body.pop("version", None) != VERSION:
        raise ValueError(f"{path} is of another version than {VERSION}. Run the probe again.")
    try:
        cells, paper = ([Cell(**cell) for cell in body.pop(key)] for key in ("cells", "paper"))
        return Results(cells=cells, paper=paper, **body)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is damaged: {error!r}. Run the probe again.") from None


def table(results: Results) -> list[list[str]]:
    """Header and rows as text, for Markdown and HTML alike; the paper's rows come last."""
    rows = list(results.rows())
    fitted = any(row.rates for row in rows)
    lines = [["features", "budget", "resolution", *results.quantities, *([RATE] if fitted else [])]]
    for row in [*rows, *results.paper_rows()]:
        values = [shown(row, quantity) for quantity in results.quantities]
        rates = [", ".join(f"{rate:g}" for rate in row.rates) or "–"] if fitted else []
        sizes = ["–" if number is None else str(number) for number in (row.budget, row.resolution)]
        lines.append([row.name, *sizes, *values, *rates])
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


@cache
def _paper() -> dict[tuple[str, str, int | None], tuple[int, float]]:
    """(dataset, model, budget) → resolution and what the paper measured, in percent or metres."""
    with (Path(__file__).parent / "paper.csv").open(encoding="utf-8", newline="") as file:
        return {
            (row["data"], row["model"], int(row["budget"]) if row["budget"] else None): (
                int(row["resolution"]),
                float(row["value"]),
            )
            for row in csv.DictReader(file)
        }


def elastic_values() -> dict[tuple[str, str], list[float]]:
    """(dataset, model) → the elastic curve, at BUDGETS."""
    sets, models = ("IN1K", "VOC12", "ADE20K", "NYUv2"), ("VECA-S", "VECA-S+", "VECA-B", "VECA-L")
    values = _paper()
    return {(d, m): [values[d, m, budget][1] for budget in BUDGETS] for d in sets for m in models}


def paper_cells(dataset: str, quantity: str, *, budgets: Collection[int | None] = ()) -> list[Cell]:
    """The paper's rows for a dataset of its; nothing for other data and other quantities.

    Of the elastic curves, `budgets` are shown beside the first and the last.
    """
    if quantity not in ("top-1", "mAP", "mIoU", "RMSE"):
        return []
    scale = 100 if is_share(quantity) else 1
    kept = {None, BUDGETS[0], BUDGETS[-1], *budgets}
    return [
        Cell(f"paper: {model}", budget, resolution, {quantity: value / scale})
        for (data, model, budget), (resolution, value) in _paper().items()
        if data == dataset and budget in kept
    ]


def elastic_picture(results: Results) -> str:
    """The curve as SVG; empty text when nothing was measured at two budgets."""
    lines = elastic_lines(results)
    budgets = sorted({at for line in lines for at, _ in line.points})
    quantity = results.quantities[0]
    label = f"{quantity} (%)" if is_share(quantity) else quantity
    return line_chart(lines, x_label="budget (active cores)", y_label=label, x_ticks=budgets)


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
    return [Line(title, points, dashed=title in levels) for title, points in {**curves, **flat}.items()]
