"""Every backbone of a table at every budget and resolution, each measured once.

A probe says how its splits are seen and how features become numbers; the sweep opens models and data, makes
features, keeps results as they come, and sets the baselines beside the model: random weights over several
seeds, raw pixels, and what ignores the image altogether.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from lightning.fabric import Fabric
from lightning.fabric.strategies.ddp import DDPStrategy
from torch import Tensor

from veca.backbones import DENSE_TASKS, Task
from veca.backbones.models import Backbone, ProbedModel, open_model
from veca.probes.datasets import Classes, open_dataset
from veca.probes.datasets.splits import Dataset
from veca.probes.features import Cached, extract, fingerprint, open_store
from veca.probes.heads import VAL_SHARE, choose
from veca.probes.results import (
    RATE,
    Cell,
    Results,
    elastic_picture,
    markdown,
    paper_cells,
    read_results,
    results_path,
    table,
    write_results,
)
from veca.probes.scan import Scanned, describe, scan_split
from veca.probes.settings import Grid, Names, Numbers, choose_grid, fitting_grid, split_names
from veca.probes.views import CentreView, Viewer
from veca.utils.files import write_text_atomic
from veca.utils.lightning_compat import ignore_warnings
from veca.utils.precision import FLOAT32, InferencePrecision, computing_in, resolve_precision

MODEL, RANDOM, PIXELS, CONSTANT = "model", "random weights", "raw pixels", "constant"
CACHE_NAME = "probe-cache"
_ALWAYS_THEMSELVES = ("teacher:", "random:", "pixels", "c-radio")  # no random counterpart
_PATIENCE = timedelta(days=2)  # one device fits heads while the others wait


class Score(NamedTuple):
    """The values of a cell, and what validation images decided."""

    values: dict[str, float]
    chosen: dict[str, Any]


@dataclass(frozen=True)
class Sweep:
    """What is probed on what, and where it goes."""

    probe: str
    model: str
    data: str
    opened: ProbedModel
    dataset: Dataset
    grid: Grid
    compare: list[str]
    seeds: int
    path: Path
    cache: Path
    fabric: Fabric
    precision: str
    allow_remote_code: bool

    @property
    def judged(self) -> str:
        return "test" if "test" in self.dataset.splits else "val"

    @property
    def chooses(self) -> str | None:
        """The split that chooses between settings; None when a part of train has to."""
        return "val" if self.judged == "test" and "val" in self.dataset.splits else None

    def scan(self, *names: str | None) -> dict[str, Scanned]:
        """Check and describe some splits."""
        found = {}
        for name in filter(None, names):
            found[name] = scan_split(self.dataset, name, quiet=not self.fabric.is_global_zero)
            self.say(describe(found[name], self.dataset.task))
        return found

    def say(self, line: str) -> None:
        if self.fabric.is_global_zero:
            print(line, flush=True)


@dataclass(frozen=True)
class Probe(ABC):
    """What one kind of probe adds to a sweep; `splits` are those whose features are needed."""

    sweep: Sweep
    splits: dict[str, Scanned]

    @property
    @abstractmethod
    def quantities(self) -> tuple[str, ...]:
        """What is measured; the first counts."""

    @property
    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """What decides the values beside the features, as JSON."""

    @abstractmethod
    def score(self, features: dict[str, Cached]) -> Score: ...

    @abstractmethod
    def constant(self) -> dict[str, float]:
        """The quantities of the best answer that ignores the image, as the training images tell it."""

    @property
    def judged(self) -> Scanned:
        return self.splits[self.sweep.judged]

    def viewer(self, split: str, *, resolution: int, patch_size: int) -> Viewer:
        return CentreView(resolution)

    def targets(self, split: str) -> Tensor:
        """Labels (n,), or 0, 1 and IGNORED of several classes (n, C)."""
        return self.splits[split].labels


@dataclass(frozen=True)
class FittedProbe(Probe):
    """A probe with heads of several learning rates, of which validation images choose one."""

    epochs: int
    rates: ClassVar[tuple[float, ...]]
    optimizer: ClassVar[str]

    @property
    def settings(self) -> dict[str, Any]:
        chooses = self.sweep.chooses or f"{VAL_SHARE:.0%} of train"
        return {
            "optimizer": self.optimizer,
            "epochs": self.epochs,
            "learning rates": list(self.rates),
            "chosen on": f"{chooses}, then fitted again on train and these",
            "judged on": self.sweep.judged,
        }

    def choose_rate(self, scores: list[float]) -> tuple[float, dict[str, Any]]:
        """The rate of the best score, and what the choice was made from."""
        rate, names = self.rates[choose(scores)], [f"{rate:g}" for rate in self.rates]
        return rate, {RATE: rate, "validation": dict(zip(names, scores, strict=True))}


def open_sweep(
    model: str,
    data: str,
    *,
    probe: str,
    task: Task,
    budgets: Numbers = None,
    resolutions: Numbers = None,
    compare: Names = None,
    classes: Classes = "all",
    out: Path | None = None,
    cache: Path | None = None,
    seeds: int = 3,
    devices: int | str = "auto",
    precision: InferencePrecision = FLOAT32,
    allow_remote_code: bool = False,
) -> Sweep:
    """Open a model and data and check what is asked for, before any work.

    Args:
        model: Folder with model.safetensors, a run's .ckpt, the authors' .pt, a Hub id, or a peer's name.
        data: Folder of images with labels, folder of shards, or NAME:FOLDER for a dataset of the paper.
        probe: Name of the probe.
        task: What its head answers.
        budgets: Budgets to run, as 8,64; by default the smallest and all cores.
        resolutions: Resolutions to run, as 256,512; by default the model's own for the task.
        compare: Other models for the same table, with commas between them, e.g. teacher:EfficientNetTeacher.
        classes: all: a class that a split lacks is an error. common: such classes are left out and named.
        out: JSON to write; by default PROBE.json beside the model or in the run's folder. Table and plot go
            beside it, as .md and .svg.
        cache: Folder for features; by default probe-cache beside the JSON. Delete it when you are done.
        seeds: Models with random weights to compare with; 0 for none.
        devices: Devices that make features, e.g. 8; by default all GPUs, or the CPU.
        precision: Of the features: 32-true for numbers to compare with others. bf16-mixed takes less time on
            GPUs and on CPUs that multiply bf16; auto is bf16-mixed there, 32-true elsewhere.
        allow_remote_code: Run the code that some model repositories bring along.
    """
    if seeds < 0:
        raise ValueError(f"seeds must be at least 0; got {seeds}. Try 3.")
    fabric = _launch(devices)
    opened = open_model(model, allow_remote_code=allow_remote_code).to(fabric.device)
    grid = choose_grid(opened, task=task, budgets=budgets, resolutions=resolutions)
    path = results_path(model, out, probe=probe)
    dataset = open_dataset(data, task=task, classes=classes)
    if "train" not in dataset.splits or len(dataset.splits) < 2:
        found = ", ".join(dataset.splits) or "nothing"
        raise ValueError(f"{data} must have the split train, and val or test; it has {found}.")
    if (left_out := dataset.dropped) and fabric.is_global_zero:
        print(f"{data}: {len(left_out)} classes are left out, as a split lacks them: {', '.join(left_out)}")
    return Sweep(
        probe=probe,
        model=model,
        data=data,
        opened=opened,
        dataset=dataset,
        grid=grid,
        compare=split_names(compare),
        seeds=0 if model.startswith(_ALWAYS_THEMSELVES) else seeds,
        path=path,
        cache=cache or path.parent / CACHE_NAME,
        fabric=fabric,
        precision=resolve_precision(precision, accelerator=fabric.device.type),
        allow_remote_code=allow_remote_code,
    )


def run_sweep(sweep: Sweep, probe: Probe) -> None:
    """Measure every cell that is not measured yet; write and print the results."""
    left_out = {"classes left out": list(sweep.dataset.dropped)} if sweep.dataset.dropped else {}
    results = Results(
        probe=sweep.probe,
        model=sweep.model,
        data=sweep.data,
        quantities=list(probe.quantities),
        settings={**probe.settings, "seeds": sweep.seeds, **_unless_float32(sweep.precision), **left_out},
        counts={name: scanned.scan.counts for name, scanned in probe.splits.items()},
        unreadable={name: reason for one in probe.splits.values() for name, reason in one.unreadable.items()},
        paper=paper_cells(sweep.dataset.name, probe.quantities[0], budgets=sweep.grid.budgets),
        complete=False,
    )
    finished = _finished(sweep.path)
    sweep.fabric.barrier()  # everybody has read before anybody writes
    used = 0
    for cell, backbone in _plan(sweep):
        cell, size = _measure(sweep, probe, cell, backbone, finished)
        used += size
        results = replace(results, cells=[*results.cells, cell])
        if sweep.fabric.is_global_zero:
            write_results(sweep.path, results)
    constant = Cell(CONSTANT, None, None, probe.constant())
    results = replace(results, cells=[*results.cells, constant], complete=True)
    if sweep.fabric.is_global_zero:
        write_results(sweep.path, results)
        text = markdown(table(results))
        write_text_atomic(sweep.path.with_suffix(".md"), text + "\n")
        if picture := elastic_picture(results):
            write_text_atomic(sweep.path.with_suffix(".svg"), picture)
        print(f"\n{text}\n\nfeatures: {sweep.cache} ({used / 1e6:,.0f} MB)\n{sweep.path}")


def _measure(
    sweep: Sweep, probe: Probe, cell: Cell, backbone: Backbone, finished: dict[str, Cell]
) -> tuple[Cell, int]:
    """The cell with its values, and the bytes of its features; all devices make features, one fits heads."""
    assert cell.resolution is not None
    viewers = {
        name: probe.viewer(name, resolution=cell.resolution, patch_size=backbone.patch_size)
        for name in probe.splits
    }
    stores = {
        name: open_store(
            sweep.cache,
            backbone,
            viewers[name],
            digest=scanned.scan.digest,
            num_items=len(scanned.items),
            about=f"{sweep.data}, {scanned.name}",
            **_unless_float32(sweep.precision),
        )
        for name, scanned in probe.splits.items()
    }
    key = fingerprint([probe.settings, {name: store.folder.name for name, store in stores.items()}])
    if key in finished:
        sweep.say(f"{_title(cell)}: measured before")
        return replace(cell, values=finished[key].values, chosen=finished[key].chosen, key=key), 0
    for name, store in stores.items():
        label = f"{_title(cell)}, {name}"
        items = probe.splits[name].items
        with computing_in(sweep.precision, sweep.fabric.device):
            extract(backbone, items, store, viewers[name], fabric=sweep.fabric, label=label)
    score = Score({}, {})
    if sweep.fabric.is_global_zero:
        score = probe.score({name: store.read() for name, store in stores.items()})
    return replace(cell, values=score.values, chosen=score.chosen, key=key), sum(
        store.num_bytes() for store in stores.values()
    )


def _plan(sweep: Sweep) -> Iterator[tuple[Cell, Backbone]]:
    """Empty cells with what fills them; one model is held at a time beside the one that is probed."""
    task = sweep.dataset.task
    yield from _cells(MODEL, sweep.opened, sweep.grid)
    for spec in sweep.compare:
        other = _open(sweep, spec)
        yield from _cells(other.name, other, fitting_grid(other, sweep.grid, task=task))
    for resolution in sweep.grid.resolutions:
        for budget in sweep.grid.budgets:
            for seed in range(sweep.seeds):
                fresh = _open(sweep, sweep.model, seed=seed)
                yield from _cells(RANDOM, fresh, Grid([budget], [resolution]), seed=seed)
    if sweep.model != "pixels":
        pixels = _open(sweep, "pixels")
        grid = Grid([None], [pixels.default_resolution(task)])
        if task in DENSE_TASKS:
            grid = fitting_grid(pixels, sweep.grid, task=task)
        yield from _cells(PIXELS, pixels, grid)


def _cells(
    name: str, model: ProbedModel, grid: Grid, *, seed: int | None = None
) -> Iterator[tuple[Cell, Backbone]]:
    for resolution in grid.resolutions:
        for budget in grid.budgets:
            yield Cell(name, budget, resolution, {}, seed=seed), model.at(budget)


def _open(sweep: Sweep, spec: str, *, seed: int | None = None) -> ProbedModel:
    model = open_model(spec, seed=seed, allow_remote_code=sweep.allow_remote_code)
    return model.to(sweep.fabric.device)


def _unless_float32(precision: str) -> dict[str, str]:
    """Named only where it is not float32: features and results of before there was a choice stay valid."""
    return {} if precision == FLOAT32 else {"precision": precision}


def _finished(path: Path) -> dict[str, Cell]:
    """The cells of an earlier run by their keys; unreadable earlier results are ignored."""
    try:
        earlier = read_results(path) if path.exists() else None
    except ValueError:
        earlier = None
    return {cell.key: cell for cell in earlier.cells if cell.key} if earlier else {}


def _title(cell: Cell) -> str:
    words = [cell.name, "" if cell.budget is None else f"budget {cell.budget}", f"{cell.resolution} px"]
    words.append("" if cell.seed is None else f"seed {cell.seed}")
    return ", ".join(filter(None, words))


def _launch(devices: int | str) -> Fabric:
    """One process per device; Lightning starts the others."""
    ignore_warnings()
    fabric = Fabric(accelerator="auto", devices=devices)
    if isinstance(fabric.strategy, DDPStrategy):
        fabric = Fabric(accelerator="auto", devices=devices, strategy=DDPStrategy(timeout=_PATIENCE))
    fabric.launch()
    return fabric
