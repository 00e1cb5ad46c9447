"""Shards of images → batches of views → the teacher → shards of targets, in the order of this file.

The unit is a shard: a rank takes whole ones, and the batches of a shard depend on nothing but the shard.
So the teacher sees the same batches, and answers with the same bytes, whatever the number of ranks, and
however often the work was interrupted. A batch is all views of a few successive samples at one resolution.
The index follows from the records of all shards, by whichever rank finds that none is missing.
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from numpy.typing import NDArray
from safetensors.torch import save
from torch import Tensor
from tqdm import tqdm

from veca.card import TEACHER_RECORD, teacher_facts
from veca.data.decode import BadImage, image_size
from veca.data.index import INDEX_NAME, ShardIndex, ShardInfo, Source, index_to_json
from veca.data.loader import WorkerOptions
from veca.data.reader import BadSample, ShardReader, parse_header
from veca.data.stored_targets import PROJECTION_NAME, CacheSpec, npy_files, view_name
from veca.data.stored_views import pack_rows
from veca.data.tars import BLOCK
from veca.data.views import View, centre_view, draw_view, render, sample_generator
from veca.teachers import Teacher
from veca.utils.files import atomic_path, write_text_atomic
from veca.utils.progress import progress_bar
from veca_data.listing import Reject
from veca_data.records import Summary, new_shard, read_record, remove_leftovers

_KEY = re.compile(r"[A-Za-z0-9_-]+")
_MAX_REASON = 200  # characters: a skipped sample's JSON fits one block of a tar
_MAX_KEY = 80


class SplitShard(NamedTuple):
    """One shard of images, by number among all splits."""

    number: int
    split: str
    name: str
    samples: int


class ViewRequest(NamedTuple):
    """A batch to render: samples [first, stop) of a shard at one resolution."""

    shard: SplitShard
    first: int
    stop: int
    resolution: int


class RenderedSample(NamedTuple):
    """A sample with the views drawn of it, or why it cannot be used."""

    key: str
    views: list[View]
    skipped: str | None = None


class ViewBatch(NamedTuple):
    """What a worker sends: pixels of the usable samples' views, sample by sample."""

    images: torch.Tensor  # (V, 3, R, R) uint8
    samples: list[RenderedSample]
    request: ViewRequest


def list_shards(source: Source) -> list[SplitShard]:
    found = [(split, info) for split, infos in source.index.splits.items() for info in infos]
    return [SplitShard(number, split, info.name, info.samples) for number, (split, info) in enumerate(found)]


