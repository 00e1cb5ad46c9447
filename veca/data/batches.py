"""Requests → batches: what a worker process does.

A `Request` names the samples and the resolution of one batch of one rank; the dataset reads, decodes and
crops them. It holds no order, rank or epoch of its own, so any worker can build any batch, of any
resolution, and the number of workers changes nothing but speed.

`ViewSource` is the seam between views: fresh crops here, stored ones with their targets in `cached_views.py`.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from veca.data.augment import View, centre_view, draw_view, render, sample_generator
from veca.data.decode import BadImage, image_size
from veca.data.reader import BadSample, Sample, ShardReader
from veca.types import Batch, Targets


class Request(NamedTuple):
    """One batch to build."""

    refs: NDArray[np.int64]  # (B, 3): shard, sample in the shard, visit (see EpochOrder.refs)
    resolution: int
    shards_ahead: list[int]  # what to prefetch meanwhile


class Skipped(NamedTuple):
    """A sample that could not be used, and why."""

    shard: str
    key: str
    reason: str
    message: str


class BuiltBatch(NamedTuple):
    """What a worker sends back."""

    batch: Batch
    skipped: list[Skipped]


class ViewSource(Protocol):
    """Chooses the view of a sample, and gives the targets stored for exactly this view, if any.

    Targets of one sample are cls (D,) and patches (N, D).
    """

    def choose(self, sample: Sample, *, visit: int, resolution: int) -> tuple[View, Targets | None]:
        """`visit` counts the appearances of the sample in training: 0, 1, …"""
        ...


class FreshViews:
    """Training: a new random view per visit, a function of (seed, visit, key)."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def choose(self, sample: Sample, *, visit: int, resolution: int) -> tuple[View, Targets | None]:
        generator = sample_generator(self.seed, visit, sample.key)
        return draw_view(generator, size=image_size(sample.image), resolution=resolution), None


class CentreViews:
    """Evaluation: the centre crop."""

    def choose(self, sample: Sample, *, visit: int, resolution: int) -> tuple[View, Targets | None]:
        return centre_view(size=image_size(sample.image), resolution=resolution), None


class BatchDataset(torch.utils.data.Dataset[BuiltBatch]):
    """A map from requests to batches, for a DataLoader whose batch sampler yields requests.

    Args:
        reader: Gives samples by number.
        views: Chooses what is cut out of them.
        replace_bad: Whether the place of a bad sample is filled with the next good one of the batch
            (training: every batch is full) or left out (evaluation: every image counts once).
    """

    def __init__(self, reader: ShardReader, views: ViewSource, *, replace_bad: bool) -> None:
        self._reader = reader
        self._views = views
        self._replace_bad = replace_bad

    def __getitems__(self, request: Request) -> BuiltBatch:
        self._reader.prefetch(request.shards_ahead)
        rows = [
            self._row(shard, number, visit, request.resolution)
            for shard, number, visit in request.refs.tolist()
        ]
        skipped = [row for row in rows if isinstance(row, Skipped)]
        good = [row for row in rows if isinstance(row, _Row)]
        if self._replace_bad and not good:
            raise RuntimeError(f"not one of the {len(rows)} samples of a batch can be used: {skipped[0]}")
        used = _filled(rows) if self._replace_bad else good
        return BuiltBatch(_stacked(used, resolution=request.resolution), skipped)

    def _row(self, shard: int, number: int, visit: int, resolution: int) -> "_Row | Skipped":
        key = f"sample {number}"
        try:
            sample = self._reader.read(shard, number)
            key = sample.key
            view, targets = self._views.choose(sample, visit=visit, resolution=resolution)
            return _Row(key, render(sample.image, view), targets)
        except (BadSample, BadImage) as error:
            return Skipped(self._reader.name(shard), key, error.reason, str(error))


class _Row(NamedTuple):
    key: str
    pixels: NDArray[np.uint8]  # (3, R, R)
    targets: Targets | None


def _filled(rows: Sequence[_Row | Skipped]) -> list[_Row]:
    """Each gap takes the next good row, round the end: a function of the batch alone."""
    filled: list[_Row] = []
    following = next(row for row in rows if isinstance(row, _Row))
    for row in reversed(rows):
        following = row if isinstance(row, _Row) else following
        filled.append(following)
    return filled[::-1]


def _stacked(rows: Sequence[_Row], *, resolution: int) -> Batch:
    # Pixels stay as they were decoded, channels last: the device sorts them into planes in no time.
    memory = torch.empty((len(rows), resolution, resolution, 3), dtype=torch.uint8)
    for image, row in zip(memory.numpy(), rows, strict=True):
        image[:] = row.pixels.transpose(1, 2, 0)
    images = memory.permute(0, 3, 1, 2)
    stored = [row.targets for row in rows if row.targets is not None]
    assert len(stored) in (0, len(rows))  # a view source has targets for all or for none
    targets = None
    if stored:
        targets = Targets(
            cls=torch.stack([target.cls for target in stored]),
            patches=torch.stack([target.patches for target in stored]),
        )
    return Batch(images, [row.key for row in rows], targets)
