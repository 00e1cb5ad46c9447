"""`veca figures elastic`: what a probe measures against the budget, beside the paper's curves."""

from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from veca.backbones import Names, split_names
from veca.figures.sheet import Curve, Panel, check_out, draw_panels, save
from veca.probes.results import BUDGETS, Results, Row, elastic_values, is_share, read_results
from veca.utils.chart import COLOURS

_SHAPES = {"VECA-S": "v", "VECA-S+": "s", "VECA-B": "D", "VECA-L": "^"}
_GREY = "0.55"
_LOWER_IS_BETTER = ("RMSE", "AbsRel")


class Subject(NamedTuple):
    """What one panel is about."""

    data: str  # plain, as `ade20k`
    quantity: str


PAPER = {
    "in1k": Subject("in1k", "top-1"),
    "voc12": Subject("voc12", "mIoU"),
    "ade20k": Subject("ade20k", "mIoU"),
    "nyuv2": Subject("nyuv2", "RMSE"),
}


def elastic(out: Path, *, results: Names = None, relative: bool = False) -> None:
    """A metric against the budget, one panel per dataset, with the paper's curves in grey.

    Args:
        out: Picture to write, .png or .svg.
        results: JSON files of `veca probe`, with commas between; without any, the paper's curves alone.
        relative: Show the share of the full budget's value that is kept, so that other data, where the paper
            has no curve, stands beside all of the paper's curves of the same quantity.
    """
    check_out(out)
    found = [_read(Path(name)) for name in split_names(results)]
    by_subject: dict[Subject, list[Results]] = {}
    for one in found:
        by_subject.setdefault(_subject(one), []).append(one)
    subjects = list(by_subject) or list(PAPER.values())
    panels = [_panel(subject, by_subject.get(subject, []), relative=relative) for subject in subjects]
    save(draw_panels(panels, title="Elastic budgets", columns=min(4, len(panels))), out)


def paper_curves(subject: Subject, *, relative: bool = False) -> list[Curve]:
    """The paper's curves for a dataset of its; for other data and `relative`, base on all of its datasets."""
    curves: list[Curve] = []
    for (name, size), values in elastic_values().items():
        data = name.lower()
        kin = relative and subject not in PAPER.values() and size == "VECA-B"
        if PAPER[data] != subject and not (kin and PAPER[data].quantity == subject.quantity):
            continue
        values = _kept(values, subject.quantity) if relative else values
        title = f"paper: {size}, {data}" if kin else f"paper: {size}"
        shape = _SHAPES[size if not kin else list(_SHAPES)[len(curves)]]
        budgets = [float(budget) for budget in BUDGETS]
        curves.append(Curve(title, budgets, values, None, _GREY, dashed=True, marker=shape))
    return curves


def measured_curves(results: Results, *, relative: bool = False) -> list[Curve]:
    """A curve per model and resolution; error bars are the standard deviation over seeds."""
    quantity = results.quantities[0]
    scale = 100 if is_share(quantity) else 1
    curves = []
    rows = [row for row in results.rows() if quantity in row.values]
    for (name, side), group in groupby(rows, key=lambda row: (row.name, row.resolution)):
        elastic_rows: list[Row] = sorted(
            (r for r in group if r.budget is not None), key=lambda r: -(r.budget or 0)
        )
        if not elastic_rows:
            continue  # a model of fixed compute has no curve
        values = [scale * row.values[quantity] for row in elastic_rows]
        errors = [scale * row.spread.get(quantity, 0.0) for row in elastic_rows]
        if relative:
            errors = [100 * error / values[0] for error in errors]
            values = _kept(values, quantity)
        title = "/".join(Path(name).parts[-2:]) + (f", {side} px" if side else "")
        curves.append(Curve(title, [float(row.budget or 0) for row in elastic_rows], values, errors))
    return curves


def _panel(subject: Subject, found: list[Results], *, relative: bool) -> Panel:
    curves = [curve for one in found for curve in measured_curves(one, relative=relative)]
    curves = [curve._replace(colour=COLOURS[place % len(COLOURS)]) for place, curve in enumerate(curves)]
    unit = " (%)" if is_share(subject.quantity) else " (m)" * (subject.quantity == "RMSE")
    label = f"{subject.quantity}: % of the full budget's" if relative else subject.quantity + unit
    curves += paper_curves(subject, relative=relative)
    ticks = sorted({x for curve in curves for x in curve.x})
    return Panel(subject.data, curves, "budget (active cores)", label, x_ticks=ticks)


def _kept(values: list[float], quantity: str) -> list[float]:
    """Percent of the first value; of an error, the other way round, so that less is worse for both."""
    first = values[0]
    return [100 * (first / value if quantity in _LOWER_IS_BETTER else value / first) for value in values]


def _read(path: Path) -> Results:
    if not path.is_file():
        raise FileNotFoundError(f"there is no {path}. Give the JSON files that `veca probe` wrote.")
    found = read_results(path)
    if found is None:
        raise ValueError(f"{path} is not a probe's JSON. Give the files that `veca probe` wrote.")
    return found


def _subject(results: Results) -> Subject:
    """`ADE20K:PATH` and `ade20k` are the paper's dataset; a folder goes by its name."""
    name, colon, _ = results.data.partition(":")
    plain = name.lower().replace("-", "").replace("_", "")
    data = plain if colon or plain in PAPER else Path(results.data).name
    return Subject(data, results.quantities[0])
