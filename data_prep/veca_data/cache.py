"""`veca data cache`: run a teacher once over shards, and keep what it says (paper §3.3, the targets).

In: shards of images and a teacher. Out: a cache beside them (see `veca/data/stored_targets.py`). The work is
a Lightning predict loop, so one CPU, the GPUs of a machine and the nodes of a cluster run the same command.
It can be stopped at any time: finished shards are kept, and the same command makes the rest.
"""

import logging
import os
import time
import warnings
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import torch
import yaml
from jsonargparse import ArgumentError, ArgumentParser
from lightning.pytorch import Trainer

from veca.data.download import is_url
from veca.data.loader import WorkerOptions
from veca.data.sources import Source, check_shards, open_sources
from veca.data.stored_targets import CacheSpec, spec_problems
from veca.teachers import Teacher
from veca.utils.lightning_compat import ignore_warnings, leave_signals_alone
from veca.utils.precision import (
    BF16,
    WORTH_COMPILING,
    cpu_multiplies_bf16,
    has_cpp_compiler,
    resolve_precision,
)
from veca.utils.process import keep_memory
from veca.utils.recipes import load_recipe
from veca_data.pool import default_workers
from veca_data.records import PARTS, Summary
from veca_data.targets import (
    TargetWriter,
    TeacherPass,
    ViewData,
    list_shards,
    pending_shards,
    write_index,
    write_projection,
)


class Devices(NamedTuple):
    """Where the teacher runs, in Lightning's words."""

    accelerator: str = "auto"
    devices: str = "auto"
    num_nodes: int = 1
    precision: str = "32-true"


class NamedTeacher(NamedTuple):
    """A teacher and what people call it."""

    name: str
    teacher: Teacher


class Recipe(NamedTuple):
    """What a recipe says of a cache."""

    teacher: Any
    resolutions: list[int]
    precision: str


def make_cache(
    shards: str | os.PathLike[str],
    named: NamedTeacher,
    *,
    resolutions: Sequence[int],
    views: int,
    dtype: str,
    seed: int = 42,
    batch_size: int | None = None,
    devices: Devices = Devices(),  # noqa: B008 (a tuple)
    workers: int | None = None,
) -> Summary | None:
    """Make the cache, or the rest of it; None on a rank that is done before the others."""
    problems = list(spec_problems(resolutions=resolutions, views=views, dtype=dtype))
    if seed < 0:
        problems.append(f"seed must not be negative; got {seed}.")
    if batch_size is not None and batch_size < 1:
        problems.append(f"batch_size must be at least 1; got {batch_size}. Leave it out for the usual one.")
    if problems:
        raise ValueError("\n".join(problems))
    devices = devices._replace(
        precision=resolve_precision(devices.precision, accelerator=devices.accelerator)
    )
    source = _open_images(str(shards))
    spec = CacheSpec(
        teacher=named.name,
        weights=named.teacher.fingerprint(),
        width=named.teacher.width,
        resolutions=tuple(sorted(resolutions)),
        views=views,
        dtype=dtype,
        seed=seed,
        precision=devices.precision,
        images={info.name: info.sha256 for infos in source.index.splits.values() for info in infos},
    )
    out = Path(source.folder) / spec.folder_name
    (out / PARTS).mkdir(parents=True, exist_ok=True)
    projection = write_projection(out, named.teacher)
    if pending_shards(source, out):
        # Enough views at once to fill a GPU; on a CPU more of them only leave its caches.
        batch_size = batch_size or (16 if _on_cpu(devices) else 64)
        if named.teacher.micro_batch is None:
            named.teacher.micro_batch = {min(resolutions): batch_size}  # fewer of larger images
        if (
            _worth_compiling(source, views * len(resolutions), devices)
            and named.teacher.compile_teacher is None
        ):
            named.teacher.compile_fixed()
        _predict(source, out, spec, named.teacher, batch_size=batch_size, devices=devices, workers=workers)
    return write_index(out, spec, list_shards(source), projection_sha256=projection)


