"""`veca report RUN_DIR`: one HTML file about a run, which opens anywhere without a network.

In the order in which the work is done: what it comes to, the stages of training, the probes. A part without
data is left out. stages.py reads a run's folder and judges it, views.py draws its snapshots.
"""

import statistics
from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from itertools import groupby
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from veca.probes.results import Results, elastic_picture, markdown, table
from veca.report.stages import BUDGET, Stage, judge, read_stages
from veca.report.views import data_address, snapshot_views
from veca.train.snapshots import facts, gather
from veca.train.validation import QUANTITIES
from veca.utils.chart import Line, bar_chart, finite, line_chart, number
from veca.utils.files import write_text_atomic

REPORT_NAME = "report.html"
PROBE_ORDER = ("knn", "linear", "segment", "depth")  # others follow by name
STEP = "optimizer step"


def report(run_dir: Path) -> None:
    """Write RUN_DIR/report.html: verdict, metrics, pictures, probes, recipe and environment, in one file.

    Args:
        run_dir: Folder of a run, or a folder whose subfolders are the stages of one.
    """
    stages = read_stages(run_dir)
    verdict = judge(stages)
    trained = [stage for stage in stages if stage.metrics or stage.config]  # others hold probes alone
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    text = environment.get_template("report.html.j2").render(
        name=run_name(run_dir),
        made=datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"),
        sentence=verdict and verdict.sentence,
        verdict_charts=_charts(verdict.charts) if verdict else {},
        stages=[_stage(stage, place, alone=len(trained) == 1) for place, stage in enumerate(trained)],
        probes=[_probe(results) for results in probes_of(stages)],
        environment=[["fact", "value"], *map(list, facts(gather()).items())],
    )
    write_text_atomic(run_dir / REPORT_NAME, text + "\n")
    print("\n".join(_summary(stages, verdict.sentence if verdict else "")))
    print(run_dir / REPORT_NAME)


def run_name(run_dir: Path) -> str:
    """A folder's name; one that says only that it is a run goes by the folder around it."""
    folder = run_dir.resolve()
    return folder.parent.name or folder.name if folder.name in ("run", "runs") else folder.name


def probes_of(stages: list[Stage]) -> list[Results]:
    """The probes of all stages, in the order in which a user runs them."""
    known = {name: place for place, name in enumerate(PROBE_ORDER)}
    probes = [results for stage in stages for results in stage.probes]
    return sorted(probes, key=lambda results: (known.get(results.probe, len(known)), results.probe))


def _summary(stages: list[Stage], sentence: str) -> list[str]:
    """The verdict, the final validation losses beside the constant, and the probes, for the terminal."""
    lines = [sentence, ""] if sentence else []
    for stage in stages:
        for resolution, names in stage.grid("val").items():
            heads = ["constant" if budget is None else f"budget {budget}" for budget in names]
            losses = [f"{stage.last(name):.4f}" for name in names.values()]
            lines += [markdown([[f"{stage.name}, {resolution} px", *heads], ["val loss", *losses]]), ""]
    for results in probes_of(stages):
        lines += [markdown(table(results)), ""]
    return lines


def _stage(stage: Stage, place: int, *, alone: bool) -> dict[str, Any]:
    """What the template shows of a stage; `place` is its number among those of the report."""
    skipped = sorted(name for name in stage.metrics if "/skipped" in name)
    counts = [[name, number(stage.metrics[name][-1][1])] for name in skipped]
    return {
        "title": ("Training" if stage.metrics else "Recipe") if alone else f"Training: {stage.name}",
        "facts": _facts(stage),
        "losses": _charts(_losses(stage)),
        "grids": {"Final validation": _grid(stage, "val"), "Test": _grid(stage, "test")},
        "views": snapshot_views(stage.snapshots, prefix=f"stage-{place}-image"),
        "progress": _charts(_progress(stage)),
        "skipped": [["metric", "samples"], *counts] if counts else [],
        "environment": _environment(stage),
        "config": stage.config,
    }


def _facts(stage: Stage) -> dict[str, str]:
    """The few numbers to see first."""
    steps = [points[-1][0] for name, points in stage.metrics.items() if name.startswith("train/")]
    found: dict[str, float | None] = {"optimizer steps": max(steps) + 1 if steps else None}
    for resolution, names in list(stage.grid("val").items())[-1:]:
        budget = max((b for b in names if b is not None), default=None)
        if budget is not None:
            found[f"val loss, {resolution} px, budget {budget}"] = stage.last(names[budget])
        found["constant to beat"] = stage.last(names[None]) if None in names else None
    speeds = [value for _, value in finite(stage.curve("train/images_per_second"))]
    found["images/s (median)"] = statistics.median(speeds) if speeds else None
    return {label: number(value) for label, value in found.items() if value is not None}


