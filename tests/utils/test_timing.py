"""Timing by turns, on a clock that the candidates themselves move."""

from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from veca.utils import timing as measure
from veca.utils.timing import Timing, collect, compare, interleave

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
    assert compare(timings, {"speed": ("slow", "fast")})["speed"] == pytest.approx(SLOW / FAST)


def test_without_a_turn_each_is_called_once_a_round(
    candidates: tuple[dict[str, Callable[[], None]], Counter[str]],
) -> None:
    runs, counts = candidates
    assert len(interleave(runs, repeats=3, warmup=0)["slow"].seconds) == 3
    assert counts == {"slow": 3, "fast": 3}


def test_a_ratio_is_the_median_over_rounds_and_says_how_they_spread() -> None:
    timings = {"slow": Timing((4.0, 30.0, 8.0)), "fast": Timing((2.0, 10.0, 8.0))}  # 2, 3, 1
    assert compare(timings, {"speed": ("slow", "fast")}) == {"speed": 2.0, "speed_spread": 0.5}
    assert compare(timings, {"speed": ("slow", "fast")}, scale=3) == {"speed": 6.0, "speed_spread": 0.5}


def test_rounds_go_there_and_back() -> None:
    order: list[str] = []
    interleave({name: lambda name=name: order.append(name) for name in "abc"}, repeats=2, warmup=0)  # type: ignore[misc]
    assert "".join(order) == "abccba"


def test_candidates_with_their_own_clocks_take_turns_too() -> None:
    order: list[str] = []

    def run(name: str) -> dict[str, float]:
        order.append(name)
        return {f"{name}_cpu": float(len(order)), f"{name}_wall": 0.5}

    timings = collect({name: lambda name=name: run(name) for name in "ab"}, repeats=2, warmup=1)  # type: ignore[misc]
    assert "".join(order) == "abbaab"
    assert timings["a_cpu"].seconds == (4.0, 5.0)
    assert timings["b_wall"].seconds == (0.5, 0.5)
