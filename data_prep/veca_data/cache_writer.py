"""Batches of views → the teacher → shards of targets.

A shard appears under its name when its last sample is written, with its offsets and its record (see
records.py), in this order; what is under its name is whole. The index follows from the records of all
shards, by whichever rank finds that none is missing.
"""

import hashlib
import json
from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from safetensors.torch import save
from torch import Tensor
from tqdm import tqdm

from veca.card import TEACHER_RECORD, teacher_facts
from veca.data.cached import PROJECTION_NAME, CacheSpec, view_name
from veca.data.cached_arrays import npy_files, pack_rows
from veca.data.index import INDEX_NAME, ShardIndex, ShardInfo, index_to_json, offsets_name
from veca.teachers import Teacher
from veca.utils.files import atomic_path, write_text_atomic
from veca.utils.progress import progress_bar
from veca_data.cache_views import SplitShard, ViewBatch, ViewData
from veca_data.listing import Reject
from veca_data.records import PARTS, Record, Summary, read_record, write_record
from veca_data.writer import SampleWriter

_MAX_REASON = 200  # characters: a skipped sample's JSON fits one block of a tar
_MAX_KEY = 80


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
        remove_leftovers(self._out, data.mine)
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
            self._shard.abandon(exception)
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
        self._out, self._name, self._spec = out, shard.name, spec
        self._layout = spec.layout(shard.split)
        self._stack = ExitStack()
        temporary = self._stack.enter_context(atomic_path(out / shard.name))
        self._writer = self._stack.enter_context(SampleWriter(temporary))
        self._pending: list[_Pending] = []
        self._rejects: list[Reject] = []

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

    def finish(self) -> None:
        writer = self._writer
        self._stack.close()
        with atomic_path(self._out / offsets_name(self._name)) as temporary, temporary.open("wb") as file:
            np.save(file, writer.offsets)
        record = Record(self._name, writer.samples, writer.bytes, writer.sha256, 0, self._rejects)
        write_record(self._out, record)

    def abandon(self, error: BaseException) -> None:
        """Remove what is there of it."""
        with suppress(type(error)):
            self._stack.__exit__(type(error), error, error.__traceback__)

    def _write(self, sample: _Pending) -> None:
        if not sample.key.isascii() or len(sample.key) > _MAX_KEY:
            raise ValueError(
                f"key {sample.key!r} in {self._name}: must be ASCII, at most {_MAX_KEY} characters. "
                "Make the shards with `veca-data shards`."
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


def remove_leftovers(out: Path, shards: list[SplitShard]) -> None:
    """Remove the temporary files that a killed run left of these shards."""
    names = {shard.name.removesuffix(".tar") for shard in shards}
    for folder in (out, out / PARTS):
        for path in folder.glob(".*.tmp"):
            if path.name.lstrip(".").partition(".")[0] in names:
                path.unlink(missing_ok=True)


def write_index(
    out: Path, spec: CacheSpec, shards: list[SplitShard], *, projection_sha256: str | None
) -> Summary | None:
    """Write index.json once every shard is finished; None while some are not."""
    records = [read_record(out, shard.name) for shard in shards]
    splits: dict[str, list[ShardInfo]] = {}
    reasons: Counter[str] = Counter()
    for shard, record in zip(shards, records, strict=True):
        if record is None:
            return None
        info = ShardInfo(record.name, record.samples, record.bytes, record.sha256)
        splits.setdefault(shard.split, []).append(info)
        reasons.update(reject.reason.partition(":")[0] for reject in record.rejects)
    options = spec.options(projection_sha256=projection_sha256)
    options[TEACHER_RECORD] = teacher_facts(spec.teacher)
    write_text_atomic(out / INDEX_NAME, index_to_json(ShardIndex(spec.seed, options, splits)))
    return Summary(out, splits, reasons.total(), reasons)
