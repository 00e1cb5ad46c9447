"""Numbers → tables: losses, probes, cost, and whether the paper's claims came out. Markdown, HTML, JSON.

A claim that did not come out says NOT reached, and one without its data says not measured.
"""

import json
import math
import statistics
from collections.abc import Iterator, Mapping
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from veca.mini.losses import Losses, Paired, paired
from veca.probes.results import markdown, read_results
from veca.probes.sweep import CONSTANT, MODEL, PIXELS, RANDOM
from veca.report.tables import html_table
from veca.utils.files import write_text_atomic

MARGIN_SHARE = 0.85
CIFAR_POINTS = 8.0
CAMVID_POINTS = 10.0
ERRORS = 2.0  # standard errors beyond which a difference counts
NOT_MEASURED = "not measured"
STYLE = """
body { margin: 0 auto; max-width: 1080px; padding: 28px 16px 60px; color: #1b2530;
  font: 15px/1.5 system-ui, "Segoe UI", "DejaVu Sans", sans-serif; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: 5px 12px; border-bottom: 1px solid #dde3ea; text-align: right; }
th { color: #5a6673; font-size: 13px; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
p { color: #5a6673; max-width: 900px; }
.reached { color: #1a7f4b; font-weight: 600; }
.missed { color: #b34700; font-weight: 600; }
"""

Rows = list[list[str]]


class Claim(NamedTuple):
    """A line of the goal; `reached` is None where it could not be measured."""

    text: str
    measured: str
    reached: bool | None

    @property
    def verdict(self) -> str:
        return NOT_MEASURED if self.reached is None else "reached" if self.reached else "NOT reached"


class Measured(NamedTuple):
    """Losses of every image, the mean over seeds each."""

    are_photos: NDArray[np.bool_]  # the other images are scenes
    constant: Losses
    nested: dict[int, Losses]  # by budget
    fixed: Losses
    full: Losses

    @property
    def largest(self) -> Losses:
        return self.nested[max(self.nested)]

    def steps(self) -> Iterator[tuple[int, int, Paired]]:
        """(budget, next budget, loss of the next − loss of the first)."""
        budgets = sorted(self.nested)
        for smaller, larger in pairwise(budgets):
            yield smaller, larger, paired(self.nested[larger], self.nested[smaller])

    def margin_share(self) -> float:
        """How much of the control's margin over the constant all cores keep."""
        margin = float((self.constant - self.full).mean())
        return float((self.constant - self.largest).mean()) / margin if margin > 0 else math.nan


# data → row ("nested, C = 8", "random weights") → quantity → the value of each seed
Probes = dict[str, dict[str, dict[str, list[float]]]]


class Page(NamedTuple):
    """All that is shown."""

    measured: Measured
    probes: Probes
    cost: Rows
    notes: list[str]


def read_probes(paths: list[Path], labels: Mapping[str, str]) -> dict[str, dict[str, list[float]]]:
    """The cells of a probe's JSONs by row; `labels` names the specs of models, a budget is added to them."""
    found: dict[str, dict[str, list[float]]] = {}
    seen: set[tuple[str, str]] = set()
    for path in paths:
        results = read_results(path)
        if results is None:
            raise ValueError(f"{path} is not a probe's JSON. Delete it and run `veca mini` again.")
        for cell in results.cells:
            spec = results.model if cell.name == MODEL else cell.name
            if spec in (RANDOM, PIXELS, CONSTANT):
                row = spec
            else:
                row = labels[spec] + (f", C = {cell.budget}" if cell.budget is not None else "")
            if row in (PIXELS, CONSTANT) and row in found:
                continue  # both halves of a probe have it
            if (key := (f"{spec}{cell.budget}", str(cell.seed))) in seen:
                continue
            seen.add(key)
            for quantity, value in cell.values.items():
                found.setdefault(row, {}).setdefault(quantity, []).append(value)
    return found


def claims(measured: Measured, probes: Probes) -> list[Claim]:
    """The goal, line by line."""
    worst = max(measured.steps(), key=lambda step: _errors(step[2]))
    ends = paired(measured.nested[min(measured.nested)], measured.largest)
    share = measured.margin_share()
    return [
        Claim(
            f"no budget step raises the loss by more than {ERRORS:g} standard errors",
            f"C = {worst[0]} → {worst[1]}: {worst[2]}",
            _errors(worst[2]) <= ERRORS,
        ),
        Claim(
            f"C = {min(measured.nested)} is worse than C = {max(measured.nested)}, by more than {ERRORS:g} "
            "standard errors",
            str(ends),
            _errors(ends) > ERRORS,
        ),
        Claim(
            f"C = {max(measured.nested)} keeps at least {MARGIN_SHARE:.0%} of the control's margin over the "
            "constant",
            "the control has no margin" if math.isnan(share) else f"{share:.1%}",
            share >= MARGIN_SHARE,
        ),
        _points(probes, "CIFAR-10, mean patch", ("top-1", PIXELS, CIFAR_POINTS)),
        _points(probes, "CamVid", ("pixel accuracy", RANDOM, CAMVID_POINTS)),
    ]


