"""The plot of an analysis: a panel per metric, layers across, a colour per budget, dashed baselines."""

from typing import TYPE_CHECKING, Any, NamedTuple

from veca.figures.sheet import Curve, Panel, draw_panels, ramp_colours

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Shown(NamedTuple):
    """How a metric is called in the plot."""

    metric: str
    title: str
    label: str


SHOWN = (
    Shown("core_rank", "redundancy: cores", "effective rank"),
    Shown("core_similarity", "redundancy: cores", "mean pairwise cosine"),
    Shown("map_rank", "redundancy: maps", "effective rank"),
    Shown("map_similarity", "redundancy: maps", "mean pairwise cosine"),
    Shown("augmentation_maps", "augmentation: maps\n(dashed: not matched back)", "correlation"),
    Shown("augmentation_places", "augmentation: places\n(dashed: not matched back)", "displacement / side"),
    Shown("resolution_maps", "resolution {against}: maps", "correlation"),
    Shown("resolution_places", "resolution {against}: places", "displacement / side"),
    Shown("budget_maps", "one more group: maps", "correlation"),
    Shown("budget_places", "one more group: places", "displacement / side"),
    Shown("roundness", "isotropy: roundness", "short / long axis"),
    Shown("extent", "isotropy: extent", "share of the image"),
    Shown("explained_within", "semantics, in an image\n(dashed: another's mask)", "explained entropy"),
    Shown("purity_within", "semantics, in an image\n(dashed: another's mask)", "purity"),
    Shown("explained_across", "semantics, over images\n(dashed: another's mask)", "explained entropy"),
    Shown("purity_across", "semantics, over images\n(dashed: another's mask)", "purity"),
)
BASELINES = ("unmatched", "other mask")


def draw_analysis(measures: list[dict[str, Any]], *, title: str) -> "Figure":
    """A panel for each metric that was measured."""
    budgets = sorted({measure["budget"] for measure in measures})
    colours = dict(zip(budgets, ramp_colours(len(budgets)), strict=True))
    panels = []
    for shown in SHOWN:
        found = [measure for measure in measures if measure["metric"] == shown.metric]
        for against in dict.fromkeys(m["against"] for m in found if m["against"] not in BASELINES):
            if shown.metric.startswith("budget_"):  # each budget has its own next one: one panel for all
                panels.append(_panel(shown, found, colours))
                break
            chosen = [m for m in found if m["against"] in (against, *BASELINES)]
            panels.append(_panel(shown._replace(title=shown.title.format(against=against)), chosen, colours))
    return draw_panels(panels, title=title, columns=4, note="Error bars: standard error over images.")


def _panel(shown: Shown, measures: list[dict[str, Any]], colours: dict[int, str]) -> Panel:
    curves = []
    for dashed in (False, True):
        for budget, colour in colours.items():
            rows = [m for m in measures if m["budget"] == budget and (m["against"] in BASELINES) == dashed]
            rows.sort(key=lambda row: int(row["layer"]))
            if rows:
                name = "" if dashed else f"{budget} cores"
                x, y = [float(row["layer"]) for row in rows], [float(row["value"]) for row in rows]
                errors = [float(row["error"] or 0.0) for row in rows]
                curves.append(Curve(name, x, y, errors, colour, dashed=dashed, marker="" if dashed else "o"))
    ticks = sorted({x for curve in curves for x in curve.x})
    return Panel(shown.title, curves, "layer", shown.label, x_ticks=ticks)
