"""The order: complete, repeatable, mixed, shared out by position, the same whichever way it is asked for."""

from collections import Counter
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from veca.data.order import EpochOrder, Position, Ranks, Request, SourceCounts, TrainStream, eval_requests

COUNTS = st.lists(st.integers(0, 9), min_size=1, max_size=7).filter(lambda counts: sum(counts) > 0)


def order_of(*sources: SourceCounts, seed: int = 42, window: int = 2) -> EpochOrder:
    return EpochOrder(sources, seed=seed, window_shards=window)


def whole_epoch(order: EpochOrder, epoch: int) -> list[tuple[int, int, int]]:
    return [tuple(row) for row in order.refs(epoch, 0, order.samples_per_epoch).tolist()]


@settings(max_examples=60, deadline=None)
@given(counts=COUNTS, epoch=st.integers(0, 50), window=st.integers(1, 4), seed=st.integers(0, 2**40))
def test_an_epoch_holds_each_sample_exactly_once(
    counts: list[int], epoch: int, window: int, seed: int
) -> None:
    rows = whole_epoch(order_of(SourceCounts(tuple(counts)), seed=seed, window=window), epoch)
    expected = {(shard, number) for shard, count in enumerate(counts) for number in range(count)}
    assert Counter((shard, number) for shard, number, _ in rows) == Counter(expected)
    assert {visit for _, _, visit in rows} == {epoch}


@settings(max_examples=60, deadline=None)
@given(counts=COUNTS, data=st.data())
def test_any_range_is_a_slice_of_the_epoch(counts: list[int], data: st.DataObject) -> None:
    source = SourceCounts(tuple(counts))
    total = sum(counts)
    start = data.draw(st.integers(0, total))
    stop = data.draw(st.integers(start, total))
    asked_directly = order_of(source).refs(7, start, stop).tolist()
    assert asked_directly == [list(row) for row in whole_epoch(order_of(source), 7)[start:stop]]


def test_asking_backwards_and_again_changes_nothing() -> None:
    order = order_of(SourceCounts((5, 8, 3, 6, 4)))
    first = [order.refs(epoch, at, at + 2).tolist() for epoch in (0, 3) for at in range(0, 26, 2)]
    again = [order.refs(epoch, at, at + 2).tolist() for epoch in (3, 0) for at in reversed(range(0, 26, 2))]
    assert first == again[::-1]


def test_epochs_and_seeds_differ_and_the_same_seed_repeats() -> None:
    source = SourceCounts((20, 30, 10))
    assert whole_epoch(order_of(source), 0) == whole_epoch(order_of(source), 0)
    orders = {
        tuple((shard, number) for shard, number, _ in whole_epoch(order_of(source, seed=seed), epoch))
        for seed in (1, 2)
        for epoch in (0, 1, 2)
    }
    assert len(orders) == 6


def test_the_order_is_fixed_for_good() -> None:
    """A changed order would resume old checkpoints at other samples."""
    rows = order_of(SourceCounts((4, 3)), SourceCounts((3,), weight=0.5)).refs(1, 0, 9)
    assert rows.tolist() == [
        [0, 0, 1], [0, 3, 1], [1, 1, 1], [0, 1, 1], [1, 2, 1], [1, 0, 1], [0, 2, 1], [2, 2, 0], [2, 0, 1],
    ]  # fmt: skip


def test_neighbours_end_up_apart() -> None:
    """Samples that lie side by side in a shard are about a third of a window apart, as in a random order."""
    order = order_of(SourceCounts((100,) * 40), window=8)
    place = {(shard, number): at for at, (shard, number, _) in enumerate(whole_epoch(order, 0))}
    gaps = [abs(place[shard, n] - place[shard, n + 1]) for shard in range(40) for n in range(99)]
    assert np.mean(gaps) == pytest.approx(8 * 100 / 3, rel=0.05)
    assert np.mean(np.array(gaps) <= 8) < 0.04  # a random order of 800 has 2 %


def test_shards_come_in_another_order_each_epoch() -> None:
    order = order_of(SourceCounts((1,) * 30), window=1)
    first, second = ([shard for shard, _, _ in whole_epoch(order, epoch)] for epoch in (0, 1))
    assert first != second
    assert first != sorted(first)


