"""What a probe leaves behind: one JSON for the report, a Markdown table for the reader, and a plot.

The JSON grows cell by cell while a probe runs, so an interrupted one goes on where it stopped.
"""

import json
import statistics
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from veca.utils.files import write_text_atomic

FORMAT = "veca-probe"
VERSION = 2
CHECKPOINTS = "checkpoints"  # a run keeps its .ckpt there; what is known about it goes beside that folder
SHARES = ("accuracy", "top-1", "top-5", "mAP", "mIoU", "pixel accuracy", "δ<1.25")  # shown in percent
RATE = "learning rate"


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
    paper = [Row(cell.name, cell.budget, cell.resolution, cell.values) for cell in results.paper]
    for row in [*rows, *paper]:
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


def _or_dash(number: int | None) -> str:
    return "–" if number is None else str(number)
