"""The order of training: pure functions of (seed, epoch, position), whatever the ranks and workers.

In: how many samples each shard of each source holds. Out: which batch a rank takes next. Nothing here reads
a file or keeps a state, so any process can ask for any position; resuming is asking for the next one.

**Epochs.** An epoch is made in two shuffles. The pieces (normally whole shards) come in a new order each
epoch; a window of a few successive pieces is then permuted sample by sample. A window bounds how many shards
are read at once, and neighbours in a shard end up about a third of a window apart.

**Weights.** A source with n samples and weight w gives round(w·n) samples to every epoch. It is read pass
after pass, each pass in its own shard order, and an epoch goes on where the one before it stopped: weight 1
is every sample once per epoch, weight 0.5 every sample once in two epochs, weight 2 every sample twice per
epoch.

**Batches.** Training is one endless sequence of micro-batches. A `Position` in it is counted in samples over
all ranks, so it means the same for any number of them. A micro-batch takes the next `world_size × batch_size`
samples, rank r the r-th part of them; an epoch ends when what is left does not fill the next optimizer step.
That remainder is the only part of an epoch that is not seen, and it is another one each epoch.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

# Kinds of permutation. Part of each key, and keys all have one length: SeedSequence pads short ones with
# zeros.
_SHARDS_OF_PASS, _PIECES_OF_EPOCH, _SAMPLES_OF_WINDOW = range(3)


@dataclass(frozen=True)
class SourceCounts:
    """What the order needs to know of one source: the samples in each of its shards, and its weight."""

    samples: tuple[int, ...]
    weight: float = 1.0

    @property
    def total(self) -> int:
        return sum(self.samples)

    @property
    def per_epoch(self) -> int:
        return round(self.weight * self.total)


class _Piece(NamedTuple):
    """Samples [first, first + samples) of one shard. `visit` is the pass over the source they belong to."""

    shard: int
    first: int
    samples: int
    visit: int


class EpochOrder:
    """Where the samples of an epoch lie.

    Shards are numbered through all sources: those of the first source, then those of the second, …
    """

    def __init__(self, sources: Sequence[SourceCounts], *, seed: int, window_shards: int) -> None:
        self._sources = tuple(sources)
        self._seed = seed
        self._window_shards = window_shards
        self.samples_per_epoch = sum(source.per_epoch for source in self._sources)
        # Two are enough: positions only grow, and a batch spans at most a boundary.
        self._plan = lru_cache(maxsize=2)(self._make_plan)
        self._window = lru_cache(maxsize=2)(self._make_window)

    def refs(self, epoch: int, start: int, stop: int) -> NDArray[np.int64]:
        """Rows (shard, sample in the shard, visit) of the positions [start, stop) of an epoch.

        `visit` numbers the passes over the sample's source; with weight 1 it is the epoch. It tells two
        appearances of a sample apart, so that each draws a view of its own.
        """
        assert 0 <= start <= stop <= self.samples_per_epoch
        starts = self._plan(epoch).window_starts
        first = int(np.searchsorted(starts, start, side="right")) - 1
        parts = []
        for window in range(first, len(starts) - 1):
            begin, end = int(starts[window]), int(starts[window + 1])
            if begin >= stop:
                break
            parts.append(self._window(epoch, window)[max(start - begin, 0) : min(stop, end) - begin])
        return np.concatenate(parts) if parts else np.empty((0, 3), np.int64)

    def shards_ahead(self, epoch: int, position: int) -> list[int]:
        """The shards of the window at `position` and of the next one, in order of need: what to prefetch."""
        plan, count = self._plan(epoch), 2 * self._window_shards
        window = int(np.searchsorted(plan.window_starts, position, side="right")) - 1
        first = window * self._window_shards
        ahead = plan.pieces[first : first + count]
        if len(ahead) < count:
            ahead += self._plan(epoch + 1).pieces[: count - len(ahead)]
        return list(dict.fromkeys(piece.shard for piece in ahead))

    def _make_plan(self, epoch: int) -> "_EpochPlan":
        pieces = self._epoch_pieces(epoch)
        order = _permutation(len(pieces), self._seed, _PIECES_OF_EPOCH, epoch, 0)
        pieces = [pieces[i] for i in order]
        ends = np.cumsum([0, *(piece.samples for piece in pieces)], dtype=np.int64)
        return _EpochPlan(pieces, np.append(ends[0 : -1 : self._window_shards], ends[-1]))

    def _make_window(self, epoch: int, window: int) -> NDArray[np.int64]:
        first = window * self._window_shards
        rows = _rows(self._plan(epoch).pieces[first : first + self._window_shards])
        return rows[_permutation(len(rows), self._seed, _SAMPLES_OF_WINDOW, epoch, window)]

    def _epoch_pieces(self, epoch: int) -> list[_Piece]:
        """The pieces of an epoch before they are shuffled: per source the next `per_epoch` samples."""
        pieces: list[_Piece] = []
        first_shard = 0
        for number, source in enumerate(self._sources):
            start, stop, total = epoch * source.per_epoch, (epoch + 1) * source.per_epoch, source.total
            # Positions in an endless repetition of the source, and the passes that they touch.
            for visit in range(start // total, -(-stop // total)) if start < stop else ():
                place = visit * total
                order = _permutation(len(source.samples), self._seed, _SHARDS_OF_PASS, visit, number)
                for shard in order.tolist():
                    first, last = max(start - place, 0), min(stop - place, source.samples[shard])
                    if first < last:
                        pieces.append(_Piece(first_shard + shard, first, last - first, visit))
                    place += source.samples[shard]
            first_shard += len(source.samples)
        return pieces


class Request(NamedTuple):
    """One batch to build."""

    refs: NDArray[np.int64]  # (B, 3): shard, sample in the shard, visit (see EpochOrder.refs)
    resolution: int
    shards_ahead: list[int]  # what to prefetch meanwhile


class Position(NamedTuple):
    """Where training stands: what comes next."""

    epoch: int = 0
    samples: int = 0  # taken from this epoch, over all ranks
    step: int = 0  # optimizer step of the next micro-batch
    micro_batch: int = 0  # its place within that step


class Ranks(NamedTuple):
    """Who takes part, and which of them this process is."""

    rank: int
    world_size: int


ALONE = Ranks(0, 1)


class TrainStream:
    """The requests of one rank, with `accumulate` micro-batches per optimizer step.

    `batch_sizes` are images per rank and micro-batch, by resolution; the resolution of a step is asked for
    in order of steps, in this process.
    """

    def __init__(
        self,
        order: EpochOrder,
        *,
        batch_sizes: dict[int, int],
        resolution_of_step: Callable[[int], int],
        ranks: Ranks,
        accumulate: int,
    ) -> None:
        self._order = order
        self._batch_sizes = batch_sizes
        self._resolution_of_step = resolution_of_step
        self._ranks = ranks
        self.accumulate = accumulate
        largest = max(batch_sizes.values())
        step = largest * ranks.world_size * accumulate
        if order.samples_per_epoch < step:
            raise ValueError(
                f"an epoch has {order.samples_per_epoch} samples, but one optimizer step takes {step}: "
                f"batch_size {largest} × {ranks.world_size} ranks × {accumulate} accumulated batches. "
                "Lower batch_size or accumulate_grad_batches, or add data."
            )

    def requests(self, position: Position) -> Iterator[tuple[Request, Position]]:
        """From `position` on, without end: each request, and the position after it."""
        while True:
            resolution = self._resolution_of_step(position.step)
            batch_size = self._batch_sizes[resolution]
            taken = batch_size * self._ranks.world_size
            position = self._open_epoch(position, taken)
            start = position.samples + batch_size * self._ranks.rank
            refs = self._order.refs(position.epoch, start, start + batch_size)
            ahead = self._order.shards_ahead(position.epoch, position.samples)
            position = position._replace(
                samples=position.samples + taken, micro_batch=position.micro_batch + 1
            )
            if position.micro_batch >= self.accumulate:
                position = position._replace(step=position.step + 1, micro_batch=0)
            yield Request(refs, resolution, ahead), position

    def epoch(self, position: Position) -> int:
        """The epoch of the micro-batch at `position`: the next one where the running one is used up."""
        batch_size = self._batch_sizes[self._resolution_of_step(position.step)]
        return self._open_epoch(position, batch_size * self._ranks.world_size).epoch

    def batches_per_epoch(self, resolution_of_step: Callable[[int], int]) -> int:
        """Micro-batches of the first epoch; with one batch size for all resolutions, those of every epoch."""
        position = Position()
        while position.epoch == 0:
            steps = position.step
            taken = self._batch_sizes[resolution_of_step(steps)] * self._ranks.world_size
            position = self._open_epoch(position, taken)
            position = position._replace(samples=position.samples + taken * self.accumulate, step=steps + 1)
        return steps * self.accumulate

    def _open_epoch(self, position: Position, taken: int) -> Position:
        """The next epoch, unless this one still fills the optimizer step at `position`."""
        missing = max(self.accumulate - position.micro_batch, 1)  # a resume may accumulate less
        if position.samples + taken * missing > self._order.samples_per_epoch:
            return position._replace(epoch=position.epoch + 1, samples=0)
        return position


def eval_requests(
    samples: Sequence[int], *, resolution: int, batch_size: int, max_batches: int | None, ranks: Ranks
) -> list[Request]:
    """The requests of one rank for one pass of evaluation: all samples in index order, each once.

    Ranks take turns by `batch_size` samples, and have equally many requests, so that all end together: the
    last turn is shared evenly, and where it has fewer samples than ranks the last ranks have an empty one.
    `max_batches` counts over all ranks: any world size takes the same images.

    Args:
        samples: How many samples each shard holds.
    """
    refs = _rows([_Piece(shard, 0, count, 0) for shard, count in enumerate(samples)])
    if max_batches is not None:
        refs = refs[: max_batches * batch_size]
    turn = batch_size * ranks.world_size
    requests = []
    for start in range(0, len(refs), turn):
        part = np.array_split(refs[start : start + turn], ranks.world_size)[ranks.rank]
        ahead = range(int(part[0, 0]), len(samples))[:2] if len(part) else ()
        requests.append(Request(part, resolution, list(ahead)))
    return requests


class _EpochPlan(NamedTuple):
    pieces: list[_Piece]  # in their shuffled order
    window_starts: NDArray[np.int64]  # positions; the end of the last window behind them


def _rows(pieces: Sequence[_Piece]) -> NDArray[np.int64]:
    """(shard, sample in the shard, visit) of every sample, piece by piece."""
    shards, firsts, counts, visits = np.array(pieces, np.int64).reshape(-1, 4).T
    before = counts.cumsum() - counts
    numbers = np.arange(counts.sum()) + np.repeat(firsts - before, counts)
    return np.stack([np.repeat(shards, counts), numbers, np.repeat(visits, counts)], axis=1)


def _permutation(length: int, *key: int) -> NDArray[np.int64]:
    """A permutation that depends on the key alone.

    Raw Philox words are sorted because NumPy promises their values for good, and those of
    `Generator.permutation` only within a release: an order must survive an upgrade between two resumes.
    """
    words = np.random.Philox(np.random.SeedSequence(key)).random_raw(length)
    return np.argsort(words, kind="stable")