@settings(max_examples=40, deadline=None)
@given(counts=COUNTS, weight=st.floats(0.1, 3.5), other=COUNTS)
def test_weights_are_passes_per_epoch(counts: list[int], weight: float, other: list[int]) -> None:
    """Over many epochs a source is read pass by pass: counts of samples never differ by more than one."""
    source = SourceCounts(tuple(counts), weight)
    order = order_of(source, SourceCounts(tuple(other)))
    seen: Counter[tuple[int, int]] = Counter()
    visits: Counter[tuple[int, int, int]] = Counter()
    for epoch in range(5):
        rows = whole_epoch(order, epoch)
        assert len(rows) == round(weight * sum(counts)) + sum(other)
        seen.update((shard, number) for shard, number, _ in rows if shard < len(counts))
        visits.update(rows)
    expected = [(shard, number) for shard, count in enumerate(counts) for number in range(count)]
    times = [seen[sample] for sample in expected]
    assert max(times) - min(times) <= 1
    assert max(visits.values()) == 1  # a visit is named once: each draws its own view


def test_shards_ahead_are_those_that_come_next() -> None:
    order = order_of(SourceCounts((4,) * 7), window=2)
    rows = whole_epoch(order, 0) + whole_epoch(order, 1)
    for position in (0, 9, 25):
        window = position // 8 * 8
        coming = list(dict.fromkeys(shard for shard, _, _ in rows[window : window + 16]))
        assert set(order.shards_ahead(0, position)) >= set(coming[:2])
        assert set(order.shards_ahead(0, position)) <= set(coming)


Sample = tuple[int, int]


def stream_of(
    counts: list[int],
    *,
    ranks: Ranks = Ranks(0, 1),  # noqa: B008 (immutable)
    batch_sizes: dict[int, int] | None = None,
    accumulate: int = 1,
) -> TrainStream:
    sizes = batch_sizes or {32: 2}
    resolutions = sorted(sizes)
    return TrainStream(
        EpochOrder([SourceCounts(tuple(counts))], seed=1, window_shards=2),
        batch_sizes=sizes,
        resolution_of_step=lambda step: resolutions[step * 7 % 5 % len(resolutions)],
        ranks=ranks,
        accumulate=accumulate,
    )


def take(stream: TrainStream, position: Position, count: int) -> list[tuple[Request, Position]]:
    return list(islice(stream.requests(position), count))


def samples_of(requests: list[Request]) -> list[Sample]:
    return [(shard, number) for request in requests for shard, number, _ in request.refs.tolist()]


@settings(max_examples=60, deadline=None)
@given(
    counts=st.lists(st.integers(1, 30), min_size=2, max_size=5),
    world_size=st.integers(1, 4),
    batch_size=st.integers(1, 4),
    accumulate=st.integers(1, 3),
)
def test_an_epoch_is_complete_but_for_less_than_one_step(
    counts: list[int], world_size: int, batch_size: int, accumulate: int
) -> None:
    step = world_size * batch_size * accumulate
    total = sum(counts)
    if total < step:
        return
    seen: list[Sample] = []
    lengths = set()
    for rank in range(world_size):
        stream = stream_of(
            counts, ranks=Ranks(rank, world_size), batch_sizes={32: batch_size}, accumulate=accumulate
        )
        length = stream.batches_per_epoch(lambda _: 32)
        lengths.add(length)
        epoch = take(stream, Position(), length)
        assert [position.epoch for _, position in epoch] == [0] * length
        assert take(stream, epoch[-1][1], 1)[0][1].epoch == 1
        assert all(len(request.refs) == batch_size for request, _ in epoch)
        seen += samples_of([request for request, _ in epoch])
    assert lengths == {total // step * accumulate}
    assert max(Counter(seen).values()) == 1
    assert 0 <= total - len(seen) < step


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 60), st.integers(1, 3))
def test_any_position_continues_the_same_sequence(skipped: int, accumulate: int) -> None:
    sizes = {32: 3, 48: 2, 64: 1}
    stream = stream_of([9, 14, 6], batch_sizes=sizes, accumulate=accumulate)
    whole = take(stream, Position(), skipped + 10)
    start = whole[skipped - 1][1] if skipped else Position()
    resumed = take(stream_of([9, 14, 6], batch_sizes=sizes, accumulate=accumulate), start, 10)
    assert [p for _, p in resumed] == [p for _, p in whole[skipped:]]
    for (a, _), (b, _) in zip(resumed, whole[skipped:], strict=True):
        assert (a.refs.tolist(), a.resolution) == (b.refs.tolist(), b.resolution)


