"""One stage → HTML: tables, curves, pictures, probes. A part without data is left out."""

import statistics
from collections import Counter
from html import escape
from itertools import groupby

from veca.probes.results import Results, elastic_chart, table
from veca.report.sights import sights
from veca.report.stage import Stage
from veca.report.tables import html_table
from veca.train.environment import facts
from veca.train.validation import QUANTITIES
from veca.utils.chart import COLOURS, Line, bar_chart, finite, line_chart, number

GREY = "#666666"
STEP = "optimizer step"


def stage_section(stage: Stage, *, place: int = 0) -> str:
    """A stage; `place` is its number among those of the report."""
    parts = [
        f"<h2>{escape(stage.name)}</h2>",
        _facts(stage),
        _grid_table(stage, "val", "Final validation"),
        _grid_table(stage, "test", "Test"),
        *(probe_table(results) for results in stage.probes),
        _figures("Losses", _loss_figures(stage)),
        sights(stage.snapshots, prefix=f"stage-{place}-image"),
        _figures("Progress of the run", _run_figures(stage)),
        _skipped(stage),
        _environment(stage),
        _recipe(stage),
    ]
    return f"<section>{''.join(parts)}</section>"


def probe_table(results: Results) -> str:
    splits = "; ".join(_split_line(split, counts) for split, counts in results.counts.items())
    settings = ", ".join(f"{key} = {value}" for key, value in results.settings.items())
    left_out = f" {len(results.unreadable)} unreadable images were left out." if results.unreadable else ""
    unfinished = "" if results.complete else " <strong>Unfinished: run the probe again to go on.</strong>"
    lines = [[escape(cell) for cell in row] for row in table(results)]
    curve = _figures("", {f"Elastic curve: {results.probe}": elastic_chart(results)})
    return (
        f"<h3>Probe: {escape(results.probe)}</h3>{html_table(lines)}{curve}"
        f'<p class="note">Model {escape(results.model)} on {escape(results.data)} ({escape(splits)}). '
        f"{escape(settings)}.{left_out}{unfinished}</p>"
    )


def _split_line(split: str, counts: dict[str, int]) -> str:
    """Images of a classification; pixels of masks and depth maps are too many to be images."""
    if "measured" in counts:
        return f"{split}: {counts['measured']:,} measured pixels"
    classes = {name: count for name, count in counts.items() if name != "(ignored)"}
    noun = "images" if classes == counts else "labelled pixels"
    return f"{split}: {sum(classes.values()):,} {noun}, {len(classes)} classes"


def _facts(stage: Stage) -> str:
    """The few numbers to see first."""
    steps = max(
        (points[-1][0] for name, points in stage.metrics.items() if name.startswith("train/")), default=None
    )
    facts = {"optimizer steps": None if steps is None else number(steps + 1)}
    for resolution, names in list(stage.grid("val").items())[-1:]:
        budget = max((b for b in names if b is not None), default=None)
        for key, label in (
            (budget, f"val loss, {resolution} px, budget {budget}"),
            (None, "constant to beat"),
        ):
            value = stage.last(names[key]) if key in names else None
            facts[label] = None if value is None else number(value)
    speeds = [value for _, value in finite(stage.curve("train/images_per_second"))]
    facts["images/s (median)"] = number(statistics.median(speeds)) if speeds else None
    cards = [
        f'<div class="fact"><b>{value}</b><span>{escape(label)}</span></div>'
        for label, value in facts.items()
        if value is not None
    ]
    return f'<div class="facts">{"".join(cards)}</div>' if cards else ""


def _grid_table(stage: Stage, split: str, title: str) -> str:
    grids = {quantity: stage.grid(split, quantity) for quantity in QUANTITIES}
    budgets = sorted(
        {b for grid in grids.values() for names in grid.values() for b in names if b is not None}
    )
    if not budgets:
        return ""
    rows = [["resolution", "quantity", *(f"budget {budget}" for budget in budgets), "constant"]]
    for resolution in grids["loss"]:
        for quantity, grid in grids.items():
            names = grid.get(resolution, {})
            constant = stage.last(names[None]) if None in names else None
            values = [stage.last(names[budget]) if budget in names else None for budget in budgets]
            cells = [_loss(value, constant) for value in values]
            rows.append([f"{resolution} px", quantity, *cells, _loss(constant, None)])
    note = (
        "The constant is the best answer that ignores the image: the mean target of each position. "
        "▲ marks a loss that is not below it."
    )
    return f'<h3>{title}</h3>{html_table(rows)}<p class="note">{note}</p>'


def _loss(value: float | None, constant: float | None) -> str:
    if value is None:
        return "–"
    beaten = constant is None or value < constant
    return f"{value:.4f}" if beaten else f'<strong class="worse">{value:.4f} ▲</strong>'


