"""What a cache saves in a training step, and what reading it costs.

Four runs of the same student on the same images at 256 px, in turns, through `veca fit`'s own parts:

* `live`: a teacher of the student's size runs in every step;
* `fp16`, `int8`: targets come from a cache;
* `memory`: images are read and decoded all the same, random targets lie in memory.

`cached_speedup` is live / fp16 in seconds per step (≥ 1.4), `flop_speedup` the same by arithmetic: what it
would be if student, teacher and optimizer all ran at one rate. `reading_share` is fp16 / memory (≤ 1.1).
`int8_read_share` is what a worker does for int8 targets in a cold file, as a share of fp16 (< 1); int8 is
opened later, on the device.
"""

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Trainer

from veca.bench.goals import said
from veca.bench.loader import write_shards
from veca.bench.loop import BUDGETS, StepClock, one_thread
from veca.data.augment import View
from veca.data.batches import FreshViews, ViewSource
from veca.data.cached import open_cache
from veca.data.cached_views import CachedViews
from veca.data.datamodule import ShardDataModule
from veca.data.reader import Sample, ShardReader
from veca.data.resolutions import PATCH_SIZE, Phase, ResolutionSchedule
from veca.data.sources import open_sources
from veca.flops.model import (
    meta_student,
    meta_teacher,
    polar_flops_per_rank,
    student_flops,
    teacher_flops,
)
from veca.model.sizes import resolve_size
from veca.optim.settings import Optimization
from veca.optim.split import split_parameters
from veca.teachers import CachedTargets, OfflineTeacher, Teacher
from veca.teachers.dinov3 import is_gated
from veca.train.budgets import STRATEGY_NAME
from veca.train.distill import Distill
from veca.types import Targets
from veca.utils.lightning_compat import quiet_lightning
from veca.utils.timing import Timing, compare, interleave

RESOLUTION = 256
BATCH_SIZE = 32  # an update costs as much as several images; a small batch would time the optimizer
UNTIMED = 1  # the first step makes the optimizer's state
CACHES = ("fp16", "int8")


def run(
    *, size: str = "small", num_images: int = 64, num_steps: int = 1, repeats: int = 3
) -> dict[str, float]:
    """Measure on generated photos; `size` is the student's and the teacher's.

    Args:
        size: tiny, small, small_plus, base or large.
        num_images: Photos in the shards.
        num_steps: Timed steps of each run.
        repeats: Rounds.
    """
    with tempfile.TemporaryDirectory() as folder, one_thread(), quiet_lightning():
        write_shards(Path(folder), num_images=num_images)
        teacher = OfflineTeacher(size)
        caches = {dtype: _make_cache(folder, teacher, dtype) for dtype in CACHES}
        results = _train(folder, teacher, caches, size=size, num_steps=num_steps, repeats=repeats)
        results["flop_speedup"] = flop_speedup(size)
        return said("cache", results | _read(folder, caches, repeats=max(3, repeats)))


def flop_speedup(size: str, *, resolution: int = RESOLUTION, batch_size: int = BATCH_SIZE) -> float:
    """FLOPs of a step with a live teacher over those of one without, mean over the budgets."""
    shape = resolve_size(size, {})
    student = meta_student(size, {}, teacher_width=shape.width)
    forward = sum(
        weight * student_flops(student, resolution=resolution, budget=budget)
        for budget, weight in BUDGETS.items()
    ) / sum(BUDGETS.values())
    matrices = [matrix.shape for _, matrix in split_parameters(student).matrices]
    update = polar_flops_per_rank(matrices, num_ranks=1) / batch_size
    teacher = teacher_flops(meta_teacher(shape, gated=is_gated(size)), resolution=resolution)
    return 1 + teacher / (3 * forward + update)


