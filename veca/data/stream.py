"""Positions → requests: which batch a rank takes next.

Training is one endless sequence of micro-batches over the epochs of an `EpochOrder`. A `Position` is a
point in it, counted in samples over all ranks, so it means the same for any number of ranks and workers. A
micro-batch takes the next `world_size × batch_size` samples, rank r the r-th part of them; an epoch ends
when what is left does not fill the next optimizer step. That remainder, less than one optimizer step's
samples, is the only part of an epoch that is not seen, and it is another one each epoch.

Evaluation runs over all samples in index order, each once, whatever the world size. Every rank has the same
number of batches, so that all come to the end together; where samples are fewer than ranks some are empty.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from veca.data.batches import Request
from veca.data.order import EpochOrder


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
    """The requests of one rank.

    Args:
        order: Where the samples of an epoch lie.
        batch_sizes: Images per rank and micro-batch, by resolution.
        resolution_of_step: The resolution of an optimizer step; asked in order of steps, in this process.
        ranks: This rank and the world size.
        accumulate: Micro-batches per optimizer step.
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
            position = self._after(position, taken)
            yield Request(refs, resolution, ahead), position

    def epoch(self, position: Position) -> int:
        """The epoch of the micro-batch at `position`: the next one where the running one is used up."""
        batch_size = self._batch_sizes[self._resolution_of_step(position.step)]
        return self._open_epoch(position, batch_size * self._ranks.world_size).epoch

    def batches_per_epoch(self, resolution_of_step: Callable[[int], int]) -> int:
        """Micro-batches of the first epoch; with one batch size for all resolutions, those of every epoch."""
        samples = self._order.samples_per_epoch
        sizes = set(self._batch_sizes.values())
        if len(sizes) == 1:
            return samples // (sizes.pop() * self._ranks.world_size * self.accumulate) * self.accumulate
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

    def _after(self, position: Position, taken: int) -> Position:
        position = position._replace(samples=position.samples + taken, micro_batch=position.micro_batch + 1)
        if position.micro_batch >= self.accumulate:
            return position._replace(step=position.step + 1, micro_batch=0)
        return position


def eval_requests(
    samples: Sequence[int], *, resolution: int, batch_size: int, max_batches: int | None, ranks: Ranks
) -> list[Request]:
    """The requests of one rank for one pass in index order.

    Ranks take turns by `batch_size` samples; the last turn is shared evenly, and where it has fewer samples
    than ranks the last ranks have an empty request. `max_batches` counts over all ranks: any world size
    takes the same images.

    Args:
        samples: How many samples each shard holds.
    """
    refs = np.concatenate(
        [
            np.stack([np.full(n, shard), np.arange(n), np.zeros(n, np.int64)], axis=1)
            for shard, n in enumerate(samples)
        ]
        or [np.empty((0, 3), np.int64)]
    ).astype(np.int64)
    if max_batches is not None:
        refs = refs[: max_batches * batch_size]
    turn = batch_size * ranks.world_size
    parts = [
        np.array_split(refs[start : start + turn], ranks.world_size)[ranks.rank]
        for start in range(0, len(refs), turn)
    ]
    return [Request(part, resolution, _eval_ahead(part, len(samples))) for part in parts]


def _eval_ahead(refs: NDArray[np.int64], num_shards: int) -> list[int]:
    if not len(refs):
        return []
    first = int(refs[0, 0])
    return list(range(first, min(first + 2, num_shards)))
