"""`veca data cache`: run a teacher once over shards, and keep what it says (paper §3.3, the targets).

In: shards of images and a teacher. Out: a cache beside them (see `veca/data/stored_targets.py`). The work is
a Lightning predict loop, so one CPU, the GPUs of a machine and the nodes of a cluster run the same command.
It can be stopped at any time: finished shards are kept, and the same command makes the rest.

Shards of images → batches of views → the teacher → shards of targets. The unit is a shard: a rank takes whole
ones, and the batches of a shard depend on nothing but the shard. So the teacher sees the same batches, and
answers with the same bytes, whatever the number of ranks, and however often the work was interrupted. A batch
is all views of a few successive samples; the teacher takes them resolution by resolution. The index follows
from the records of all shards, by whichever rank finds that none is missing.
"""

import hashlib
import json
import logging
import os
import re
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import yaml
from jsonargparse import ArgumentError, ArgumentParser
from lightning.pytorch import LightningModule, Trainer
from numpy.typing import NDArray
from safetensors.torch import save
from torch import Tensor

from veca.card import TEACHER_RECORD, teacher_facts
from veca.data.decode import BadImage, image_size
from veca.data.index import (
    INDEX_NAME,
    ShardIndex,
    ShardInfo,
    Source,
    check_shards,
    index_to_json,
    open_sources,
)
from veca.data.loader import WorkerOptions
from veca.data.reader import BadSample, ShardReader, parse_header
from veca.data.stored_targets import PROJECTION_NAME, CacheSpec, npy_files, spec_problems, view_name
from veca.data.stored_views import pack_rows
from veca.data.tars import BLOCK
from veca.data.transport import is_url
from veca.data.views import View, centre_view, draw_view, render, sample_generator
from veca.teachers import Teacher
from veca.utils.files import atomic_path, write_text_atomic
from veca.utils.lightning_compat import ignore_warnings, leave_signals_alone
from veca.utils.precision import (
    BF16,
    WORTH_COMPILING,
    cpu_multiplies_bf16,
    has_cpp_compiler,
    resolve_precision,
)
from veca.utils.process import keep_memory
from veca.utils.progress import progress_bar
from veca.utils.recipes import load_recipe
from veca_data.pool import num_workers
from veca_data.records import PARTS, Summary, gather, new_shard, read_record, remove_leftovers
from veca_data.source import Reject

_KEY = re.compile(r"[A-Za-z0-9_-]+")
_MAX_REASON = 200  # characters: a skipped sample's JSON fits one block of a tar
_MAX_KEY = 80


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


class CacheRecipe(NamedTuple):
    """What a recipe says of a cache."""

    teacher: Any
    resolutions: list[int]
    precision: str


class SplitShard(NamedTuple):
    """One shard of images, by number among all splits."""

    number: int
    split: str
    name: str
    samples: int


class ViewRequest(NamedTuple):
    """A batch to render: samples [first, stop) of a shard."""

    shard: SplitShard
    first: int
    stop: int


class RenderedSample(NamedTuple):
    """A sample with the views drawn of it at each resolution, or why it cannot be used."""

    key: str
    views: dict[int, list[View]]
    skipped: str | None = None


class ViewBatch(NamedTuple):
    """What a worker sends: at each resolution, pixels of the usable samples' views, sample by sample."""

    images: dict[int, Tensor]  # (V, 3, R, R) uint8
    samples: list[RenderedSample]
    request: ViewRequest


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
    recipe = read_recipe(config) if config is not None else CacheRecipe(None, [256], "32-true")
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


