"""What training costs beside its work: `loop`, `scale`, `cache`, and the heads of a `probe`."""

import copy
import io
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

from veca.bench.data import photo_shards, sample_reader
from veca.bench.harness import Case, Goal, Ratio, Steps, benchmark, one_thread
from veca.data.datamodule import ShardDataModule
from veca.data.loader import FreshViews, ViewSource
from veca.data.reader import Sample
from veca.data.resolutions import PATCH_SIZE, Phase, ResolutionSchedule
from veca.data.stored_targets import open_cache
from veca.data.stored_views import StoredViews
from veca.data.views import View, normalise
from veca.flops import (
    mean_over_budgets,
    meta_student,
    meta_teacher,
    polar_flops_per_rank,
    student_flops,
    teacher_flops,
)
from veca.model import Veca
from veca.model.sizes import resolve_size
from veca.optim.settings import Optimization
from veca.probes.classify import EPOCHS
from veca.probes.heads import RATES, fit_linear
from veca.teachers import OfflineTeacher, Teacher
from veca.teachers.dinov3 import is_gated
from veca.train.ddp import STRATEGY_NAME
from veca.train.distill import Distill
from veca.train.losses import distillation_loss
from veca.train.run_dir import MetricsLog
from veca.types import Batch, Targets
from veca.utils.lightning_compat import quiet_lightning

BUDGETS = {8: 1.0, 16: 1.0, 24: 2.0, 32: 2.0, 40: 3.0, 48: 3.0, 56: 4.0, 64: 4.0}
LOG_EVERY = 50  # as in the recipes
UNTIMED = 2  # first steps of the loops, in which optimizer state is made
RESOLUTION, BATCH_SIZE = 64, 16  # of the loops
# An update costs as much as several images; in a small batch, `cache` would time the optimizer.
CACHE_RESOLUTION, CACHE_BATCH_SIZE = 256, 32
CACHES = ("fp16", "int8")
# What a Trainer leaves in the environment of its process; another one would take itself for that rank.
LAUNCH_VARIABLES = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "NODE_RANK", "LOCAL_RANK", "RANK")


@benchmark
def loop(*, num_steps: int = LOG_EVERY, repeats: int = 5) -> Steps:
    """What the training loop costs on top of its work: `Distill` under Lightning next to a bare PyTorch loop.

    Both train the same student on the same batches in memory: their weights agree in the end, to rounding.
    The bare loop logs nothing, watches for no loss that is not finite, and draws its budgets beforehand.
    Neither loop waits for anything and both run on one thread, so CPU time tells their costs apart where
    wall-clock tells how busy the machine is.

    Args:
        num_steps: Steps that are timed in a turn.
        repeats: Turns of each loop.
    """
    with one_thread(), quiet_lightning():
        model, batches = make_model(), make_batches(num=4)

        def timed(name: str, fit: Callable[..., Seconds]) -> dict[str, float]:
            seconds = fit(copy.deepcopy(model), batches, num_steps=num_steps)
            return {f"{name}_cpu": seconds.cpu, f"{name}_wall": seconds.wall}

        loops: dict[str, Callable[..., Seconds]] = {"bare": fit_bare, "lightning": fit_lightning}
        yield Case(
            candidates={name: partial(timed, name, fit) for name, fit in loops.items()},
            ratios={
                "cpu_ratio": Ratio("lightning_cpu", "bare_cpu", Goal(1.03, at_most=True)),
                "wall_ratio": Ratio("lightning_wall", "bare_wall"),
            },
            unit="{}_seconds",
            amounts=dict.fromkeys(("bare_cpu", "lightning_cpu", "bare_wall", "lightning_wall"), num_steps),
            repeats=repeats,
            own_clock=True,
        )


class Seconds(NamedTuple):
    """Two clocks: CPU time does not count what other processes take from this one, wall-clock does."""

    cpu: float
    wall: float


def since(cpu: float, wall: float) -> Seconds:
    return Seconds(time.process_time() - cpu, time.perf_counter() - wall)


