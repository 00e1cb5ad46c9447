"""Requests → batches: what a worker process does.

A `Request` names the samples and the resolution of one batch of one rank; the dataset reads, decodes and
crops them. It holds no order, rank or epoch of its own, so any worker can build any batch, of any
resolution, and the number of workers changes nothing but speed.

`ViewSource` is the seam between views: fresh crops here, stored ones with their targets in `stored_views.py`.
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from veca.data.augment import View, centre_view, draw_view, render_all, sample_generator
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
        rows: list[_Row | Skipped] = [
            self._chosen(shard, number, visit, request.resolution)
            for shard, number, visit in request.refs.tolist()
        ]
        # Pixels stay as they were decoded, channels last: the device sorts them into planes in no time.
        pixels = torch.empty((len(rows), request.resolution, request.resolution, 3), dtype=torch.uint8)
        self._render(rows, pixels.numpy())
        skipped = [row for row in rows if isinstance(row, Skipped)]
        if self._replace_bad and len(skipped) == len(rows):
            raise RuntimeError(f"not one of the {len(rows)} samples of a batch can be used: {skipped[0]}")
        used = _places(rows, replace_bad=self._replace_bad)
        images = pixels[used] if skipped else pixels
        good = [row for row in (rows[place] for place in used) if isinstance(row, _Row)]
        return BuiltBatch(_batch(images.permute(0, 3, 1, 2), good), skipped)

    def _chosen(self, shard: int, number: int, visit: int, resolution: int) -> "_Row | Skipped":
        key, name = f"sample {number}", self._reader.name(shard)
        try:
            sample = self._reader.read(shard, number)
            key = sample.key
            view, targets = self._views.choose(sample, visit=visit, resolution=resolution)
        except (BadSample, BadImage) as error:
            return Skipped(name, key, error.reason, str(error))
        return _Row(name, sample, view, targets)

    def _render(self, rows: "list[_Row | Skipped]", pixels: NDArray[np.uint8]) -> None:
        """Fill `pixels` (B, R, R, 3); a row whose image cannot be decoded becomes a Skipped."""
        chosen = [(place, row) for place, row in enumerate(rows) if isinstance(row, _Row)]
        rendered = render_all([row.sample.image for _, row in chosen], [row.view for _, row in chosen])
        for (place, row), image in zip(chosen, rendered, strict=True):
            if isinstance(image, BadImage):
                rows[place] = Skipped(row.shard, row.sample.key, image.reason, str(image))
            else:
                pixels[place] = image.transpose(1, 2, 0)


class _Row(NamedTuple):
    shard: str
    sample: Sample
    view: View
    targets: Targets | None


def _places(rows: Sequence[_Row | Skipped], *, replace_bad: bool) -> list[int]:
    """The rows a batch is made of. A gap takes the next good row, round the end: a function of the batch."""
    good = [place for place, row in enumerate(rows) if isinstance(row, _Row)]
    if not replace_bad:
        return good
    return [good[bisect_left(good, place) % len(good)] for place in range(len(rows))]


def _batch(images: torch.Tensor, rows: Sequence[_Row]) -> Batch:
    stored = [row.targets for row in rows if row.targets is not None]
    assert len(stored) in (0, len(rows))  # a view source has targets for all or for none
    targets = None
    if stored:
        targets = Targets(
            cls=torch.stack([target.cls for target in stored]),
            patches=torch.stack([target.patches for target in stored]),
        )
    return Batch(images, [row.sample.key for row in rows], targets)