def _loss_figures(stage: Stage) -> dict[str, str]:
    lines = [
        Line(name, stage.curve(f"train/{name}"), COLOURS[place]) for place, name in enumerate(QUANTITIES)
    ]
    figures = {"Training losses": line_chart(lines, x_label=STEP, y_label="loss")}
    for resolution, names in stage.grid("val").items():
        lines = _budget_lines(stage, names)
        figures[f"Validation at {resolution} px"] = line_chart(lines, x_label=STEP, y_label="val loss")
    figures["Elastic curve: one model, every budget"] = _elastic(stage)
    return figures


def _budget_lines(stage: Stage, names: dict[int | None, str]) -> list[Line]:
    """One line per budget, the full one in the first colour, and the constant dashed."""
    budgets = [budget for budget in names if budget is not None]
    lines = [
        Line(f"budget {budget}", stage.curve(names[budget]), COLOURS[place % len(COLOURS)])
        for place, budget in enumerate(reversed(budgets))
    ]
    if None in names:
        lines.append(Line("constant", stage.curve(names[None]), GREY, dashed=True))
    return lines


def _elastic(stage: Stage) -> str:
    """Final validation loss against the budget, a line per resolution with its constant dashed."""
    lines = []
    for place, (resolution, names) in enumerate(stage.grid("val").items()):
        final = {budget: stage.metrics[name][-1][1] for budget, name in names.items()}
        points = [(float(budget), value) for budget, value in final.items() if budget is not None]
        colour = COLOURS[place % len(COLOURS)]
        lines.append(Line(f"{resolution} px", points, colour))
        if None in final and len(points) > 1:
            ends = [(points[0][0], final[None]), (points[-1][0], final[None])]
            lines.append(Line(f"{resolution} px, constant", ends, colour, dashed=True))
    budgets = sorted({point[0] for line in lines for point in line.points})
    if len(budgets) < 2:
        return ""
    return line_chart(lines, x_label="budget (active cores)", y_label="val loss", x_ticks=budgets)


def _run_figures(stage: Stage) -> dict[str, str]:
    rates = [
        Line(name, stage.curve(f"lr/{name}"), COLOURS[place])
        for place, name in enumerate(("normuon", "adamw"))
    ]
    speed = [Line("images/s", stage.curve("train/images_per_second"), COLOURS[2])]
    return {
        "Learning rates": line_chart(rates, x_label=STEP, y_label="learning rate", from_zero=True),
        "Throughput": line_chart(speed, x_label=STEP, y_label="images per second", from_zero=True),
        "Budgets drawn": _histogram(stage, "train/budget", "budget (active cores)"),
        "Resolutions drawn": _histogram(stage, "train/resolution", "resolution (pixels)"),
    }


def _histogram(stage: Stage, name: str, x_label: str) -> str:
    found = Counter(value for _, value in finite(stage.curve(name)))
    counts = {number(value): found[value] for value in sorted(found)}
    return bar_chart(counts, x_label=x_label, y_label="logged steps")


def _figures(title: str, charts: dict[str, str]) -> str:
    figures = [
        f"<figure><figcaption>{escape(caption)}</figcaption>{chart}</figure>"
        for caption, chart in charts.items()
        if chart
    ]
    heading = f"<h3>{title}</h3>" if title else ""
    return f'{heading}<div class="figures">{"".join(figures)}</div>' if figures else ""


def _skipped(stage: Stage) -> str:
    names = sorted(name for name in stage.metrics if "/skipped" in name)
    rows = [[escape(name), number(stage.metrics[name][-1][1])] for name in names]
    return "<h3>Skipped samples</h3>" + html_table([["metric", "samples"], *rows]) if rows else ""


def _environment(stage: Stage) -> str:
    """What every start of the run had in common, and from which step on something was another."""
    starts = [(start.get("step", 0), facts(start)) for start in stage.environment]
    names = dict.fromkeys(name for _, found in starts for name in found if name != "step")
    rows = []
    for name in names:
        values = [(step, found.get(name, "–")) for step, found in starts]
        spells = [next(group) for _, group in groupby(values, key=lambda value: value[1])]
        texts = [f"from step {step}: {text}" if len(spells) > 1 else text for step, text in spells]
        rows.append([escape(name), "<br>".join(map(escape, texts))])
    title = "<h3>Environment of the run</h3>"
    return f'{title}<div class="environment">{html_table([["fact", "value"], *rows])}</div>' if rows else ""


def _recipe(stage: Stage) -> str:
    if not stage.config:
        return ""
    return f"<details><summary>Recipe (config.yaml)</summary><pre>{escape(stage.config)}</pre></details>"