def fit_bare(model: Distill, batches: list[Batch], *, num_steps: int) -> Seconds:
    """The work and nothing else; seconds of `num_steps` steps."""
    steps = UNTIMED + num_steps
    optimizer, scheduler = model.optimization.make(model.student, max_steps=steps, steps_per_epoch=steps)
    budgets = [model.schedule.budget(step) for step in range(steps)]
    teacher = model.teacher
    assert teacher is not None
    model.train()
    start = since(0, 0)
    for step, budget in enumerate(budgets):
        if step == UNTIMED:
            start = since(0, 0)
        batch = batches[step % len(batches)]
        targets = teacher(batch.images)
        features = model.student(normalise(batch.images), budget=budget)
        loss = distillation_loss(features, targets, **model.loss_weights).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
    return since(*start)


def fit_lightning(model: Distill, batches: list[Batch], *, num_steps: int, devices: int = 1) -> Seconds:
    """The same through a Trainer, as `veca fit` sets it up; seconds of `num_steps` steps."""
    data = MemoryData(batches, length=UNTIMED + num_steps)
    return _fit(model, data, untimed=UNTIMED, num_steps=num_steps, devices=devices, log=True)


def _fit(
    model: Distill,
    data: LightningDataModule,
    *,
    untimed: int,
    num_steps: int,
    devices: int = 1,
    log: bool = False,
) -> Seconds:
    """Seconds of the steps after the first, untimed ones."""
    clock = StepClock(first=untimed)
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            accelerator="cpu",
            devices=devices,
            strategy=STRATEGY_NAME,
            max_steps=untimed + num_steps,
            max_epochs=-1,
            log_every_n_steps=LOG_EVERY,
            logger=MetricsLog(Path(folder)) if log else False,
            callbacks=[clock],
            default_root_dir=folder,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            limit_val_batches=0,
        )
        trainer.fit(model, datamodule=data)
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
            self._start = since(0, 0)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.seconds = since(*self._start)


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
        self.resolutions = ResolutionSchedule([Phase(0, {RESOLUTION: 1.0})], batch_size=BATCH_SIZE)
        self.resolution_of_step = self.resolutions.resolution
        self.stored = None
        self._train = MemoryBatches(batches, length=length)

    def train_dataloader(self) -> MemoryBatches:
        return self._train

    def val_dataloader(self) -> list[MemoryBatches]:
        return []  # nothing is validated, and Lightning need not warn of it

    def metrics(self) -> dict[str, float]:
        return {"train/skipped": 0.0}


def make_model(teacher: Teacher | None = None, **options: Any) -> Distill:
    """A tiny student and a tiny teacher, the same at every call."""
    optimization = Optimization(lr=4e-4, min_lr=5e-5, weight_decay=0.015, warmup_steps=0)
    defaults: dict[str, Any] = {"size": "tiny", "budgets": BUDGETS, "optimization": optimization}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        if options.get("stored") is None:
            teacher = teacher or OfflineTeacher()
        return Distill(teacher, **{**defaults, **options})


