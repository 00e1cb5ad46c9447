"""Interleaved timing: the candidates take turns, so that a noisy machine disturbs them alike."""

import gc
import math
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

SPREAD = "_spread"  # behind the name of a ratio: how far its turns lie apart


@dataclass(frozen=True)
class Timing:
    """Seconds per call of one candidate, peaks of its memory, or ratios of two, round by round."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def spread(self) -> float:
        """Half the range between the quartiles, as a share of the median."""
        if len(self.seconds) < 2:
            return 0.0
        first, _, third = statistics.quantiles(self.seconds, n=4)
        return (third - first) / 2 / self.median


def interleave(
    candidates: Mapping[str, Callable[[], object]], *, repeats: int = 5, warmup: int = 1, turn: float = 0.0
) -> dict[str, Timing]:
    """Time each candidate `repeats` times, in turns, after `warmup` untimed rounds.

    Calls shorter than `turn` seconds are repeated within a turn until the fastest takes as long: one alone
    would be timed while threads wake up and caches fill.
    """
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    calls = 1
    for round_number in range(warmup + repeats):
        for name in _order(candidates, round_number):
            gc.collect()
            start = time.perf_counter()
            for _ in range(calls):
                candidates[name]()
            seconds[name].append((time.perf_counter() - start) / calls)
        if round_number + 1 == warmup:
            calls = max(1, math.ceil(turn / min(values[-1] for values in seconds.values())))
    return {name: Timing(tuple(values[warmup:])) for name, values in seconds.items()}


def collect(
    candidates: Mapping[str, Callable[[], Mapping[str, float]]], *, repeats: int, warmup: int = 0
) -> dict[str, Timing]:
    """The same for candidates with clocks of their own: the readings that they return, by name."""
    readings: dict[str, list[float]] = defaultdict(list)
    for round_number in range(warmup + repeats):
        for name in _order(candidates, round_number):
            gc.collect()
            for kind, value in candidates[name]().items():
                readings[kind].append(value)
    return {kind: Timing(tuple(values[warmup:])) for kind, values in readings.items()}


def compare(
    timings: Mapping[str, Timing], pairs: Mapping[str, tuple[str, str]], *, scale: float = 1.0
) -> dict[str, float]:
    """For each name and (slow, fast): how many times faster `fast` is, times `scale`, and the spread of it.

    The median of the round-by-round ratios, since what disturbs a round disturbs all who take part in it.
    """
    results: dict[str, float] = {}
    for name, (slow, fast) in pairs.items():
        rounds = zip(timings[slow].seconds, timings[fast].seconds, strict=True)
        ratios = Timing(tuple(scale * a / b for a, b in rounds))
        results |= {name: ratios.median, name + SPREAD: ratios.spread}
    return results


def _order(candidates: Mapping[str, object], round_number: int) -> list[str]:
    """There and back, so that nobody always comes after the same one."""
    return list(candidates)[:: -1 if round_number % 2 else 1]