def make_cache(
    shards: str | os.PathLike[str],
    named: NamedTeacher,
    *,
    resolutions: Sequence[int],
    views: int = 4,
    dtype: str = "fp16",
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
    precision = resolve_precision(devices.precision, accelerator=devices.accelerator)
    devices = devices._replace(precision=precision)
    if is_url(str(shards)):
        raise ValueError(
            f"{shards} is remote. Copy the shards to a disk: their cache is written beside them."
        )
    (source,), teacher = open_sources(str(shards)), named.teacher
    check_shards([shard for split in source.index.splits for shard in source.shards(split)])
    infos = [info for infos in source.index.splits.values() for info in infos]
    spec = CacheSpec(
        teacher=named.name,
        weights=teacher.fingerprint(),
        width=teacher.width,
        resolutions=tuple(sorted(resolutions)),
        views=views,
        dtype=dtype,
        seed=seed,
        precision=precision,
        images={info.name: info.sha256 for info in infos},
    )
    out = Path(source.folder) / spec.folder_name
    (out / PARTS).mkdir(parents=True, exist_ok=True)
    projection = _write_projection(out, teacher)
    if _pending_shards(source, out):
        on_cpu = devices.accelerator == "cpu" or not torch.cuda.is_available()
        # Enough views at once to fill a GPU; on a CPU more of them only leave its caches.
        batch_size = batch_size or (16 if on_cpu else 64)
        if teacher.micro_batch is None:
            teacher.micro_batch = {min(resolutions): batch_size}  # fewer of larger images
        able = on_cpu and precision == BF16 and cpu_multiplies_bf16() and has_cpp_compiler()
        num_views = sum(info.samples for info in infos) * views * len(resolutions)
        if able and num_views >= WORTH_COMPILING and teacher.compile_teacher is None:
            teacher.compile_fixed()
        _predict(TeacherPass(source, out, spec, teacher, batch_size=batch_size), devices, workers)
    if _pending_shards(source, out):
        return None
    splits: dict[str, list[ShardInfo]] = {}
    reasons = Counter(reject.kind for reject in gather(out, [info.name for info in infos], splits))
    options = spec.options(projection_sha256=projection)
    options[TEACHER_RECORD] = teacher_facts(spec.teacher)
    write_text_atomic(out / INDEX_NAME, index_to_json(ShardIndex(spec.seed, options, splits)))
    return Summary(out, splits, reasons)


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


def read_recipe(path: Path) -> CacheRecipe:
    """Teacher, resolutions and precision of a recipe, by path or packaged name."""
    recipe = load_recipe(str(path))
    try:
        phases = recipe["data"]["resolutions"]["phases"]
        sizes = sorted({size for phase in phases for size in phase["probabilities"]})
        precision = str(recipe["trainer"].get("precision", "32-true"))
        return CacheRecipe(recipe["model"].get("teacher"), sizes, precision)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"recipe {path} has no model.teacher, trainer or data.resolutions.phases ({error!r})."
        ) from None


def _write_projection(out: Path, teacher: Teacher) -> str | None:
    """Keep the teacher's patch projection, with which students begin; returns its sha256."""
    projection = teacher.patch_projection()
    if projection is None:
        return None
    weight, bias = (tensor.detach().cpu().contiguous() for tensor in projection)
    data = save({"weight": weight, "bias": bias})
    with atomic_path(out / PROJECTION_NAME) as temporary:
        temporary.write_bytes(data)
    return hashlib.sha256(data).hexdigest()


def _pending_shards(source: Source, out: Path) -> list[SplitShard]:
    """The shards whose targets are still to be made."""
    found = [(split, info) for split, infos in source.index.splits.items() for info in infos]
    shards = [
        SplitShard(number, split, info.name, info.samples) for number, (split, info) in enumerate(found)
    ]
    return [shard for shard in shards if read_record(out, shard.name) is None]


