"""Interleaved timing: the candidates take turns, so that a noisy machine disturbs them alike."""

import gc
import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Timing:
    """Seconds per call of one candidate."""

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
        for name, run in candidates.items():
            gc.collect()
            start = time.perf_counter()
            for _ in range(calls):
                run()
            seconds[name].append((time.perf_counter() - start) / calls)
        if round_number + 1 == warmup:
            calls = max(1, math.ceil(turn / min(values[-1] for values in seconds.values())))
    return {name: Timing(tuple(values[warmup:])) for name, values in seconds.items()}


def ratio(timings: Mapping[str, Timing], slow: str, fast: str) -> float:
    """How many times faster `fast` is than `slow`: the median of the round-by-round ratios."""
    pairs = zip(timings[slow].seconds, timings[fast].seconds, strict=True)
    return statistics.median(a / b for a, b in pairs)
