"""What a run's folder says, stage by stage, and what it comes to: the student beside the constant.

A run is one folder with metrics.csv, or a folder of such folders (RUN/pretrain, RUN/multires).
"""

import math
import re
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from veca.probes.results import Results, read_results
from veca.train.run_dir import METRICS_NAME, read_metrics
from veca.train.snapshots import ENVIRONMENT_NAME, Snapshot, Start, read_environment, read_snapshots
from veca.utils.chart import Line, Points, line_chart, number

CONFIG_NAME = "config.yaml"
BUDGET = "budget (active cores)"
STAGE_ORDER = ("pretrain", "multires")  # others follow by name

_GRID_NAME = re.compile(
    r"(?P<split>val|test)/r(?P<resolution>\d+)/(?:b(?P<budget>\d+)|constant)/(?P<quantity>\w+)"
)


@dataclass(frozen=True)
class Stage:
    """One folder with metrics, a recipe or probes."""

    name: str
    config: str = ""
    metrics: dict[str, Points] = field(default_factory=dict)  # (step, value) in the order of the file
    probes: list[Results] = field(default_factory=list)
    snapshots: list[Snapshot] = field(default_factory=list)  # by step
    environment: list[Start] = field(default_factory=list)  # one entry for each start of the run

    @property
    def empty(self) -> bool:
        return not (self.config or self.metrics or self.probes)

    def last(self, name: str) -> float | None:
        points = self.metrics.get(name)
        return points[-1][1] if points else None

    def curve(self, name: str) -> Points:
        """The values of the training run: a later `veca validate` also appends, but at step 0."""
        points: Points = []
        for step, value in self.metrics.get(name, ()):
            if not points or step > points[-1][0]:
                points.append((step, value))
        return points

    def grid(self, split: str, quantity: str = "loss") -> dict[int, dict[int | None, str]]:
        """resolution → budget → name of the metric; budget None stands for the constant."""
        found: dict[int, dict[int | None, str]] = {}
        for name in self.metrics:
            match = _GRID_NAME.fullmatch(name)
            if match and match["split"] == split and match["quantity"] == quantity:
                budget = int(match["budget"]) if match["budget"] else None
                found.setdefault(int(match["resolution"]), {})[budget] = name

        def order(item: tuple[int | None, str]) -> tuple[bool, int]:
            return item[0] is None, item[0] or 0  # budgets ascending, the constant last

        return {
            resolution: dict(sorted(found[resolution].items(), key=order)) for resolution in sorted(found)
        }


def read_stages(run_dir: Path) -> list[Stage]:
    """The stages of a run, in order; the folder itself first when it holds something."""
    if not run_dir.is_dir():
        raise FileNotFoundError(
            f"no run at {run_dir}. Give the folder that `veca fit` writes, e.g. runs/demo."
        )
    known = {name: place for place, name in enumerate(STAGE_ORDER)}
    folders = [path for path in run_dir.iterdir() if path.is_dir()]
    folders.sort(key=lambda path: (known.get(path.name, len(known)), path.name))
    staged = [path for path in folders if (path / METRICS_NAME).is_file()]
    stages = [_read_stage(folder) for folder in (run_dir, *staged)]
    stages = [stage for stage in stages if not stage.empty]
    if not stages:
        raise FileNotFoundError(
            f"{run_dir} holds no {METRICS_NAME}, {CONFIG_NAME} or probe results, nor does a folder in it. "
            "Give the folder that `veca fit` writes."
        )
    return stages


def _read_stage(folder: Path) -> Stage:
    config = folder / CONFIG_NAME
    others = [path for path in sorted(folder.glob("*.json")) if path.name != ENVIRONMENT_NAME]
    probes = [read_results(path) for path in others]
    return Stage(
        name=folder.resolve().name,
        config=config.read_text(encoding="utf-8") if config.is_file() else "",
        metrics=_read_points(folder / METRICS_NAME),
        probes=[results for results in probes if results is not None],
        snapshots=read_snapshots(folder),
        environment=read_environment(folder / ENVIRONMENT_NAME),
    )


