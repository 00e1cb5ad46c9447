"""The order of an epoch: a pure function of (seed, epoch, position).

In: how many samples each shard of each source holds. Out: for a range of positions, which sample of which
shard. Nothing here reads a file, knows a rank or keeps a state, so any process can ask for any position at
any time; resuming is asking for the next one.

An epoch is made in two shuffles. The pieces (normally whole shards) come in a new order each epoch; a
window of a few successive pieces is then permuted sample by sample. A window bounds how many shards are
read at once, and neighbours in a shard end up about a third of a window apart.

**Weights.** A source with n samples and weight w gives round(w·n) samples to every epoch. It is read pass
after pass, each pass in its own shard order, and an epoch goes on where the one before it stopped: weight 1
is every sample once per epoch, weight 0.5 every sample once in two epochs, weight 2 every sample twice per
epoch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

K = TypeVar("K")
V = TypeVar("V")

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
        self._plans: dict[int, _EpochPlan] = {}
        self._windows: dict[tuple[int, int], NDArray[np.int64]] = {}

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
        plan = self._plan(epoch)
        window = int(np.searchsorted(plan.window_starts, position, side="right")) - 1
        first = window * self._window_shards
        ahead = list(plan.pieces[first : first + 2 * self._window_shards])
        if len(ahead) < 2 * self._window_shards:
            ahead += self._plan(epoch + 1).pieces[: 2 * self._window_shards - len(ahead)]
        return list(dict.fromkeys(piece.shard for piece in ahead))

    def _plan(self, epoch: int) -> "_EpochPlan":
        if epoch not in self._plans:
            pieces = self._epoch_pieces(epoch)
            order = _permutation(len(pieces), self._seed, _PIECES_OF_EPOCH, epoch, 0)
            plan = _EpochPlan.of([pieces[i] for i in order], window_shards=self._window_shards)
            _keep_newest(self._plans, epoch, plan)
        return self._plans[epoch]

    def _window(self, epoch: int, window: int) -> NDArray[np.int64]:
        if (epoch, window) not in self._windows:
            first = window * self._window_shards
            rows = _rows(self._plan(epoch).pieces[first : first + self._window_shards])
            order = _permutation(len(rows), self._seed, _SAMPLES_OF_WINDOW, epoch, window)
            _keep_newest(self._windows, (epoch, window), rows[order])
        return self._windows[epoch, window]

    def _epoch_pieces(self, epoch: int) -> list[_Piece]:
        """The pieces of an epoch before they are shuffled: per source the next `per_epoch` samples."""
        pieces: list[_Piece] = []
        first_shard = 0
        for number, source in enumerate(self._sources):
            start = epoch * source.per_epoch
            for visit, begin, end in _passes(start, start + source.per_epoch, length=source.total):
                order = _permutation(len(source.samples), self._seed, _SHARDS_OF_PASS, visit, number)
                for piece in _cut(source.samples, order, begin, end, visit=visit):
                    pieces.append(piece._replace(shard=first_shard + piece.shard))
            first_shard += len(source.samples)
        return pieces


class _EpochPlan(NamedTuple):
    """The shuffled pieces of an epoch and the positions where its windows start (and the last one ends)."""

    pieces: list[_Piece]
    window_starts: NDArray[np.int64]

    @classmethod
    def of(cls, pieces: list[_Piece], *, window_shards: int) -> "_EpochPlan":
        ends = np.cumsum([0, *(piece.samples for piece in pieces)], dtype=np.int64)
        starts = ends[0:-1:window_shards]
        return cls(pieces, np.append(starts, ends[-1]))


def _passes(start: int, stop: int, *, length: int) -> list[tuple[int, int, int]]:
    """Split positions [start, stop) of an endless repetition into (pass, begin, end) within each pass."""
    if start == stop:  # a source without samples for this split
        return []
    return [
        (number, max(start - number * length, 0), min(stop - number * length, length))
        for number in range(start // length, -(-stop // length))
    ]


def _cut(
    samples: Sequence[int], order: NDArray[np.int64], begin: int, end: int, *, visit: int
) -> list[_Piece]:
    """Positions [begin, end) of the shards laid out in `order`, as pieces."""
    pieces = []
    position = 0
    for shard in order.tolist():
        first, last = max(begin - position, 0), min(end - position, samples[shard])
        if first < last:
            pieces.append(_Piece(shard, first, last - first, visit))
        position += samples[shard]
    return pieces


def _rows(pieces: Sequence[_Piece]) -> NDArray[np.int64]:
    counts = [piece.samples for piece in pieces]
    shards = np.repeat([piece.shard for piece in pieces], counts)
    numbers = np.concatenate([np.arange(piece.first, piece.first + piece.samples) for piece in pieces])
    visits = np.repeat([piece.visit for piece in pieces], counts)
    return np.stack([shards, numbers, visits], axis=1).astype(np.int64)


def _permutation(length: int, *key: int) -> NDArray[np.int64]:
    """A permutation that depends on the key alone.

    Raw Philox words are sorted because NumPy promises their values for good, and those of
    `Generator.permutation` only within a release: an order must survive an upgrade between two resumes.
    """
    words = np.random.Philox(np.random.SeedSequence(key)).random_raw(length)
    return np.argsort(words, kind="stable")


def _keep_newest(cache: dict[K, V], key: K, value: V) -> None:
    """Two entries are enough: positions only grow, and a batch spans at most a boundary."""
    while len(cache) >= 2:
        del cache[next(iter(cache))]
    cache[key] = value
