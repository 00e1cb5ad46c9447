"""Image shards → batches of views for the teacher.

The unit is a shard: a rank takes whole ones, and the batches of a shard depend on nothing but the shard.
So the teacher sees the same batches, and answers with the same bytes, whatever the number of ranks, and
however often the work was interrupted. A batch is all views of a few successive samples at one resolution.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from lightning.pytorch import LightningDataModule
from numpy.typing import NDArray

from veca.data.augment import View, centre_view, draw_view, render, sample_generator
from veca.data.cached import BLOCK, CacheSpec
from veca.data.decode import BadImage, image_size
from veca.data.loader import WorkerOptions
from veca.data.reader import BadSample, ShardReader, parse_header
from veca.data.sources import Source
from veca_data.records import read_record

_KEY = re.compile(r"[A-Za-z0-9_-]+")


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
        except BadSample:
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
    """The batches of one rank: every shard that is not finished, shared out by whole shards.

    Args:
        source: The images.
        out: The folder of the cache.
        spec: What to make.
        batch_size: Views in a batch.
        workers: The processes that decode.
    """

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
