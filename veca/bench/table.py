"""All benchmarks in one table, and the check that none has lost.

`veca bench all` runs each in turn, prints the ratios that have a goal and writes all of them to a JSON.
`veca bench check` does the same and compares with the ratios kept in `docs/bench.json`: one that is more than
15 % worse, and still is when its benchmark is repeated, is a failure. Every number is a ratio taken in one
run, so it means something on another machine.
"""

import json
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from veca.files import write_text_atomic

BASELINE = Path("docs/bench.json")
MAX_LOSS = 0.15


class Goal(NamedTuple):
    """A ratio, and the value it should reach: from below, or with `at_most` from above."""

    ratio: str
    value: float
    at_most: bool = False

    def reached(self, value: float) -> bool:
        return value <= self.value if self.at_most else value >= self.value

    def loss(self, value: float, kept: float) -> float:
        """How much worse `value` is than the one kept, as a share.

        Far below a ceiling, a share of the ceiling: twice next to nothing is no loss.
        """
        return (value - kept) / max(kept, self.value) if self.at_most else 1 - value / kept


class Loss(NamedTuple):
    """A ratio of a benchmark that has become worse."""

    name: str
    ratio: str
    now: float
    before: float

    def __str__(self) -> str:
        return f"{self.name} {self.ratio}: {self.now:.3g}, was {self.before:.3g}"


# verb of `veca bench`: (module, function, what its ratios should reach)
BENCHMARKS: dict[str, tuple[str, str, tuple[Goal, ...]]] = {
    "attention": (
        "veca.bench.attention",
        "attention",
        (
            Goal("small/r1024/batch1/b64/speed_up", 4.3),
            Goal("base/r1024/batch1/b64/speed_up", 2.9),
            Goal("large/r1024/batch1/b64/speed_up", 2.5),
            *(Goal(f"{size}/r256/batch1/b64/speed_up", 0.85) for size in ("small", "base", "large")),
        ),
    ),
    "model": (
        "veca.bench.model",
        "model",
        (
            *(
                Goal(f"{kind}/r{side}/{peer}_over_veca", 1.0)
                for side in (256, 512, 768, 1024)
                for kind in ("forward", "train")
                for peer in ("straightforward", "dinov3")
            ),
            *(Goal(f"train/r{side}/dinov3_memory_over_veca", 1.0) for side in (256, 512, 768, 1024)),
            *(Goal(f"train/r{side}/share_of_matrix_rate", 0.8) for side in (256, 512, 768, 1024)),
            Goal("train/time_1024_over_512", 4.4, at_most=True),
        ),
    ),
    "pixels": (
        "veca.bench.pixels",
        "run",
        (
            Goal("verbatim_vs_obvious", 1.5),
            Goal("small_vs_obvious", 5.0),
            Goal("small_vs_decode", 0.75),
        ),
    ),
    "loader": ("veca.bench.loader", "run", (Goal("resume_share", 0.02, at_most=True),)),
    "shards": (
        "veca.bench.shards",
        "run",
        (Goal("verbatim_vs_tar", 0.6), Goal("reencode_2_workers_vs_1", 1.7)),
    ),
    "cache": (
        "veca.bench.cache",
        "run",
        (
            Goal("cached_speedup", 1.4),
            Goal("reading_share", 1.1, at_most=True),
            Goal("int8_read_share", 1.0, at_most=True),
        ),
    ),
    "loop": ("veca.bench.loop", "run", (Goal("cpu_ratio", 1.03, at_most=True),)),
    "probe": ("veca.bench.probe", "run", (Goal("together_vs_one_by_one", 5.0),)),
    "scale": ("veca.bench.scale", "scale", (Goal("two_ranks_over_one", 1.0),)),
}


def run_all(*, out: Path = Path("bench.json"), only: list[str] | None = None) -> None:
    """Run the benchmarks, print their goals, and write every ratio to a JSON.

    Args:
        out: JSON to write.
        only: Names of benchmarks, where not all of them are wanted; what `out` holds of the others stays.
    """
    kept = json.loads(out.read_text(encoding="utf-8")) if only and out.is_file() else {}
    results = {}
    for name, found in _run(only):
        results[name] = found
        write_text_atomic(out, json.dumps(kept | results, indent=1) + "\n")
    print(f"\n{_table(results)}\n\n{out}")


def check(*, baseline: Path = BASELINE, only: list[str] | None = None) -> None:
    """Run the benchmarks and fail where a ratio with a goal is more than 15 % worse than the one kept.

    Where it seems so, the benchmark is run once more: noise is not worse twice.

    Args:
        baseline: JSON that `veca bench all` wrote.
        only: Names of benchmarks, where not all of them are wanted.
    """
    if not baseline.is_file():
        raise FileNotFoundError(
            f"baseline = {baseline}: no such file. Make it while it is quiet: veca bench all --out {baseline}"
        )
    kept = json.loads(baseline.read_text(encoding="utf-8"))
    results = dict(_run(only))
    print(f"\n{_table(results)}")
    lost = losses(results, kept)
    if lost:
        print("\nslower, so measured again:\n" + "\n".join(f"- {one}" for one in lost), flush=True)
        again = losses(dict(_run([one.name for one in lost])), kept)
        still = {(one.name, one.ratio) for one in again}
        lost = [one for one in lost if (one.name, one.ratio) in still]
    if lost:
        raise ValueError(f"slower than in {baseline}:\n" + "\n".join(f"- {one}" for one in lost))
    print(f"nothing lost more than {MAX_LOSS:.0%} against {baseline}")


def losses(results: dict[str, dict[str, float]], kept: dict[str, dict[str, float]]) -> list[Loss]:
    """Every ratio with a goal that has become worse by more than MAX_LOSS."""
    lost = []
    for name, found in results.items():
        for goal in BENCHMARKS[name][2]:
            before = kept.get(name, {}).get(goal.ratio)
            now = found.get(goal.ratio)
            if before is not None and now is not None and goal.loss(now, before) > MAX_LOSS:
                lost.append(Loss(name, goal.ratio, now, before))
    return lost


def _run(only: list[str] | None) -> Iterator[tuple[str, dict[str, float]]]:
    unknown = sorted(set(only or ()) - set(BENCHMARKS))
    if unknown:
        raise ValueError(f"only: no benchmark {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}.")
    for name, (module, function, _) in BENCHMARKS.items():
        if only is None or name in only:
            print(f"== {name}", flush=True)
            yield name, getattr(import_module(module), function)()


def _table(results: dict[str, dict[str, float]]) -> str:
    lines = ["| benchmark | ratio | measured | goal | |", "|---|---|---:|---:|---|"]
    for name, found in results.items():
        for goal in BENCHMARKS[name][2]:
            value = found[goal.ratio]
            sign, verdict = "≤" if goal.at_most else "≥", "reached" if goal.reached(value) else "MISSED"
            lines.append(f"| {name} | {goal.ratio} | {value:.3g} | {sign} {goal.value:g} | {verdict} |")
    return "\n".join(lines)
