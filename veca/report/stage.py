"""What a run's folder says: recipe, metrics, probes, snapshots and environment, stage by stage.

A run is one folder with metrics.csv, or a folder of such folders (RUN/pretrain, RUN/multires).
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

from veca.probes.results import Results, read_results
from veca.train.run_dir import METRICS_NAME, read_metrics
from veca.train.snapshots import ENVIRONMENT_NAME, Snapshot, Start, read_environment, read_snapshots
from veca.utils.chart import Points

CONFIG_NAME = "config.yaml"
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
        return {resolution: _by_budget(found[resolution]) for resolution in sorted(found)}


def read_stages(run_dir: Path) -> list[Stage]:
    """The stages of a run, in order; the folder itself first when it holds something."""
    if not run_dir.is_dir():
        raise FileNotFoundError(
            f"no run at {run_dir}. Give the folder that `veca fit` writes, e.g. runs/demo."
        )
    folders = sorted((path for path in run_dir.iterdir() if path.is_dir()), key=_place)
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


def _place(folder: Path) -> tuple[int, str]:
    known = folder.name in STAGE_ORDER
    return (STAGE_ORDER.index(folder.name) if known else len(STAGE_ORDER), folder.name)


def _by_budget(names: dict[int | None, str]) -> dict[int | None, str]:
    """Budgets ascending, the constant last."""
    return dict(sorted(names.items(), key=lambda item: (item[0] is None, item[0] or 0)))