def make_batches(*, num: int) -> list[Batch]:
    shape = (num, BATCH_SIZE, 3, RESOLUTION, RESOLUTION)
    images = torch.randint(256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    return [Batch(batch, [f"{number:02d}" for number in range(BATCH_SIZE)]) for batch in images]


@benchmark
def scale(*, num_steps: int = 40, repeats: int = 3) -> Steps:
    """Images/s of two ranks beside those of one, each with one thread and the same batch.

    On a CPU ranks talk through gloo over loopback and share the memory's bandwidth; on GPUs the arithmetic is
    that of `veca plan`, which says what two of them exchange in a step.

    Args:
        num_steps: Optimizer steps that are timed.
        repeats: Turns of each number of ranks.
    """
    yield Case(
        candidates={str(n): partial(_time_ranks, n, num_steps) for n in (1, 2)},
        # Two ranks see two batches in a step; 2.00 would be free of any cost.
        ratios={"two_ranks_over_one": Ratio("1", "2", Goal(1.0), scale=2)},
        repeats=repeats,
        warmup=0,
        own_clock=True,
    )
    student = make_model().student.to("meta")
    assert isinstance(student, Veca)
    middle = sorted(BUDGETS)[len(BUDGETS) // 2]
    yield {
        "gradient_mb_per_step": 4 * sum(parameter.numel() for parameter in student.parameters()) / 1e6,
        "forward_gflops_per_image": student_flops(student, resolution=RESOLUTION, budget=middle) / 1e9,
        "normuon_gflops_one_rank": polar_flops_per_rank(student, num_ranks=1) / 1e9,
        "normuon_gflops_each_of_two": polar_flops_per_rank(student, num_ranks=2) / 1e9,
    }


def _time_ranks(ranks: int, num_steps: int) -> dict[str, float]:
    """Seconds of wall-clock as rank 0 sees them, in a process of its own, which starts the other."""
    command = [sys.executable, "-m", "veca.bench.training", str(ranks), str(num_steps)]
    environment = {key: value for key, value in os.environ.items() if key not in LAUNCH_VARIABLES}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    return {str(ranks): float(done.stdout.strip().splitlines()[-1])}


@benchmark
def cache(*, size: str = "small", num_images: int = 64, num_steps: int = 1, repeats: int = 3) -> Steps:
    """What a cache saves in a training step, and what reading it costs; on generated photos at 256 px.

    Four runs of the same student on the same images take turns, through `veca fit`'s own parts:

    * `live`: a teacher of the student's size runs in every step;
    * `fp16`, `int8`: targets come from a cache;
    * `memory`: images are read and decoded all the same, random targets lie in memory.

    `flop_speedup` is `cached_speedup` by arithmetic: what it would be if student, teacher and optimizer all
    ran at one rate. `int8_read_share` is what a worker does for int8 targets in a cold file, as a share of
    fp16; int8 is opened later, on the device.

    Args:
        size: tiny, small, small_plus, base or large, of student and teacher.
        num_images: Photos in the shards.
        num_steps: Timed steps of each run.
        repeats: Rounds.
    """
    with one_thread(), quiet_lightning(), photo_shards(num_images) as folder:
        teacher = OfflineTeacher(size)
        caches = {dtype: _make_cache(folder, teacher, dtype) for dtype in CACHES}
        schedule = ResolutionSchedule([Phase(0, {CACHE_RESOLUTION: 1.0})], batch_size=CACHE_BATCH_SIZE)
        options: dict[str, Any] = {"sources": folder, "resolutions": schedule, "num_workers": 0}
        data = {
            "live": ShardDataModule(**options),
            "memory": MemoryTargets(teacher.width, **options),
            **{dtype: ShardDataModule(targets=path, **options) for dtype, path in caches.items()},
        }

        def fit(name: str) -> dict[str, float]:
            stored = data[name].stored
            model = make_model(None if stored else teacher, stored=stored, size=size)
            # The first step makes the optimizer's state.
            return {name: _fit(model, data[name], untimed=1, num_steps=num_steps).wall}

        yield Case(
            candidates={name: partial(fit, name) for name in data},
            ratios={
                "cached_speedup": Ratio("live", "fp16", Goal(1.4)),
                "cached_speedup_int8": Ratio("live", "int8"),
                "reading_share": Ratio("fp16", "memory", Goal(1.1, at_most=True)),
                "reading_share_int8": Ratio("int8", "memory"),
            },
            unit="{}_images_per_s",
            amounts=dict.fromkeys(data, CACHE_BATCH_SIZE * num_steps),
            repeats=repeats,
            warmup=0,
            own_clock=True,
        )
        yield {"flop_speedup": flop_speedup(size)}
        samples = sample_reader(folder)()
        yield Case(
            candidates={dtype: partial(_read_targets, path, samples) for dtype, path in caches.items()},
            ratios={"int8_read_share": Ratio("int8", "fp16", Goal(1.0, at_most=True))},
            unit="read_{}_us",
            amounts=dict.fromkeys(caches, len(samples) / 1e6),
            repeats=max(3, repeats),
        )


def flop_speedup(
    size: str, *, resolution: int = CACHE_RESOLUTION, batch_size: int = CACHE_BATCH_SIZE
) -> float:
    """FLOPs of a step with a live teacher over those of one without, mean over the budgets."""
    shape = resolve_size(size, {})
    student = meta_student(size, {}, teacher_width=shape.width)
    forward = mean_over_budgets(
        {budget: student_flops(student, resolution=resolution, budget=budget) for budget in BUDGETS}, BUDGETS
    )
    update = polar_flops_per_rank(student, num_ranks=1) / batch_size
    teacher = teacher_flops(meta_teacher(shape, gated=is_gated(size)), resolution=resolution)
    return 1 + teacher / (3 * forward + update)


class MemoryTargets(ShardDataModule):
    """Fresh views with the same random targets for all of them: everything but the reading of a cache."""

    def __init__(self, width: int, **options: Any) -> None:
        super().__init__(**options)
        self._width = width

    def train_views(self) -> ViewSource:
        tokens = torch.randn(1 + (CACHE_RESOLUTION // PATCH_SIZE) ** 2, self._width).half()
        return ConstantViews(self.seed, Targets(tokens[0], tokens[1:]))


class ConstantViews(FreshViews):
    def __init__(self, seed: int, targets: Targets) -> None:
        super().__init__(seed)
        self._targets = targets

    def choose(self, sample: Sample, *, visit: int, resolution: int) -> tuple[View, Targets | None]:
        return super().choose(sample, visit=visit, resolution=resolution)[0], self._targets


def _make_cache(folder: str, teacher: Teacher, dtype: str) -> str:
    # Only here: the library itself does not need the stage that comes before it.
    from veca_data.cache import Devices, NamedTeacher, make_cache

    with redirect_stderr(io.StringIO()):  # without the progress bar
        summary = make_cache(
            folder,
            NamedTeacher("bench", teacher),
            resolutions=[CACHE_RESOLUTION],
            views=1,
            dtype=dtype,
            batch_size=8,
            devices=Devices("cpu", "1"),
            workers=0,
        )
    assert summary is not None
    return str(summary.out)


def _read_targets(path: str, samples: list[Sample]) -> None:
    views = StoredViews(open_cache(Path(path)), "train", seed=0, max_open=16)
    for tar in Path(path).glob("*.tar"):  # ask the kernel to forget them, so that they are read from the disk
        descriptor = os.open(tar, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)
    for sample in samples:
        views.choose(sample, visit=0, resolution=CACHE_RESOLUTION)


@benchmark
def probe(
    *, num_features: int = 50_000, width: int = 384, num_classes: int = 10, epochs: int = 1, repeats: int = 3
) -> Steps:
    """Thirteen learning rates of a linear probe at once, against thirteen fits one after the other.

    Features are made up: what a fit costs depends on their shape alone. Both sides run the same function on
    the same features; the whole probe with its default number of epochs is timed once.

    Args:
        num_features: Training images.
        width: Channels of a feature.
        num_classes: Classes.
        epochs: Passes in the comparison; the timed probe runs its own number.
        repeats: Rounds of the comparison.
    """
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(num_features, width, generator=generator)
    labels = torch.randint(0, num_classes, (num_features,), generator=generator)

    def fit(rates: tuple[float, ...], epochs: int = epochs) -> None:
        with redirect_stderr(io.StringIO()):
            fit_linear(features, labels, num_classes=num_classes, epochs=epochs, rates=rates)

    def one_by_one() -> None:
        for rate in RATES:
            fit((rate,))

    yield Case(
        candidates={"together": partial(fit, RATES), "one_by_one": one_by_one},
        ratios={"together_vs_one_by_one": Ratio("one_by_one", "together", Goal(5.0))},
        unit="{}_s_per_epoch",
        amounts=dict.fromkeys(("together", "one_by_one"), epochs),
        repeats=repeats,
    )
    start = time.perf_counter()
    fit(RATES, EPOCHS)
    yield {f"all_{EPOCHS}_epochs_s": time.perf_counter() - start}


if __name__ == "__main__":
    with one_thread(), quiet_lightning():
        devices, num_steps = map(int, sys.argv[1:])
        taken = fit_lightning(make_model(), make_batches(num=4), num_steps=num_steps, devices=devices)
    if int(os.environ.get("LOCAL_RANK", 0)) == 0:
        print(taken.wall)
