"""What a probe leaves behind: a Markdown table for the reader and one JSON for the report."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from veca.files import write_text_atomic

FORMAT = "veca-probe"
VERSION = 1
CHECKPOINTS = "checkpoints"  # a run keeps its .ckpt there; what is known about it goes beside that folder
SHARES = ("accuracy",)  # quantities shown in percent


@dataclass(frozen=True)
class Row:
    """One measurement; a baseline without a model has neither budget nor resolution."""

    name: str
    budget: int | None
    resolution: int | None
    value: float
    spread: float | None = None  # standard deviation over seeds


@dataclass(frozen=True)
class Results:
    """The content of a probe's JSON. A row's value is stored under the name of the quantity."""

    probe: str
    model: str
    data: str
    quantity: str
    rows: list[Row]
    settings: dict[str, Any] = field(default_factory=dict)
    counts: dict[str, dict[str, int]] = field(default_factory=dict)  # split → class → images
    unreadable: dict[str, str] = field(default_factory=dict)  # path → reason


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
    body = asdict(results)
    rows = [{_key(key, results.quantity): value for key, value in row.items()} for row in body.pop("rows")]
    body = {"format": FORMAT, "version": VERSION, **body, "results": rows}
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
        quantity = body["quantity"]
        rows = [Row(value=row.pop(quantity), **row) for row in body.pop("results")]
        return Results(rows=rows, **body)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is damaged: {error!r}. Run the probe again.") from None


def table(results: Results) -> list[list[str]]:
    """Header and rows as text, for Markdown and HTML alike."""
    header = ["features", "budget", "resolution", results.quantity]
    return [header] + [
        [row.name, _or_dash(row.budget), _or_dash(row.resolution), shown(row, results.quantity)]
        for row in results.rows
    ]


def markdown(lines: list[list[str]]) -> str:
    header, *rows = lines
    rule = ["---", *["---:"] * (len(header) - 1)]
    return "\n".join("| " + " | ".join(row) + " |" for row in [header, rule, *rows])


def shown(row: Row, quantity: str) -> str:
    """`61.2 ± 0.4 %` for a share, `0.612 ± 0.004` otherwise."""
    factor, unit, digits = (100, " %", 1) if quantity in SHARES else (1, "", 3)
    spread = "" if row.spread is None else f" ± {factor * row.spread:.{digits}f}"
    return f"{factor * row.value:.{digits}f}{spread}{unit}"


def _key(key: str, quantity: str) -> str:
    return quantity if key == "value" else key


def _or_dash(number: int | None) -> str:
    return "–" if number is None else str(number)
