"""Requests → an iterator of batches, with the count of what has been consumed.

These loaders wrap a torch DataLoader rather than being one: Lightning would give a DataLoader a sampler of
its own under DDP. Batches come back in the order in which they were asked for, so the main process knows
the position behind each batch without a word from the workers.
"""

import collections
import logging
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from signal import Signals
from typing import Any, NamedTuple, TypeVar

import torch
from torch._utils import ExceptionWrapper
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.dataloader import _BaseDataLoaderIter, _MultiProcessingDataLoaderIter

from veca.data.batches import BatchDataset, BuiltBatch, Request, Skipped
from veca.data.stream import Position, TrainStream
from veca.types import Batch
from veca.utils.leaving import KIND, TRACEBACK
from veca.utils.signals import held_back, outlive_signals

LOOK_EVERY = 1.0  # seconds of waiting for a batch between two looks at whether all workers live
MIN_BAD = 10  # a share means little before this many bad samples

log = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True)
class WorkerOptions:
    """How many processes decode, and how they start (None: as the platform does)."""

    num_workers: int = 0
    start_method: str | None = None

    def data_loader(self, dataset: "Dataset[T]", requests: Any, *, persistent: bool) -> "DataLoader[T]":
        workers = self.num_workers
        return _CalmLoader(
            dataset,
            batch_sampler=requests,
            num_workers=workers,
            collate_fn=_as_it_is,
            pin_memory=torch.cuda.is_available(),
            multiprocessing_context=self.start_method if workers else None,
            persistent_workers=persistent and workers > 0,
            worker_init_fn=outlive_signals if workers else None,
        )


class _CalmLoader(DataLoader[T]):
    """A DataLoader whose workers do not die of the signals that ask a run to stop."""

    def __iter__(self) -> Any:
        with held_back():  # workers start here
            return super().__iter__()

    def _get_iterator(self) -> _BaseDataLoaderIter:
        return _CalmIterator(self) if self.num_workers else super()._get_iterator()


class _CalmIterator(_MultiProcessingDataLoaderIter):
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

    def _process_data(self, data: Any, *args: Any) -> Any:
        """Torch would put the worker's traceback before a message that says all there is to say."""
        if isinstance(data, ExceptionWrapper) and issubclass(data.exc_type, KIND):
            said = re.split(
                rf"^(?:\w+\.)*{data.exc_type.__name__}: ", data.exc_msg.rstrip(), flags=re.MULTILINE
            )
            if len(said) > 1 and TRACEBACK not in os.environ:
                raise data.exc_type(said[-1]) from None
        return super()._process_data(data, *args)  # type: ignore[no-untyped-call]  # torch's


class SkipTally:
    """Counts bad samples by reason, and stops the run when their share is too large.

    Args:
        max_bad_share: Largest share of samples that may be bad.
    """

    def __init__(self, max_bad_share: float) -> None:
        self._max_bad_share = max_bad_share
        self.seen = 0
        self.reasons: collections.Counter[str] = collections.Counter()

    def add(self, built: BuiltBatch, *, asked: int) -> None:
        self.seen += asked
        if not built.skipped:
            return
        for skipped in built.skipped:
            if skipped.reason not in self.reasons:
                log.warning("skipped %s in %s: %s", skipped.key, skipped.shard, skipped.message)
            self.reasons[skipped.reason] += 1
        bad = self.reasons.total()
        if bad >= MIN_BAD and bad > self._max_bad_share * self.seen:
            raise RuntimeError(self._message(built.skipped[-1]))

    def _message(self, last: Skipped) -> str:
        counts = ", ".join(f"{reason}: {count}" for reason, count in self.reasons.most_common())
        return (
            f"{self.reasons.total()} of {self.seen} samples are bad ({counts}), more than "
            f"max_bad_share = {self._max_bad_share} allows. The last one: key {last.key!r} in {last.shard}: "
            f"{last.message}. Run `veca data check` on the shards, or raise max_bad_share."
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
    Trainer validates.

    Args:
        stream: The requests of this rank.
        dataset: Turns them into batches.
        position: Where to begin.
        length: Micro-batches that make an epoch for a Trainer.
        tally: Counts bad samples.
        workers: The processes that decode.
        progress: What the Trainer has done, or None without one.
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
        if progress is not None:
            yield from self._with_trainer(progress)
            return
        epoch = self._stream.epoch(self._positions[-1])
        while self._stream.epoch(self._positions[-1]) == epoch:
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

    def _with_trainer(self, progress: Progress) -> Iterator[Batch]:
        # Lightning resumes some checkpoints in an epoch that is over, and asks for a batch too many.
        if progress.batches_of_epoch >= progress.batches_per_epoch:
            return
        self._agree(progress)
        while True:
            yield self._next()

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


def _as_it_is(built: Any) -> Any:
    return built
