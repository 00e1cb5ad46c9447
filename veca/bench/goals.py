"""What the benchmarks should reach, and how they tell it: each ratio on a line, as soon as it is measured."""

from typing import NamedTuple

from veca.utils.timing import SPREAD


class Goal(NamedTuple):
    """A ratio, and the value it should reach: from below, or with `at_most` from above."""

    ratio: str
    value: float
    at_most: bool = False

    def __str__(self) -> str:
        return f"{'≤' if self.at_most else '≥'} {self.value:g}"

    def verdict(self, value: float) -> str:
        reached = value <= self.value if self.at_most else value >= self.value
        return "reached" if reached else "MISSED"

    def loss(self, value: float, kept: float) -> float:
        """How much worse `value` is than the one kept, as a share.

        Far below a ceiling, a share of the ceiling: twice next to nothing is no loss.
        """
        return (value - kept) / max(kept, self.value) if self.at_most else 1 - value / kept


SIDES = (256, 512, 768, 1024)
GOALS: dict[str, tuple[Goal, ...]] = {  # by verb of `veca bench`
    "attention": (
        Goal("small/r1024/batch1/b64/speed_up", 4.3),
        Goal("base/r1024/batch1/b64/speed_up", 2.9),
        Goal("large/r1024/batch1/b64/speed_up", 2.5),
        *(Goal(f"{size}/r256/batch1/b64/speed_up", 0.85) for size in ("small", "base", "large")),
    ),
    "model": (
        *(
            Goal(f"{kind}/r{side}/{peer}_over_veca", 1.0)
            for side in SIDES
            for kind in ("forward", "train")
            for peer in ("straightforward", "dinov3")
        ),
        *(
            Goal(f"train/r{side}/{peer}_memory_over_veca", 1.0)
            for side in SIDES
            for peer in ("straightforward", "dinov3")
        ),
        *(Goal(f"train/r{side}/share_of_matrix_rate", 0.8) for side in SIDES),
        *(Goal(f"{kind}/time_1024_over_512", 4.4, at_most=True) for kind in ("forward", "train")),
    ),
    "pixels": (
        Goal("verbatim_vs_obvious", 1.5),
        Goal("small_vs_obvious", 5.0),
        Goal("small_vs_decode", 0.75),
    ),
    "loader": (Goal("resume_share", 0.02, at_most=True),),
    "shards": (Goal("verbatim_vs_tar", 0.6), Goal("reencode_2_workers_vs_1", 1.7)),
    "cache": (
        Goal("cached_speedup", 1.4),
        Goal("reading_share", 1.1, at_most=True),
        Goal("int8_read_share", 1.0, at_most=True),
    ),
    "loop": (Goal("cpu_ratio", 1.03, at_most=True),),
    "probe": (Goal("together_vs_one_by_one", 5.0),),
    "scale": (Goal("two_ranks_over_one", 1.0),),
}


def said(benchmark: str, results: dict[str, float]) -> dict[str, float]:
    """The results, printed on the way: a benchmark may take ten minutes."""
    goals = {goal.ratio: goal for goal in GOALS[benchmark]}
    for name, value in results.items():
        if name.endswith(SPREAD):
            continue
        line = f"{name:44} {with_spread(results, name):>16}"
        if goal := goals.get(name):
            line += f"  goal {goal}: {goal.verdict(value)}"
        print(line, flush=True)
    return results


def with_spread(results: dict[str, float], name: str) -> str:
    """A number and, where it was taken in turns, how far the turns lie apart."""
    value, spread = results[name], results.get(name + SPREAD)
    shown = f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
    return shown + ("" if spread is None else f" ± {spread:.0%}")
