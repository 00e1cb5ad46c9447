"""Requests → batches, built by worker processes, with the count of what has been consumed.

A request names the samples and the resolution of one batch of one rank; `BatchDataset` reads, decodes and
crops them. It holds no order, rank or epoch of its own, so any worker can build any batch, and the number of
workers changes nothing but speed. `ViewSource` is the seam between views: fresh crops here, stored ones with
their targets in `stored_views.py`.

The loaders wrap a torch DataLoader rather than being one: Lightning would give a DataLoader a sampler of
its own under DDP. Batches come back in the order in which they were asked for, so the main process knows
the position behind each batch without a word from the workers.
"""

import collections
import logging
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from signal import Signals
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.dataloader import _BaseDataLoaderIter, _MultiProcessingDataLoaderIter

from veca.data.decode import BadImage, image_size
from veca.data.order import Position, Request, TrainStream
from veca.data.reader import BadSample, Sample, ShardReader
from veca.data.views import View, centre_view, draw_view, render_all, sample_generator
from veca.types import Batch, Targets
from veca.utils.process import held_back, outlive_signals

LOOK_EVERY = 1.0  # seconds of waiting for a batch between two looks at whether all workers live
MIN_BAD = 10  # a share means little before this many bad samples

log = logging.getLogger(__name__)
T = TypeVar("T")


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


@dataclass(frozen=True)
class FreshViews:
    """Training: a new random view per visit, a function of (seed, visit, key)."""

    seed: int

    def choose(self, sample: Sample, *, visit: int, resolution: int) -> tuple[View, Targets | None]:
        generator = sample_generator(self.seed, visit, sample.key)
        return draw_view(generator, size=image_size(sample.image), resolution=resolution), None


class CentreViews:
    """Evaluation: the centre crop."""

    def choose(self, sample: Sample, *, visit: int, resolution: int) -> tuple[View, Targets | None]:
        return centre_view(size=image_size(sample.image), resolution=resolution), None