def loss_rows(measured: Measured) -> Rows:
    difference = "paired difference ± standard error"
    rows = [["loss on validation images", "mean", "photos", "scenes", "to", difference]]
    rows.append(["constant per position", *_means(measured, measured.constant), "", ""])
    steps = {larger: (smaller, step) for smaller, larger, step in measured.steps()}
    for budget, losses in sorted(measured.nested.items()):
        smaller, step = steps.get(budget, ("", ""))
        named = f"nested, C = {smaller}" if smaller else ""
        rows.append([f"nested, C = {budget}", *_means(measured, losses), named, str(step)])
    largest = f"nested, C = {max(measured.nested)}"
    for name, losses in ((f"fixed, C = {max(measured.nested)}", measured.fixed), ("control", measured.full)):
        rows.append([name, *_means(measured, losses), largest, str(paired(losses, measured.largest))])
    ends = paired(measured.nested[min(measured.nested)], measured.largest)
    rows.append([f"nested, C = {min(measured.nested)}", "", "", "", largest, str(ends)])
    return rows


def probe_rows(values: dict[str, dict[str, list[float]]]) -> Rows:
    """Percent; the mean over seeds, and what each of them gave."""
    quantities = list(dict.fromkeys(quantity for row in values.values() for quantity in row))
    order = ("nested", "fixed", "control", RANDOM, PIXELS, CONSTANT)
    names = sorted(values, key=lambda name: order.index(name.split(",")[0]))
    return [
        ["features", *quantities],
        *([name, *(_percent(values[name].get(quantity, [])) for quantity in quantities)] for name in names),
    ]


def write_page(out: Path, page: Page, settings: Mapping[str, Any]) -> str:
    """results.json, mini.md and mini.html in `out`; the Markdown."""
    found = claims(page.measured, page.probes)
    parts: list[tuple[str, Rows]] = [
        ("Claims", [["claim", "measured", ""], *([one.text, one.measured, one.verdict] for one in found)]),
        ("Losses", loss_rows(page.measured)),
        *((f"Probe: {name}", probe_rows(values)) for name, values in page.probes.items()),
        ("Cost", page.cost),
    ]
    title = "The paper's claims in miniature"
    text = "\n\n".join(
        [f"# {title}", *(f"## {name}\n\n{markdown(rows)}" for name, rows in parts), *page.notes]
    )
    write_text_atomic(out / "mini.md", text + "\n")
    write_text_atomic(out / "mini.html", _html(title, parts, page.notes))
    write_text_atomic(out / "results.json", json.dumps(_body(page, found, settings), indent=1) + "\n")
    return text


def _body(page: Page, found: list[Claim], settings: Mapping[str, Any]) -> dict[str, Any]:
    measured = page.measured
    named = {"constant": measured.constant, "fixed": measured.fixed, "control": measured.full}
    named |= {f"nested {budget}": losses for budget, losses in measured.nested.items()}
    return {
        "settings": settings,
        "claims": [{**one._asdict(), "verdict": one.verdict} for one in found],
        "are_photos": measured.are_photos.tolist(),
        "losses": {name: losses.tolist() for name, losses in named.items()},
        "budget_steps": [
            {"from": smaller, "to": larger, **step._asdict()} for smaller, larger, step in measured.steps()
        ],
        "control_minus_nested": paired(measured.full, measured.largest)._asdict(),
        "fixed_minus_nested": paired(measured.fixed, measured.largest)._asdict(),
        "margin_share": None if math.isnan(share := measured.margin_share()) else share,
        "probes": page.probes,
        "cost": page.cost,
        "notes": page.notes,
    }


def _html(title: str, parts: list[tuple[str, Rows]], notes: list[str]) -> str:
    tables = "".join(f"<h2>{escape(name)}</h2>{html_table(_marked(rows))}" for name, rows in parts)
    lines = "".join(f"<p>{escape(note)}</p>" for note in notes)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{STYLE}</style></head><body><h1>{escape(title)}</h1>{tables}<h2>Notes</h2>{lines}"
        "</body></html>\n"
    )


def _marked(rows: Rows) -> Rows:
    """Cells as HTML; verdicts in colour."""
    classes = {"reached": "reached", "NOT reached": "missed", NOT_MEASURED: "missed"}
    return [
        [
            f'<span class="{classes[cell]}">{escape(cell)}</span>' if cell in classes else escape(cell)
            for cell in row
        ]
        for row in rows
    ]


def _means(measured: Measured, losses: Losses) -> list[str]:
    """Over all images, photos and scenes."""
    parts = (losses, losses[measured.are_photos], losses[~measured.are_photos])
    return [f"{part.mean():.4f}" if len(part) else "–" for part in parts]


def _points(probes: Probes, data: str, goal: tuple[str, str, float]) -> Claim:
    """A claim about percent points of all cores over a baseline."""
    quantity, baseline, points = goal
    text = f"{data}: nested, C = 64 is at least {points:g} points over {baseline} ({quantity})"
    rows = probes.get(data, {})
    if "nested, C = 64" not in rows or baseline not in rows:
        return Claim(text, "–", None)
    ours, theirs = (statistics.fmean(rows[row][quantity]) for row in ("nested, C = 64", baseline))
    difference = 100 * (ours - theirs)
    return Claim(text, f"{100 * ours:.1f} − {100 * theirs:.1f} = {difference:+.1f}", difference >= points)


def _errors(difference: Paired) -> float:
    """A difference in standard errors."""
    if difference.error == 0:
        return 0.0 if difference.mean == 0 else math.copysign(math.inf, difference.mean)
    return difference.mean / difference.error


def _percent(values: list[float]) -> str:
    if not values:
        return "–"
    each = f" ({', '.join(f'{100 * value:.1f}' for value in values)})" if len(values) > 1 else ""
    return f"{100 * statistics.fmean(values):.1f}{each}"