def shard_requests(shard: SplitShard, spec: CacheSpec, *, batch_size: int) -> Iterator[ViewRequest]:
    """The batches of one shard: a few samples at every resolution, then the next ones."""
    step = max(1, batch_size // spec.num_views(shard.split))
    for first in range(0, shard.samples, step):
        for resolution in spec.resolutions:
            yield ViewRequest(shard, first, min(first + step, shard.samples), resolution)


class ViewDataset(torch.utils.data.Dataset[ViewBatch]):
    """A map from requests to batches."""

    def __init__(self, source: Source, spec: CacheSpec) -> None:
        shards = [shard for split in source.index.splits for shard in source.shards(split)]
        self._reader = ShardReader(shards, cache=None, max_open=2)
        self._spec = spec

    def __getitems__(self, request: ViewRequest) -> ViewBatch:
        samples, pixels = [], []
        for number in range(request.first, request.stop):
            sample, images = self._render(request, number)
            samples.append(sample)
            pixels += images
        side = request.resolution
        stacked = np.stack(pixels) if pixels else np.empty((0, 3, side, side), np.uint8)
        return ViewBatch(torch.from_numpy(stacked), samples, request)

    def _render(self, request: ViewRequest, number: int) -> tuple[RenderedSample, list[NDArray[np.uint8]]]:
        key = None
        try:
            sample = self._reader.read(request.shard.number, number)
            key = sample.key
            size = image_size(sample.image)
            views = draw_views(
                key, size, self._spec, split=request.shard.split, resolution=request.resolution
            )
            return RenderedSample(key, views), [render(sample.image, view) for view in views]
        except (BadSample, BadImage) as error:
            key = key or self._first_key(request.shard.number, number)
            return RenderedSample(key, [], f"{error.reason}: {error}"), []

    def _first_key(self, shard: int, number: int) -> str:
        """The key of a sample that cannot be parsed: training will not get past its image either."""
        begin, end = self._reader.span(shard, number)
        try:
            name, _ = parse_header(self._reader.read_span(shard, begin, min(begin + BLOCK, end)).tobytes())
        except ValueError:
            name = ""
        key = name.partition(".")[0]
        return key if _KEY.fullmatch(key) else f"unreadable-{number:06d}"


def draw_views(
    key: str, size: tuple[int, int], spec: CacheSpec, *, split: str, resolution: int
) -> list[View]:
    """The views of a sample at one resolution: random ones of a training image, the centre of others."""
    if split != "train":
        return [centre_view(size=size, resolution=resolution)]
    generators = (sample_generator(spec.seed, view, key) for view in range(spec.views))
    return [draw_view(generator, size=size, resolution=resolution) for generator in generators]


class ViewData(LightningDataModule):
    """The batches of one rank: every shard that is not finished, shared out by whole shards."""

    def __init__(
        self, source: Source, out: Path, spec: CacheSpec, *, batch_size: int, workers: WorkerOptions
    ) -> None:
        super().__init__()
        self.allow_zero_length_dataloader_with_multiple_devices = True  # fewer shards left than ranks
        self.spec, self.workers, self.batch_size = spec, workers, batch_size
        self._source, self._out = source, out
        self.mine: list[SplitShard] = []

    def setup(self, stage: str) -> None:
        assert self.trainer is not None
        # What one rank sees as unfinished decides for all: a file may appear while they look.
        pending = self.trainer.strategy.broadcast(pending_shards(self._source, self._out))
        self.mine = pending[self.trainer.global_rank :: self.trainer.world_size]

    def predict_dataloader(self) -> "ViewLoader":
        requests = [
            request
            for shard in self.mine
            for request in shard_requests(shard, self.spec, batch_size=self.batch_size)
        ]
        return ViewLoader(requests, ViewDataset(self._source, self.spec), self.workers)


class ViewLoader:
    """An iterable over batches. Not a DataLoader: Lightning would give it a sampler of its own."""

    def __init__(self, requests: Sequence[ViewRequest], dataset: ViewDataset, workers: WorkerOptions) -> None:
        self._requests = requests
        self._data_loader = workers.data_loader(dataset, requests, persistent=False)

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[ViewBatch]:
        return iter(self._data_loader)


def pending_shards(source: Source, out: Path) -> list[SplitShard]:
    """The shards whose targets are still to be made."""
    return [shard for shard in list_shards(source) if read_record(out, shard.name) is None]


class TeacherPass(LightningModule):
    """Images in, rows of bytes out: (V, tokens, row_bytes), on the CPU."""

    def __init__(self, teacher: Teacher, *, dtype: str) -> None:
        super().__init__()
        self.teacher = teacher
        self.dtype_name = dtype

    def predict_step(self, batch: ViewBatch, batch_idx: int) -> Tensor | None:
        if not len(batch.images):
            return None
        cls, patches = self.teacher(batch.images)
        return pack_rows(torch.cat([cls[:, None], patches], dim=1), self.dtype_name).cpu()


class TargetWriter(Callback):
    """Writes the rows of each batch into the shard it belongs to, and shows how far the work is."""

    def __init__(self, out: Path, spec: CacheSpec) -> None:
        self._out, self._spec = out, spec
        self._shard: ShardOfTargets | None = None
        self._bar: tqdm[Any] | None = None

    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        data: ViewData = trainer.datamodule  # type: ignore[attr-defined]
        remove_leftovers(self._out, (shard.name for shard in data.mine))
        per_sample = len(self._spec.resolutions)
        total = sum(shard.samples * self._spec.num_views(shard.split) * per_sample for shard in data.mine)
        # Of this rank's share, by the first rank.
        self._bar = progress_bar("cache", total, unit="view", quiet=trainer.global_rank > 0)

    def on_predict_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Tensor | None,
        batch: ViewBatch,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        shard = batch.request.shard
        if self._shard is None:
            self._shard = ShardOfTargets(self._out, shard, self._spec)
        self._shard.add(batch, outputs)
        if batch.request.stop == shard.samples and batch.request.resolution == self._spec.resolutions[-1]:
            self._shard.finish()
            self._shard = None
        if self._bar is not None:
            self._bar.update(len(batch.samples) * self._spec.num_views(shard.split))

    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._bar is not None:
            self._bar.close()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        if self._shard is not None:
            self._shard.finish(exception)
        self.on_predict_end(trainer, pl_module)


@dataclass
class _Pending:
    """A sample until its last resolution has come."""

    key: str
    skipped: str | None = None
    views: dict[str, Any] = field(default_factory=dict)
    arrays: dict[str, bytes] = field(default_factory=dict)


class ShardOfTargets:
    """One tar in the making."""

    def __init__(self, out: Path, shard: SplitShard, spec: CacheSpec) -> None:
        self._name, self._spec = shard.name, spec
        self._layout = spec.layout(shard.split)
        self._stack = ExitStack()
        self._writer, self._rejects = self._stack.enter_context(new_shard(out, shard.name))
        self._pending: list[_Pending] = []

    def add(self, batch: ViewBatch, rows: Tensor | None) -> None:
        """Take one resolution of a few samples; with the last one they are written."""
        resolution = batch.request.resolution
        if resolution == self._spec.resolutions[0]:
            self._pending = [_Pending(sample.key) for sample in batch.samples]
        files = iter(()) if rows is None else npy_files(rows.numpy(), self._layout, resolution)
        for pending, sample in zip(self._pending, batch.samples, strict=True):
            pending.skipped = pending.skipped or sample.skipped
            for number, view in enumerate(sample.views):
                name = view_name(resolution, number)
                pending.views[name] = view._asdict()
                pending.arrays[f"{name}.npy"] = next(files)
        if resolution == self._spec.resolutions[-1]:
            for pending in self._pending:
                self._write(pending)

    def finish(self, error: BaseException | None = None) -> None:
        """The shard's files appear, or after an error nothing is left of it."""
        if error is None:
            self._stack.close()
            return
        with suppress(type(error)):
            self._stack.__exit__(type(error), error, error.__traceback__)

    def _write(self, sample: _Pending) -> None:
        if not sample.key.isascii() or len(sample.key) > _MAX_KEY:
            raise ValueError(
                f"key {sample.key!r} in {self._name}: must be ASCII, at most {_MAX_KEY} characters. "
                "Make the shards with `veca data shards`."
            )
        members = {"json": sample_json(self._spec.fingerprint, sample.views, sample.skipped)}
        if sample.skipped is None:
            members |= sample.arrays
        else:
            self._rejects.append(Reject(sample.key, sample.skipped))
        self._writer.write(sample.key, members)


def sample_json(fingerprint: str, views: dict[str, Any], skipped: str | None = None) -> bytes:
    """The KEY.json of a sample."""
    about = {"views": views} if skipped is None else {"skipped": skipped[:_MAX_REASON]}
    return json.dumps({"targets": fingerprint, **about}, separators=(",", ":")).encode()


def write_projection(out: Path, teacher: Teacher) -> str | None:
    """Keep the teacher's patch projection, with which students begin; returns its sha256."""
    projection = teacher.patch_projection()
    if projection is None:
        return None
    weight, bias = (tensor.detach().cpu().contiguous() for tensor in projection)
    data = save({"weight": weight, "bias": bias})
    with atomic_path(out / PROJECTION_NAME) as temporary:
        temporary.write_bytes(data)
    return hashlib.sha256(data).hexdigest()


def write_index(
    out: Path, spec: CacheSpec, shards: list[SplitShard], *, projection_sha256: str | None
) -> Summary | None:
    """Write index.json once every shard is finished; None while some are not."""
    splits: dict[str, list[ShardInfo]] = {}
    reasons: Counter[str] = Counter()
    for shard in shards:
        if (record := read_record(out, shard.name)) is None:
            return None
        splits.setdefault(shard.split, []).append(record.info)
        reasons.update(reject.kind for reject in record.rejects)
    options = spec.options(projection_sha256=projection_sha256)
    options[TEACHER_RECORD] = teacher_facts(spec.teacher)
    write_text_atomic(out / INDEX_NAME, index_to_json(ShardIndex(spec.seed, options, splits)))
    return Summary(out, splits, reasons)