class BatchDataset(Dataset[BuiltBatch]):
    """A map from requests to batches, for a DataLoader whose batch sampler yields requests.

    With `replace_bad` the place of a bad sample is filled with the next good one of the batch (training:
    every batch is full); without, it is left out (evaluation: every image counts once).
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
        used = good = [place for place, row in enumerate(rows) if isinstance(row, _Row)]
        if self._replace_bad:
            if not good:
                raise RuntimeError(f"not one of the {len(rows)} samples of a batch can be used: {skipped[0]}")
            # A gap takes the next good row, round the end: a function of the batch.
            used = [good[bisect_left(good, place) % len(good)] for place in range(len(rows))]
        images = (pixels[used] if skipped else pixels).permute(0, 3, 1, 2)
        chosen = [row for row in (rows[place] for place in used) if isinstance(row, _Row)]
        stored = [row.targets for row in chosen if row.targets is not None]
        assert len(stored) in (0, len(chosen))  # a view source has targets for all or for none
        targets = Targets(*map(torch.stack, zip(*stored, strict=True))) if stored else None
        return BuiltBatch(Batch(images, [row.sample.key for row in chosen], targets), skipped)

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


@dataclass(frozen=True)
class WorkerOptions:
    """How many processes decode, and how they start (None: as the platform does)."""

    num_workers: int = 0
    start_method: str | None = None

    def data_loader(self, dataset: "Dataset[T]", requests: Any, *, persistent: bool) -> "DataLoader[T]":
        workers = self.num_workers
        return _SignalSafeLoader(
            dataset,
            batch_sampler=requests,
            num_workers=workers,
            collate_fn=_identity_collate,
            pin_memory=torch.cuda.is_available(),
            multiprocessing_context=self.start_method if workers else None,
            persistent_workers=persistent and workers > 0,
            worker_init_fn=outlive_signals if workers else None,
        )


class _SignalSafeLoader(DataLoader[T]):
    """A DataLoader whose workers do not die of the signals that ask a run to stop."""

    def __iter__(self) -> Any:
        with held_back():  # workers start here
            return super().__iter__()

    def _get_iterator(self) -> _BaseDataLoaderIter:
        return _SignalSafeIterator(self) if self.num_workers else super()._get_iterator()


class _SignalSafeIterator(_MultiProcessingDataLoaderIter):
    """Minds the death of a worker where a batch is waited for, and only there.

    Torch raises it in the main process wherever that is: in a save, or after the last batch, in the wait for
    workers that were told to end and did not manage it cleanly.
    """

    def __init__(self, loader: DataLoader[Any]) -> None:
        super().__init__(loader)
        torch._C._remove_worker_pids(id(self))
        self._worker_pids_set = False

    def _try_get_data(self, timeout: float = LOOK_EVERY) -> tuple[bool, Any]:
        try:
            found: tuple[bool, Any] = super()._try_get_data(timeout)  # type: ignore[no-untyped-call]  # torch's
            return found
        except RuntimeError:
            for status in (worker.exitcode for worker in self._workers if worker.exitcode):
                how = (
                    f"was killed by signal {Signals(-status).name}" if status < 0 else f"ended with {status}"
                )
                raise OSError(
                    f"data.num_workers = {self._num_workers}: a loader worker {how}. If memory has run out, "
                    "lower it; --ckpt_path last continues the run."
                ) from None
            raise


@dataclass
class SkipTally:
    """Counts bad samples by reason, and stops the run when their share is above `max_bad_share`."""

    max_bad_share: float
    seen: int = 0
    reasons: collections.Counter[str] = field(default_factory=collections.Counter)

    def add(self, built: BuiltBatch, *, asked: int) -> None:
        self.seen += asked
        if not built.skipped:
            return
        for skipped in built.skipped:
            if skipped.reason not in self.reasons:
                log.warning("skipped %s in %s: %s", skipped.key, skipped.shard, skipped.message)
            self.reasons[skipped.reason] += 1
        bad = self.reasons.total()
        if bad >= MIN_BAD and bad > self.max_bad_share * self.seen:
            counts = ", ".join(f"{reason}: {count}" for reason, count in self.reasons.most_common())
            raise RuntimeError(
                f"{bad} of {self.seen} samples are bad ({counts}), more than max_bad_share = "
                f"{self.max_bad_share} allows. The last one: key {skipped.key!r} in {skipped.shard}: "
                f"{skipped.message}. Run `veca data check` on the shards, or raise max_bad_share."
            )


class Progress(NamedTuple):
    """What a Trainer has done."""

    step: int  # optimizer steps
    batches: int  # micro-batches through which training has gone
    batches_of_epoch: int  # … since its running epoch began
    batches_per_epoch: float  # after how many it ends an epoch


class TrainLoader:
    """An iterable over training batches that knows its position.

    Without a Trainer an iteration ends with the data's epoch. A Trainer counts its epochs itself, as
    `len(loader)` batches; the loader then goes on for as long as it is asked. Either way the next iteration
    continues behind the last batch that was taken, and batches of the next epoch are prepared while the
    Trainer validates. `progress` asks what the Trainer has done; None without one.
    """

    def __init__(
        self,
        stream: TrainStream,
        dataset: BatchDataset,
        *,
        position: Position,
        length: int,
        tally: SkipTally,
        workers: WorkerOptions,
        progress: Callable[[], Progress | None],
    ) -> None:
        self._stream = stream
        self._length = length
        self._tally = tally
        self._progress = progress
        # The positions before and after the batch in hand; it counts once training is through with it.
        self._positions = collections.deque([position], maxlen=2)
        self._in_hand_after = 0
        self._asked: collections.deque[tuple[int, Position]] = collections.deque()
        self._data_loader = workers.data_loader(dataset, _Endless(self._ask), persistent=True)
        self._batches: Iterator[BuiltBatch] | None = None

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Batch]:
        # A generator does nothing until its first batch is wanted: Lightning makes iterators it never uses.
        progress = self._progress()
        if progress is None:
            epoch = self._stream.epoch(self._positions[-1])
            while self._stream.epoch(self._positions[-1]) == epoch:
                yield self._next()
        # Lightning resumes some checkpoints in an epoch that is over, and asks for a batch too many.
        elif progress.batches_of_epoch < progress.batches_per_epoch:
            self._agree(progress)
            while True:
                yield self._next()

    @property
    def position(self) -> Position:
        """The position behind the last batch consumed; without a Trainer, behind the last one handed out."""
        progress = self._progress()
        unfinished = progress is not None and progress.batches < self._in_hand_after
        return self._positions[0] if unfinished else self._positions[-1]

    def close(self) -> None:
        """End the workers; a later iteration starts new ones."""
        self._batches = None
        # Persistent workers live in this attribute. Left to the garbage collector, which may take their
        # queues first, they would not hear of their end and be waited for.
        workers: Any = self._data_loader._iterator
        if workers is not None:
            workers._shutdown_workers()
            self._data_loader._iterator = None

    # Lightning asks these of a loader it takes for resumable. The position itself travels with the
    # DataModule, whose state Lightning restores before it makes loaders.
    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        pass

    def _next(self) -> Batch:
        if self._batches is None:
            self._asked.clear()
            self._batches = iter(self._data_loader)
        built = next(self._batches)
        asked, position = self._asked.popleft()
        self._tally.add(built, asked=asked)
        self._positions.append(position)
        progress = self._progress()
        self._in_hand_after = 0 if progress is None else progress.batches + 1
        return built.batch

    def _ask(self) -> Iterator[Request]:
        for request, position in self._stream.requests(self._positions[-1]):
            self._asked.append((len(request.refs), position))
            yield request

    def _agree(self, progress: Progress) -> None:
        """Take the optimizer step from the Trainer; drop what was prepared for another one.

        They differ where a Trainer ends an epoch within an accumulation (it then makes its step early), or
        was resumed with another accumulation: samples go on, only the step they belong to changes.
        """
        last = self._positions[-1]
        micro_batch = progress.batches_of_epoch % self._stream.accumulate
        agreed = last._replace(step=progress.step, micro_batch=micro_batch)
        if agreed != last:
            self._positions.append(agreed)
            self._batches = None


class EvalLoader:
    """An iterable over one pass of evaluation batches; its workers live as long as the pass.

    A batch may be empty: ranks have equally many, and each sample of it may be bad.
    """

    def __init__(
        self, requests: Sequence[Request], dataset: BatchDataset, *, tally: SkipTally, workers: WorkerOptions
    ) -> None:
        self._requests = requests
        self._tally = tally
        self._data_loader = workers.data_loader(dataset, requests, persistent=False)

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Batch]:
        for request, built in zip(self._requests, self._data_loader, strict=True):
            self._tally.add(built, asked=len(request.refs))
            yield built.batch


class _Endless:
    """A batch sampler: a fresh iterator per call."""

    def __init__(self, start: Callable[[], Iterator[Request]]) -> None:
        self._start = start

    def __iter__(self) -> Iterator[Request]:
        return self._start()


def _identity_collate(built: Any) -> Any:
    return built


class _Row(NamedTuple):
    shard: str
    sample: Sample
    view: View
    targets: Targets | None
