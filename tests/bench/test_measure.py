"""Timing by turns, on a clock that the candidates themselves move."""

from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from veca.bench import measure
from veca.bench.measure import interleave, ratio

SLOW, FAST = 0.05, 0.004  # seconds


@pytest.fixture
def candidates(monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, Callable[[], None]], Counter[str]]:
    now = [0.0]
    counts: Counter[str] = Counter()
    monkeypatch.setattr(measure, "time", SimpleNamespace(perf_counter=lambda: now[0]))

    def spend(name: str, seconds: float) -> Callable[[], None]:
        def run() -> None:
            now[0] += seconds
            counts[name] += 1

        return run

    return {"slow": spend("slow", SLOW), "fast": spend("fast", FAST)}, counts


def test_short_calls_fill_their_turn(
    candidates: tuple[dict[str, Callable[[], None]], Counter[str]],
) -> None:
    runs, counts = candidates
    timings = interleave(runs, repeats=3, warmup=2, turn=0.1)
    assert counts == {"slow": 2 + 3 * 25, "fast": 2 + 3 * 25}
    assert timings["slow"].seconds == pytest.approx((SLOW,) * 3)
    assert timings["fast"].seconds == pytest.approx((FAST,) * 3)
    assert ratio(timings, "slow", "fast") == pytest.approx(SLOW / FAST)


def test_without_a_turn_each_is_called_once_a_round(
    candidates: tuple[dict[str, Callable[[], None]], Counter[str]],
) -> None:
    runs, counts = candidates
    assert len(interleave(runs, repeats=3, warmup=0)["slow"].seconds) == 3
    assert counts == {"slow": 3, "fast": 3}
