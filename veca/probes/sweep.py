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
from typing import Any, ClassVar

from lightning.fabric import Fabric
from lightning.fabric.strategies.ddp import DDPStrategy
from torch import Tensor

from veca.backbones import (
    DENSE_TASKS,
    Backbone,
    Grid,
    Names,
    Numbers,
    ProbedModel,
    Task,
    choose_grid,
    fitting_grid,
    open_model,
    split_names,
)
from veca.probes.datasets import open_dataset
from veca.probes.datasets.readers import Classes
from veca.probes.datasets.splits import Scanned, describe, scan_split
from veca.probes.features import Cached, CentreView, Viewer, extract, fingerprint, open_store
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
from veca.utils.files import write_text_atomic
from veca.utils.lightning_compat import ignore_warnings
from veca.utils.precision import FLOAT32, InferencePrecision, computing_in, resolve_precision

MODEL, RANDOM, PIXELS, CONSTANT = "model", "random weights", "raw pixels", "constant"
_ALWAYS_THEMSELVES = ("teacher:", "random:", "pixels", "c-radio")  # no random counterpart
_PATIENCE = timedelta(days=2)  # one device fits heads while the others wait


# The values of a cell, and what validation images decided.
Score = tuple[dict[str, float], dict[str, Any]]


class Sweep:
    """What is probed on what, and where it goes. All that is asked for is checked before any work.

    Args:
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

    def __init__(
        self,
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
    ) -> None:
        if seeds < 0:
            raise ValueError(f"seeds must be at least 0; got {seeds}. Try 3.")
        self.probe, self.model, self.data = probe, model, data
        self.fabric = _launch(devices)
        self.allow_remote_code = allow_remote_code
        self.opened = self._open(model)
        self.grid = choose_grid(self.opened, task=task, budgets=budgets, resolutions=resolutions)
        self.path = results_path(model, out, probe=probe)
        self.cache = cache or self.path.parent / "probe-cache"
        self.dataset = open_dataset(data, task=task, classes=classes)
        splits, dropped = self.dataset.splits, self.dataset.dropped
        if "train" not in splits or len(splits) < 2:
            found = ", ".join(splits) or "nothing"
            raise ValueError(f"{data} must have the split train, and val or test; it has {found}.")
        if dropped:
            self.say(
                f"{data}: {len(dropped)} classes are left out, as a split lacks them: {', '.join(dropped)}"
            )
        self.judged = "test" if "test" in splits else "val"
        # The split that chooses between settings; None when a part of train has to.
        self.chooses = "val" if self.judged == "test" and "val" in splits else None
        self.compare = split_names(compare)
        self.seeds = 0 if model.startswith(_ALWAYS_THEMSELVES) else seeds
        self.precision = resolve_precision(precision, accelerator=self.fabric.device.type)

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

    def run(self, probe: "Probe") -> None:
        """Measure every cell that is not measured yet; write and print the results."""
        left_out = {"classes left out": list(self.dataset.dropped)} if self.dataset.dropped else {}
        results = Results(
            probe=self.probe,
            model=self.model,
            data=self.data,
            quantities=list(probe.quantities),
            settings={**probe.settings, "seeds": self.seeds, **self._unless_float32(), **left_out},
            counts={name: scanned.counts for name, scanned in probe.splits.items()},
            unreadable={name: why for one in probe.splits.values() for name, why in one.unreadable.items()},
            paper=paper_cells(self.dataset.name, probe.quantities[0], budgets=self.grid.budgets),
            complete=False,
        )
        finished = _finished(self.path)
        self.fabric.barrier()  # everybody has read before anybody writes
        used = 0
        for cell, backbone in self._plan():
            cell, size = self._measure(probe, cell, backbone, finished)
            used += size
            results.cells.append(cell)
            if self.fabric.is_global_zero:
                write_results(self.path, results)
        results.cells.append(Cell(CONSTANT, None, None, probe.constant()))
        if self.fabric.is_global_zero:
            write_results(self.path, replace(results, complete=True))
            text = markdown(table(results))
            write_text_atomic(self.path.with_suffix(".md"), text + "\n")
            if picture := elastic_picture(results):
                write_text_atomic(self.path.with_suffix(".svg"), picture)
            print(f"\n{text}\n\nfeatures: {self.cache} ({used / 1e6:,.0f} MB)\n{self.path}")

    def _measure(
        self, probe: "Probe", cell: Cell, backbone: Backbone, finished: dict[str, Cell]
    ) -> tuple[Cell, int]:
        """The cell with its values, and the bytes of its features; all devices make these, one fits heads."""
        assert cell.resolution is not None
        viewers, stores, title = {}, {}, _title(cell)
        for name, scanned in probe.splits.items():
            viewers[name] = probe.viewer(name, resolution=cell.resolution, patch_size=backbone.patch_size)
            stores[name] = open_store(
                self.cache,
                backbone,
                viewers[name],
                digest=scanned.digest,
                num_items=len(scanned.items),
                about=f"{self.data}, {scanned.name}",
                **self._unless_float32(),
            )
        key = fingerprint([probe.settings, {name: store.folder.name for name, store in stores.items()}])
        if key in finished:
            self.say(f"{title}: measured before")
            return replace(cell, values=finished[key].values, chosen=finished[key].chosen, key=key), 0
        for name, store in stores.items():
            items, label = probe.splits[name].items, f"{title}, {name}"
            with computing_in(self.precision, self.fabric.device):
                extract(backbone, items, store, viewers[name], fabric=self.fabric, label=label)
        values, chosen = dict[str, float](), dict[str, Any]()
        if self.fabric.is_global_zero:
            values, chosen = probe.score({name: Cached(store) for name, store in stores.items()})
        size = sum(store.num_bytes() for store in stores.values())
        return replace(cell, values=values, chosen=chosen, key=key), size

    def _plan(self) -> Iterator[tuple[Cell, Backbone]]:
        """Empty cells with what fills them; one model is held at a time beside the one that is probed."""
        task = self.dataset.task
        yield from _cells(MODEL, self.opened, self.grid)
        for spec in self.compare:
            other = self._open(spec)
            yield from _cells(other.name, other, fitting_grid(other, self.grid, task=task))
        for resolution in self.grid.resolutions:
            for budget in self.grid.budgets:
                for seed in range(self.seeds):
                    fresh = self._open(self.model, seed=seed)
                    yield from _cells(RANDOM, fresh, Grid([budget], [resolution]), seed=seed)
        if self.model != "pixels":
            pixels = self._open("pixels")
            grid = Grid([None], [pixels.default_resolution(task)])
            if task in DENSE_TASKS:
                grid = fitting_grid(pixels, self.grid, task=task)
            yield from _cells(PIXELS, pixels, grid)

    def _open(self, spec: str, *, seed: int | None = None) -> ProbedModel:
        model = open_model(spec, seed=seed, allow_remote_code=self.allow_remote_code)
        return model.to(self.fabric.device)

    def _unless_float32(self) -> dict[str, str]:
        """Named only where it is not float32: what was made before there was a choice stays valid."""
        return {} if self.precision == FLOAT32 else {"precision": self.precision}


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

    @property
    def num_classes(self) -> int:
        return len(self.sweep.dataset.classes)

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


def _cells(
    name: str, model: ProbedModel, grid: Grid, *, seed: int | None = None
) -> Iterator[tuple[Cell, Backbone]]:
    for resolution in grid.resolutions:
        for budget in grid.budgets:
            yield Cell(name, budget, resolution, {}, seed=seed), model.at(budget)


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