def test_micro_batches_of_a_step_share_its_resolution() -> None:
    stream = stream_of([50, 50], batch_sizes={32: 2, 48: 1}, accumulate=3)
    resolutions = [request.resolution for request, _ in take(stream, Position(), 60)]
    steps = [set(resolutions[i : i + 3]) for i in range(0, 60, 3)]
    assert all(len(step) == 1 for step in steps)
    assert len({min(step) for step in steps}) == 2


def test_batch_sizes_that_differ_advance_by_what_was_taken() -> None:
    sizes = {32: 5, 48: 3, 64: 2}
    streams = [stream_of([17, 20], ranks=Ranks(rank, 2), batch_sizes=sizes) for rank in range(2)]
    runs = [take(stream, Position(), 40) for stream in streams]
    assert [position for _, position in runs[0]] == [position for _, position in runs[1]]
    for epoch in range(2):
        rows = [request for run in runs for request, position in run if position.epoch == epoch]
        seen = samples_of(rows)
        assert max(Counter(seen).values()) == 1
        assert 37 - 2 * 5 < len(seen) <= 37
    resolutions = sorted(sizes)
    length = streams[0].batches_per_epoch(lambda step: resolutions[step * 7 % 5 % 3])
    assert length == sum(position.epoch == 0 for _, position in runs[0])


@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 2), (1, 4), (4, 1)])
def test_another_world_size_continues_with_the_next_unseen_sample(before: int, after: int) -> None:
    counts = [31, 17, 40]
    first = [take(stream_of(counts, ranks=Ranks(rank, before)), Position(), 7) for rank in range(before)]
    position = first[0][-1][1]
    seen = samples_of([request for run in first for request, _ in run])
    for rank in range(after):
        for request, new in stream_of(counts, ranks=Ranks(rank, after)).requests(position):
            if new.epoch > 0:
                break
            seen += samples_of([request])
    assert max(Counter(seen).values()) == 1
    assert 88 - len(seen) < 2 * after


def test_an_epoch_smaller_than_a_step_is_refused() -> None:
    with pytest.raises(ValueError, match="an epoch has 7 samples, but one optimizer step takes 8"):
        stream_of([4, 3], ranks=Ranks(0, 2), accumulate=2)


@settings(max_examples=60, deadline=None)
@given(
    counts=st.lists(st.integers(0, 9), min_size=0, max_size=4),
    world_size=st.integers(1, 4),
    batch_size=st.integers(1, 4),
    limit=st.one_of(st.none(), st.integers(1, 4)),
)
def test_evaluation_takes_each_sample_once_on_any_world_size(
    counts: list[int], world_size: int, batch_size: int, limit: int | None
) -> None:
    ranks = [
        eval_requests(
            counts, resolution=32, batch_size=batch_size, max_batches=limit, ranks=Ranks(rank, world_size)
        )
        for rank in range(world_size)
    ]
    everything = [(shard, number) for shard, count in enumerate(counts) for number in range(count)]
    expected = everything if limit is None else everything[: limit * batch_size]
    assert sorted(sample for requests in ranks for sample in samples_of(requests)) == expected
    assert all(samples_of(requests) == sorted(samples_of(requests)) for requests in ranks)
    lengths = [len(requests) for requests in ranks]
    assert max(lengths) == min(lengths)  # ranks end together, some with an empty batch
    assert all(len(request.refs) <= batch_size for requests in ranks for request in requests)
    assert all(len(request.refs) for request in ranks[0])
