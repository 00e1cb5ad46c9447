"""The order of an epoch: complete, repeatable, mixed, and the same whichever way it is asked for."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from veca.data.order import EpochOrder, SourceCounts

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