def cache(
    shards: Path,
    *,
    config: Path | None = None,
    teacher: str | None = None,
    resolutions: list[int] | None = None,
    precision: str | None = None,
    accelerator: str = "auto",
    devices: str = "auto",
    num_nodes: int = 1,
    **options: Any,
) -> str | None:
    """The verb: teacher and resolutions from a recipe or, first, from options; returns a summary."""
    recipe = read_recipe(config) if config is not None else Recipe(None, [256], "32-true")
    entry = recipe.teacher if teacher is None else yaml.safe_load(teacher)
    if entry is None:
        raise ValueError(
            "name the teacher: --config RECIPE takes that of a recipe, which must have a model.teacher, "
            "--teacher one of its own."
        )
    # Lightning introduces itself in several lines; its warnings stay.
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    where = Devices(accelerator, devices, num_nodes, precision or recipe.precision)
    start = time.monotonic()
    made = make_cache(
        shards, load_teacher(entry), resolutions=resolutions or recipe.resolutions, devices=where, **options
    )
    if made is None:
        return None
    return (
        f"{made}\n  made in {timedelta(seconds=round(time.monotonic() - start))}; to train from it:\n"
        f"  --model.teacher null --data.targets {made.out}"
    )


def load_teacher(entry: Any) -> NamedTeacher:
    """A teacher as a recipe writes it: a class path, or one with init_args."""
    parser = ArgumentParser(exit_on_error=False)
    parser.add_subclass_arguments(Teacher, "teacher", required=True)
    try:
        config = parser.parse_object({"teacher": entry})
    except ArgumentError as error:
        raise ValueError(f"teacher = {entry}: {error}. Try veca.teachers.EfficientNetTeacher.") from None
    teacher: Teacher = parser.instantiate_classes(config).teacher
    name = config.teacher.init_args.get("name_or_path") or type(teacher).__name__
    return NamedTeacher(str(name), teacher)


def read_recipe(path: Path) -> Recipe:
    """Teacher, resolutions and precision of a recipe, by path or packaged name."""
    recipe = load_recipe(str(path))
    try:
        phases = recipe["data"]["resolutions"]["phases"]
        sizes = sorted({size for phase in phases for size in phase["probabilities"]})
        return Recipe(
            recipe["model"].get("teacher"), sizes, str(recipe["trainer"].get("precision", "32-true"))
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"recipe {path} has no model.teacher, trainer or data.resolutions.phases ({error!r})."
        ) from None


def _open_images(folder: str) -> Source:
    if is_url(folder):
        raise ValueError(
            f"{folder} is remote. Copy the shards to a disk: their cache is written beside them."
        )
    (source,) = open_sources(folder)
    check_shards([shard for split in source.index.splits for shard in source.shards(split)])
    return source


def _predict(
    source: Source,
    out: Path,
    spec: CacheSpec,
    teacher: Teacher,
    *,
    batch_size: int,
    devices: Devices,
    workers: int | None,
) -> None:
    keep_memory()
    with warnings.catch_warnings():
        ignore_warnings()
        trainer = Trainer(
            accelerator=devices.accelerator,
            devices=int(devices.devices) if devices.devices.lstrip("-").isdigit() else devices.devices,
            num_nodes=devices.num_nodes,
            precision=devices.precision,  # type: ignore[arg-type]  # a word, checked by Lightning
            callbacks=[TargetWriter(out, spec)],
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            use_distributed_sampler=False,
            # Networks keep tables of coordinates between calls; made in inference mode they could not be
            # trained with later in the same process.
            inference_mode=False,
        )
        leave_signals_alone(trainer)  # Lightning would note a SIGTERM, and go on
        count = workers if workers is not None else max(1, default_workers() // trainer.num_devices)
        data = ViewData(source, out, spec, batch_size=batch_size, workers=WorkerOptions(count))
        trainer.predict(TeacherPass(teacher, dtype=spec.dtype), datamodule=data, return_predictions=False)


def _worth_compiling(source: Source, views: int, devices: Devices) -> bool:
    """In bf16 on a CPU, for more views than compiling costs."""
    samples = sum(info.samples for infos in source.index.splits.values() for info in infos)
    able = _on_cpu(devices) and devices.precision == BF16 and cpu_multiplies_bf16() and has_cpp_compiler()
    return able and samples * views >= WORTH_COMPILING


def _on_cpu(devices: Devices) -> bool:
    return devices.accelerator == "cpu" or not torch.cuda.is_available()