def _read_points(path: Path) -> dict[str, Points]:
    points: dict[str, Points] = {}
    if path.is_file():
        for step, name, value in read_metrics(path):
            points.setdefault(name, []).append((step, value))
    return points


class Verdict(NamedTuple):
    """What the report opens with."""

    sentence: str
    charts: dict[str, str]


class Outcome(NamedTuple):
    """The final validation at one resolution and budget."""

    resolution: int
    budget: int
    loss: float
    constant: float | None

    @property
    def margin(self) -> float:
        """How far the loss lies below the constant's, in percent of it."""
        assert self.constant is not None
        return 100 * (1 - self.loss / self.constant)

    def __str__(self) -> str:
        margin = f"{abs(self.margin):.1f} % {'below' if self.margin > 0 else 'above'} it"
        place = f"({self.resolution} px, budget {self.budget})"
        return f"{margin if math.isfinite(self.margin) else 'not finite'} {place}"


def judge(stages: list[Stage]) -> Verdict | None:
    """The verdict on the last stage that was validated."""
    for stage in reversed(stages):
        if outcomes := _outcomes(stage):
            caption = f"{stage.name}: final validation loss at every budget"
            return Verdict(_sentence(outcomes), {caption: _chart(outcomes)})
    return None


def _outcomes(stage: Stage) -> list[Outcome]:
    outcomes = []
    for resolution, names in stage.grid("val").items():
        constant = stage.last(names[None]) if None in names else None
        for budget, name in names.items():
            loss = stage.last(name)
            if budget is not None and loss is not None:
                finite = loss if math.isfinite(loss) else math.inf
                outcomes.append(Outcome(resolution, budget, finite, constant))
    return outcomes


def _sentence(outcomes: list[Outcome]) -> str:
    compared = [one for one in outcomes if one.constant]
    order = _order(outcomes)
    if not compared:
        return f"There is no constant to compare the student with{order}."
    best, worst = (choose(compared, key=lambda one: one.margin) for choose in (max, min))
    won = sum(one.margin > 0 for one in compared)
    if won == len(compared):
        claim = "The student beats the constant at every resolution and budget"
    elif won:
        claim = f"The student beats the constant in {won} of {len(compared)} cases (resolution × budget)"
    else:
        claim = "The student beats the constant nowhere"
    ends = f"best {best}" + (f", worst {worst}" if worst != best else "")
    return f"{claim}: {ends}{order}."


def _order(outcomes: list[Outcome]) -> str:
    """Whether more cores are better, as they should be."""
    pairs = [(a, b) for a, b in pairwise(outcomes) if a.resolution == b.resolution]
    wrong = [(a, b) for a, b in pairs if not b.loss <= a.loss]
    if not pairs:
        return ""
    if not wrong:
        return "; a larger budget is nowhere worse"
    less, more = max(wrong, key=lambda pair: pair[1].loss - pair[0].loss)
    return (
        f"; in {len(wrong)} of {len(pairs)} steps a larger budget is worse, most at {less.resolution} px: "
        f"{number(more.loss)} with {more.budget} cores, {number(less.loss)} with {less.budget}"
    )


def _chart(outcomes: list[Outcome]) -> str:
    """Losses as shares of the constant's, so that one level stands for it at all resolutions."""
    compared = all(one.constant for one in outcomes)
    curves: dict[int, Points] = {}
    for one in outcomes:
        shown = 100 - one.margin if compared else one.loss
        curves.setdefault(one.resolution, []).append((float(one.budget), shown))
    lines = [Line(f"{resolution} px", points) for resolution, points in curves.items()]
    budgets = sorted({float(one.budget) for one in outcomes})
    if compared:
        lines.append(Line("constant", [(budgets[0], 100.0), (budgets[-1], 100.0)], dashed=True))
    label = "val loss, % of the constant's" if compared else "val loss"
    return line_chart(lines, x_label=BUDGET, y_label=label, x_ticks=budgets)