def _grid(stage: Stage, split: str) -> list[list[str]]:
    """Final losses over resolutions × budgets; no rows where there was no validation."""
    grids = {quantity: stage.grid(split, quantity) for quantity in QUANTITIES}
    known = {budget for grid in grids.values() for names in grid.values() for budget in names}
    budgets = sorted(budget for budget in known if budget is not None)
    rows = [["resolution", "quantity", *(f"budget {budget}" for budget in budgets), "constant"]]
    for resolution in grids["loss"]:
        for quantity, grid in grids.items():
            names = grid.get(resolution, {})
            constant = stage.last(names[None]) if None in names else None
            values = [stage.last(names[budget]) if budget in names else None for budget in budgets]
            cells = [_loss(value, constant) for value in values]
            rows.append([f"{resolution} px", quantity, *cells, _loss(constant, None)])
    return rows if budgets else []


def _loss(value: float | None, constant: float | None) -> str:
    if value is None:
        return "–"
    beaten = constant is None or value < constant
    return f"{value:.4f}" if beaten else Markup(f'<strong class="worse">{value:.4f} ▲</strong>')


def _losses(stage: Stage) -> dict[str, str]:
    lines = [Line(name, stage.curve(f"train/{name}")) for name in QUANTITIES]
    charts = {"Training losses": line_chart(lines, x_label=STEP, y_label="loss")}
    for resolution, names in stage.grid("val").items():
        budgets = [budget for budget in reversed(names) if budget is not None]  # the full one comes first
        lines = [Line(f"budget {budget}", stage.curve(names[budget])) for budget in budgets]
        if None in names:
            lines.append(Line("constant", stage.curve(names[None]), dashed=True))
        charts[f"Validation at {resolution} px"] = line_chart(lines, x_label=STEP, y_label="val loss")
    return charts


def _progress(stage: Stage) -> dict[str, str]:
    rates = [Line(name, stage.curve(f"lr/{name}")) for name in ("normuon", "adamw")]
    speed = [Line("images/s", stage.curve("train/images_per_second"))]
    charts = {
        "Learning rates": line_chart(rates, x_label=STEP, y_label="learning rate", from_zero=True),
        "Throughput": line_chart(speed, x_label=STEP, y_label="images per second", from_zero=True),
    }
    for kind, label in (("budget", BUDGET), ("resolution", "resolution (pixels)")):
        found = Counter(value for _, value in finite(stage.curve(f"train/{kind}")))
        counts = {number(value): found[value] for value in sorted(found)}
        charts[f"{kind.capitalize()}s drawn"] = bar_chart(counts, x_label=label, y_label="logged steps")
    return charts


def _environment(stage: Stage) -> list[list[str]]:
    """What every start of the run had in common, and from which step on something was another."""
    starts = [(start.get("step", 0), facts(start)) for start in stage.environment]
    names = dict.fromkeys(name for _, found in starts for name in found if name != "step")
    rows = []
    for name in names:
        values = [(step, found.get(name, "–")) for step, found in starts]
        spells = [next(group) for _, group in groupby(values, key=lambda value: value[1])]
        texts = [f"from step {step}: {text}" if len(spells) > 1 else text for step, text in spells]
        rows.append([name, Markup("<br>").join(texts)])
    return [["fact", "value"], *rows] if rows else []


def _probe(results: Results) -> dict[str, Any]:
    return {
        "name": results.probe,
        "rows": table(results),
        "charts": _charts({f"Elastic curve: {results.probe}": elastic_picture(results)}),
        "model": results.model,
        "data": results.data,
        "splits": "; ".join(_split(split, counts) for split, counts in results.counts.items()),
        "settings": ", ".join(f"{key} = {_rounded(value)}" for key, value in results.settings.items()),
        "left_out": len(results.unreadable),
        "complete": results.complete,
    }


def _split(split: str, counts: dict[str, int]) -> str:
    """Images of a classification; pixels of masks and depth maps are too many to be images."""
    if "measured" in counts:
        return f"{split}: {counts['measured']:,} measured pixels"
    classes = {name: count for name, count in counts.items() if name != "(ignored)"}
    noun = "images" if classes == counts else "labelled pixels"
    return f"{split}: {sum(classes.values()):,} {noun}, {len(classes)} classes"


def _rounded(value: object) -> str:
    """A setting as text, numbers to four digits."""
    if isinstance(value, float):
        return number(value)
    return ", ".join(map(_rounded, value)) if isinstance(value, list | tuple) else str(value)


def _charts(charts: Mapping[str, str]) -> dict[str, str]:
    """Charts that have something to show, as addresses: each holds its whole picture."""
    return {caption: data_address("svg+xml", chart.encode()) for caption, chart in charts.items() if chart}
