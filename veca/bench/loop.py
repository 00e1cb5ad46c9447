"""What the training loop costs on top of its work: `Distill` under Lightning next to a bare PyTorch loop.

Both train the same student from the same weights on the same batches in memory, with the same frozen
teacher, budgets, loss, optimizer and schedule: their weights agree in the end, to rounding. The bare loop
does nothing else: it logs nothing, watches for no loss that is not finite, and draws its budgets beforehand.
Start-up is left out: the clock starts with the third step. Neither loop waits for anything and both run on
one thread, so CPU time tells their costs apart where wall-clock tells how busy the machine is.
"""

import copy
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

from veca.bench.goals import said
from veca.data.resolutions import Phase, ResolutionSchedule
from veca.data.views import normalise
from veca.optim.settings import Optimization
from veca.teachers import OfflineTeacher
from veca.train.budgets import STRATEGY_NAME
from veca.train.distill import Distill
from veca.train.losses import distillation_loss
from veca.train.run_dir import MetricsLog
from veca.types import Batch
from veca.utils.lightning_compat import quiet_lightning
from veca.utils.timing import Timing, compare, interleave

LOOPS = ("bare", "lightning")
RESOLUTION = 64
BATCH_SIZE = 16
LOG_EVERY = 50  # as in the recipes
UNTIMED = 2  # first steps, in which optimizer state is made
BUDGETS = {8: 1.0, 16: 1.0, 24: 2.0, 32: 2.0, 40: 3.0, 48: 3.0, 56: 4.0, 64: 4.0}


def run(*, num_steps: int = LOG_EVERY, repeats: int = 5) -> dict[str, float]:
    """Time the training loop next to a bare PyTorch loop; it should cost at most 3 % more CPU time.

    Args:
        num_steps: Steps that are timed in a turn.
        repeats: Turns of each loop.
    """
    seconds: dict[str, list[Seconds]] = {name: [] for name in LOOPS}
    with one_thread(), quiet_lightning():
        model, batches = make_model(), make_batches(num=4)

        def timed(name: str, fit: Callable[..., Seconds]) -> Callable[[], None]:
            return lambda: seconds[name].append(fit(copy.deepcopy(model), batches, num_steps=num_steps))

        candidates = {"bare": timed("bare", fit_bare), "lightning": timed("lightning", fit_lightning)}
        interleave(candidates, repeats=repeats, warmup=1)  # takes turns; the clocks are our own
    results: dict[str, float] = {}
    for place, kind in enumerate(Seconds._fields):
        timings = {name: Timing(tuple(v[place] for v in values[1:])) for name, values in seconds.items()}
        results |= compare(timings, {f"{kind}_ratio": ("lightning", "bare")})
        results |= {f"{name}_{kind}_seconds": timings[name].median / num_steps for name in LOOPS}
    return said("loop", results)


class Seconds(NamedTuple):
    """Two clocks: CPU time does not count what other processes take from this one, wall-clock does."""

    cpu: float
    wall: float

    @classmethod
    def now(cls) -> "Seconds":
        return cls(time.process_time(), time.perf_counter())

    def since(self, start: "Seconds") -> "Seconds":
        return Seconds(self.cpu - start.cpu, self.wall - start.wall)


def fit_bare(model: Distill, batches: list[Batch], *, num_steps: int) -> Seconds:
    """The work and nothing else; seconds of `num_steps` steps."""
    steps = UNTIMED + num_steps
    optimizer, scheduler = model.optimization.make(model.student, max_steps=steps, steps_per_epoch=steps)
    budgets = [model.schedule.budget(step) for step in range(steps)]
    model.train()
    start = Seconds.now()
    for step, budget in enumerate(budgets):
        if step == UNTIMED:
            start = Seconds.now()
        batch = batches[step % len(batches)]
        targets = model.teacher(batch.images)
        features = model.student(normalise(batch.images), budget=budget)
        loss = distillation_loss(features, targets, **model.loss_weights).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
    return Seconds.now().since(start)


def fit_lightning(model: Distill, batches: list[Batch], *, num_steps: int, devices: int = 1) -> Seconds:
    """The same through a Trainer, as `veca fit` sets it up; seconds of `num_steps` steps."""
    clock, steps = StepClock(first=UNTIMED), UNTIMED + num_steps
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            accelerator="cpu",
            devices=devices,
            strategy=STRATEGY_NAME,
            max_steps=steps,
            max_epochs=-1,
            log_every_n_steps=LOG_EVERY,
            logger=MetricsLog(Path(folder)),
            callbacks=[clock],
            default_root_dir=folder,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            limit_val_batches=0,
        )
        trainer.fit(model, datamodule=MemoryData(batches, length=steps))
    return clock.seconds


class StepClock(Callback):
    """Seconds from the start of step `first` to the end of the epoch, with all hooks and logs."""

    def __init__(self, *, first: int) -> None:
        self._first = first
        self._start = self.seconds = Seconds(0.0, 0.0)

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Batch, batch_idx: int
    ) -> None:
        if trainer.global_step == self._first:
            self._start = Seconds.now()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.seconds = Seconds.now().since(self._start)


class MemoryBatches:
    """An iterable over `length` batches: the same few, over and over. Lightning would unpack a plain list."""

    def __init__(self, batches: list[Batch], *, length: int) -> None:
        self._batches, self._length = batches, length

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Batch]:
        return (self._batches[step % len(self._batches)] for step in range(self._length))


class MemoryData(LightningDataModule):
    """Batches in memory behind what `Distill` asks of its data."""

    def __init__(self, batches: list[Batch], *, length: int) -> None:
        super().__init__()
        self.resolutions = ResolutionSchedule(phases=[Phase(0, {RESOLUTION: 1.0})], batch_size=BATCH_SIZE)
        self.resolution_of_step = self.resolutions.resolution
        self._train = MemoryBatches(batches, length=length)

    def train_dataloader(self) -> MemoryBatches:
        return self._train

    def val_dataloader(self) -> list[MemoryBatches]:
        return []  # nothing is validated, and Lightning need not warn of it

    def metrics(self) -> dict[str, float]:
        return {"train/skipped": 0.0}


def make_model(**options: Any) -> Distill:
    """A tiny student and a tiny teacher, the same at every call."""
    optimization = Optimization(lr=4e-4, min_lr=5e-5, weight_decay=0.015, warmup_steps=0)
    defaults: dict[str, Any] = {"size": "tiny", "budgets": BUDGETS, "optimization": optimization}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Distill(OfflineTeacher(), **{**defaults, **options})


def make_batches(*, num: int, resolution: int = RESOLUTION) -> list[Batch]:
    generator = torch.Generator().manual_seed(0)
    shape = (BATCH_SIZE, 3, resolution, resolution)
    keys = [f"{number:02d}" for number in range(BATCH_SIZE)]
    return [
        Batch(torch.randint(256, shape, dtype=torch.uint8, generator=generator), keys) for _ in range(num)
    ]


@contextmanager
def one_thread() -> Iterator[None]:
    """Threads that wait for each other would be the noise of this measurement."""
    threads, said = torch.get_num_threads(), os.environ.get("OMP_NUM_THREADS")
    # Lightning takes all cores for a process whose environment does not say how many.
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        del os.environ["OMP_NUM_THREADS"]
        if said is not None:
            os.environ["OMP_NUM_THREADS"] = said