def _predict(teacher_pass: "TeacherPass", devices: Devices, workers: int | None) -> None:
    keep_memory()
    with warnings.catch_warnings(), teacher_pass.resources:
        ignore_warnings()
        trainer = Trainer(
            accelerator=devices.accelerator,
            devices=int(devices.devices) if devices.devices.lstrip("-").isdigit() else devices.devices,
            num_nodes=devices.num_nodes,
            precision=devices.precision,  # type: ignore[arg-type]  # a word, checked by Lightning
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
        count = workers if workers is not None else max(1, num_workers(None) // trainer.num_devices)
        teacher_pass.workers = WorkerOptions(count)
        trainer.predict(teacher_pass, return_predictions=False)


class TeacherPass(LightningModule):
    """Reads every shard that is not finished, shared out among ranks by whole shards, and writes its targets.

    `resources` is what it holds open: left with an error, it takes the unfinished shard away.
    """

    def __init__(
        self, source: Source, out: Path, spec: CacheSpec, teacher: Teacher, *, batch_size: int
    ) -> None:
        super().__init__()
        self.allow_zero_length_dataloader_with_multiple_devices = True  # fewer shards left than ranks
        self.teacher = teacher
        self.resources = ExitStack()
        self.workers = WorkerOptions()
        self._source, self._out, self._spec, self._batch_size = source, out, spec, batch_size
        self._shard = self.resources.enter_context(ExitStack())
        self._mine: list[SplitShard] = []

    def setup(self, stage: str) -> None:
        # What one rank sees as unfinished decides for all: a file may appear while they look.
        pending = self.trainer.strategy.broadcast(_pending_shards(self._source, self._out))
        self._mine = pending[self.trainer.global_rank :: self.trainer.world_size]
        remove_leftovers(self._out, (shard.name for shard in self._mine))
        total = sum(shard.samples * self._views_per_sample(shard) for shard in self._mine)
        # Of this rank's share, by the first rank.
        bar = progress_bar("cache", total, unit="view", quiet=self.trainer.global_rank > 0)
        self._bar = self.resources.enter_context(bar)

    def predict_dataloader(self) -> "ViewLoader":
        requests = []
        for shard in self._mine:
            step = max(1, self._batch_size // self._spec.num_views(shard.split))
            for first in range(0, shard.samples, step):
                requests.append(ViewRequest(shard, first, min(first + step, shard.samples)))
        return ViewLoader(requests, ViewDataset(self._source, self._spec), self.workers)

    def predict_step(self, batch: ViewBatch, batch_idx: int) -> int:
        """Write a batch's targets; returns their number, because Lightning warns of None."""
        shard = batch.request.shard
        layout = self._spec.layout(shard.split)
        files = {}
        for resolution, images in batch.images.items():
            cls, patches = self.teacher(images)
            rows = pack_rows(torch.cat([cls[:, None], patches], dim=1), self._spec.dtype)
            files[resolution] = npy_files(rows.cpu().numpy(), layout, resolution)
        if batch.request.first == 0:
            self._writer, self._rejects = self._shard.enter_context(new_shard(self._out, shard.name))
        for sample in batch.samples:
            self._write(sample, shard, files)
        if batch.request.stop == shard.samples:
            self._shard.close()  # its files appear
        done = len(batch.samples) * self._views_per_sample(shard)
        self._bar.update(done)
        return done

    def _write(self, sample: RenderedSample, shard: SplitShard, files: dict[int, Iterator[bytes]]) -> None:
        if not sample.key.isascii() or len(sample.key) > _MAX_KEY:
            raise ValueError(
                f"key {sample.key!r} in {shard.name}: must be ASCII, at most {_MAX_KEY} characters. "
                "Make the shards with `veca data shards`."
            )
        views: dict[str, Any] = {}
        members: dict[str, bytes] = {}
        for resolution, drawn in sample.views.items():
            for number, view in enumerate(drawn):
                name = view_name(resolution, number)
                views[name] = view._asdict()
                members[f"{name}.npy"] = next(files[resolution])
        about: dict[str, Any] = {"views": views}
        if sample.skipped is not None:
            about = {"skipped": sample.skipped[:_MAX_REASON]}
            self._rejects.append(Reject(sample.key, sample.skipped))
        body = {"targets": self._spec.fingerprint, **about}
        members["json"] = json.dumps(body, separators=(",", ":")).encode()
        self._writer.write(sample.key, members)

    def _views_per_sample(self, shard: SplitShard) -> int:
        return self._spec.num_views(shard.split) * len(self._spec.resolutions)


class ViewLoader:
    """An iterable over batches. Not a DataLoader: Lightning would give it a sampler of its own."""

    def __init__(
        self, requests: Sequence[ViewRequest], dataset: "ViewDataset", workers: WorkerOptions
    ) -> None:
        self._requests = requests
        self._data_loader = workers.data_loader(dataset, requests, persistent=False)

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[ViewBatch]:
        return iter(self._data_loader)


class ViewDataset(torch.utils.data.Dataset[ViewBatch]):
    """A map from requests to batches."""

    def __init__(self, source: Source, spec: CacheSpec) -> None:
        shards = [shard for split in source.index.splits for shard in source.shards(split)]
        self._reader = ShardReader(shards, cache=None, max_open=2)
        self._spec = spec

    def __getitems__(self, request: ViewRequest) -> ViewBatch:
        samples = []
        pixels: dict[int, list[NDArray[np.uint8]]] = {}
        for number in range(request.first, request.stop):
            sample, images = self._render(request.shard, number)
            samples.append(sample)
            for resolution, found in images.items():
                pixels.setdefault(resolution, []).extend(found)
        stacked = {resolution: torch.from_numpy(np.stack(found)) for resolution, found in pixels.items()}
        return ViewBatch(stacked, samples, request)

    def _render(
        self, shard: SplitShard, number: int
    ) -> tuple[RenderedSample, dict[int, list[NDArray[np.uint8]]]]:
        key = None
        try:
            sample = self._reader.read(shard.number, number)
            key, size = sample.key, image_size(sample.image)
            views = {side: self._draw(key, size, shard.split, side) for side in self._spec.resolutions}
            images = {side: [render(sample.image, view) for view in drawn] for side, drawn in views.items()}
            return RenderedSample(key, views), images
        except (BadSample, BadImage) as error:
            key = key or self._first_key(shard.number, number)
            return RenderedSample(key, {}, f"{error.reason}: {error}"), {}

    def _draw(self, key: str, size: tuple[int, int], split: str, resolution: int) -> list[View]:
        """Random views of a training image, the centre of others."""
        if split != "train":
            return [centre_view(size=size, resolution=resolution)]
        generators = (sample_generator(self._spec.seed, view, key) for view in range(self._spec.views))
        return [draw_view(generator, size=size, resolution=resolution) for generator in generators]

    def _first_key(self, shard: int, number: int) -> str:
        """The key of a sample that cannot be parsed: training will not get past its image either."""
        begin, end = self._reader.span(shard, number)
        try:
            name, _ = parse_header(self._reader.read_span(shard, begin, min(begin + BLOCK, end)).tobytes())
        except ValueError:
            name = ""
        key = name.partition(".")[0]
        return key if _KEY.fullmatch(key) else f"unreadable-{number:06d}"