def _train(
    folder: str, teacher: Teacher, caches: dict[str, str], *, size: str, num_steps: int, repeats: int
) -> dict[str, float]:
    seconds: dict[str, list[float]] = {}
    plain = _data(ShardDataModule, folder)
    memory = _data(MemoryTargets, folder)
    memory.width = teacher.width
    candidates: dict[str, tuple[Teacher, ShardDataModule]] = {
        "live": (teacher, plain),
        "memory": (teacher, memory),
        **{dtype: (CachedTargets(path), _data(ShardDataModule, folder)) for dtype, path in caches.items()},
    }

    def timed(name: str) -> Callable[[], None]:
        return lambda: seconds.setdefault(name, []).append(_fit(*candidates[name], size, num_steps))

    interleave({name: timed(name) for name in candidates}, repeats=repeats, warmup=0)
    timings = {name: Timing(tuple(values)) for name, values in seconds.items()}
    images = BATCH_SIZE * num_steps
    ratios = {
        "cached_speedup": ("live", "fp16"),
        "cached_speedup_int8": ("live", "int8"),
        "reading_share": ("fp16", "memory"),
        "reading_share_int8": ("int8", "memory"),
    }
    rates = {f"{name}_images_per_s": images / timing.median for name, timing in timings.items()}
    return compare(timings, ratios) | rates


def _read(folder: str, caches: dict[str, str], *, repeats: int) -> dict[str, float]:
    (source,) = open_sources(folder)
    images = ShardReader(source.shards("train"), cache=None, max_open=16)
    counts = source.counts("train").samples
    samples = [images.read(shard, number) for shard, count in enumerate(counts) for number in range(count)]

    def read_all(path: str) -> None:
        views = CachedViews(open_cache(Path(path)), "train", seed=0, max_open=16)
        _drop_from_memory(Path(path))
        for sample in samples:
            views.choose(sample, visit=0, resolution=RESOLUTION)

    timings = interleave(
        {dtype: (lambda path=path: read_all(path)) for dtype, path in caches.items()},  # type: ignore[misc]
        repeats=repeats,
    )
    each = {f"read_{name}_us": 1e6 * timing.median / len(samples) for name, timing in timings.items()}
    return compare(timings, {"int8_read_share": ("int8", "fp16")}) | each


def _fit(teacher: Teacher, data: ShardDataModule, size: str, num_steps: int) -> float:
    clock = StepClock(first=UNTIMED)
    torch.manual_seed(0)
    optimization = Optimization(lr=4e-4, min_lr=5e-5, weight_decay=0.015, warmup_steps=0)
    model = Distill(teacher, size=size, budgets=BUDGETS, optimization=optimization)
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            accelerator="cpu",
            devices=1,
            strategy=STRATEGY_NAME,
            max_steps=UNTIMED + num_steps,
            max_epochs=1,
            default_root_dir=folder,
            logger=False,
            callbacks=[clock],
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            limit_val_batches=0,
        )
        trainer.fit(model, datamodule=data)
    return clock.seconds.wall


class MemoryTargets(ShardDataModule):
    """Fresh views with the same random targets for all of them: everything but the reading of a cache."""

    width = 0

    def train_views(self) -> ViewSource:
        tokens = torch.randn(1 + (RESOLUTION // PATCH_SIZE) ** 2, self.width).half()
        return _Constant(FreshViews(self.seed), Targets(tokens[0], tokens[1:]))


class _Constant:
    def __init__(self, views: ViewSource, targets: Targets) -> None:
        self._views, self._targets = views, targets

    def choose(self, sample: Sample, *, visit: int, resolution: int) -> tuple[View, Targets | None]:
        return self._views.choose(sample, visit=visit, resolution=resolution)[0], self._targets


def _data(kind: type[Any], folder: str) -> Any:
    schedule = ResolutionSchedule([Phase(0, {RESOLUTION: 1.0})], batch_size=BATCH_SIZE)
    return kind(sources=folder, resolutions=schedule, num_workers=0)


def _make_cache(folder: str, teacher: Teacher, dtype: str) -> str:
    # Only here: the library itself does not need the stage that comes before it.
    from veca_data.cache import Devices, NamedTeacher, make_cache

    with _silent_stderr():
        summary = make_cache(
            folder,
            NamedTeacher("bench", teacher),
            resolutions=[RESOLUTION],
            views=1,
            dtype=dtype,
            batch_size=8,
            devices=Devices("cpu", "1"),
            workers=0,
        )
    assert summary is not None
    return str(summary.out)


def _drop_from_memory(folder: Path) -> None:
    """Ask the kernel to forget a cache's tars, so that they are read from the disk again."""
    for path in folder.glob("*.tar"):
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


@contextlib.contextmanager
def _silent_stderr() -> Iterator[None]:
    """Without the progress bar of making the caches."""
    with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stderr(nowhere):
        yield
