"""All benchmarks in one table, and the check that none has lost.

`veca bench all` runs each in turn, prints the ratios that have a goal (goals.py) and writes all to a JSON.
`veca bench check` does the same and compares with the ratios kept in `docs/bench.json`: one that is more than
15 % worse, and still is when its benchmark is repeated, is a failure. Every number is a ratio taken in one
run, so it means something on another machine.
"""

import json
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from veca.bench.goals import GOALS, with_spread
from veca.utils.files import write_text_atomic

BASELINE = Path("docs/bench.json")
MAX_LOSS = 0.15


class Loss(NamedTuple):
    """A ratio of a benchmark that has become worse."""

    name: str
    ratio: str
    now: float
    before: float

    def __str__(self) -> str:
        return f"{self.name} {self.ratio}: {self.now:.3g}, was {self.before:.3g}"


# verb of `veca bench`: (module, function)
BENCHMARKS = {
    "attention": ("veca.bench.attention", "attention"),
    "model": ("veca.bench.model", "model"),
    "pixels": ("veca.bench.pixels", "run"),
    "loader": ("veca.bench.loader", "run"),
    "shards": ("veca.bench.shards", "run"),
    "cache": ("veca.bench.cache", "run"),
    "loop": ("veca.bench.loop", "run"),
    "probe": ("veca.bench.probe", "run"),
    "scale": ("veca.bench.scale", "scale"),
}


def run_all(*, out: Path = Path("bench.json"), only: list[str] | None = None) -> None:
    """Run the benchmarks, print their goals, and write every ratio with its spread to a JSON.

    Args:
        out: JSON to write.
        only: Names of benchmarks, where not all of them are wanted; what `out` holds of the others stays.
    """
    results = _run(only, out)
    print(f"\n{_table(results)}\n\n{out}")


def check(
    *, baseline: Path = BASELINE, out: Path = Path("bench.json"), only: list[str] | None = None
) -> None:
    """Run the benchmarks and fail where a ratio with a goal is more than 15 % worse than the one kept.

    Where it seems so, the benchmark is run once more: noise is not worse twice.

    Args:
        baseline: JSON that `veca bench all` wrote.
        out: JSON to write what is measured to; of a benchmark that is run twice, the second time.
        only: Names of benchmarks, where not all of them are wanted.
    """
    if not baseline.is_file():
        raise FileNotFoundError(
            f"baseline = {baseline}: no such file. Make it while it is quiet: veca bench all --out {baseline}"
        )
    if out.resolve() == baseline.resolve():
        raise ValueError(f"out = {out} is the baseline itself. Try --out bench.json.")
    kept = json.loads(baseline.read_text(encoding="utf-8"))
    results = _run(only, out)
    print(f"\n{_table(results)}")
    lost = losses(results, kept)
    if lost:
        print("\nslower, so measured again:\n" + "\n".join(f"- {one}" for one in lost), flush=True)
        again = losses(_run([one.name for one in lost], out), kept)
        still = {(one.name, one.ratio) for one in again}
        lost = [one for one in lost if (one.name, one.ratio) in still]
    if lost:
        raise ValueError(f"slower than in {baseline}:\n" + "\n".join(f"- {one}" for one in lost))
    print(f"nothing lost more than {MAX_LOSS:.0%} against {baseline}")


def losses(results: dict[str, dict[str, float]], kept: dict[str, dict[str, float]]) -> list[Loss]:
    """Every ratio with a goal that has become worse by more than MAX_LOSS."""
    lost = []
    for name, found in results.items():
        for goal in GOALS[name]:
            before = kept.get(name, {}).get(goal.ratio)
            now = found.get(goal.ratio)
            if before is not None and now is not None and goal.loss(now, before) > MAX_LOSS:
                lost.append(Loss(name, goal.ratio, now, before))
    return lost


def _run(only: list[str] | None, out: Path) -> dict[str, dict[str, float]]:
    """The results of the benchmarks, written as they come; what `only` leaves out stays in the file."""
    unknown = sorted(set(only or ()) - set(BENCHMARKS))
    if unknown:
        raise ValueError(f"only: no benchmark {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}.")
    kept = json.loads(out.read_text(encoding="utf-8")) if only and out.is_file() else {}
    results: dict[str, dict[str, float]] = {}
    for name, (module, function) in BENCHMARKS.items():
        if only is None or name in only:
            print(f"== {name}", flush=True)
            results[name] = getattr(import_module(module), function)()
            write_text_atomic(out, json.dumps(kept | results, indent=1) + "\n")
    return results


def _table(results: dict[str, dict[str, float]]) -> str:
    lines = ["| benchmark | ratio | measured | goal | |", "|---|---|---:|---:|---|"]
    for name, found in results.items():
        for goal in GOALS[name]:
            measured, verdict = with_spread(found, goal.ratio), goal.verdict(found[goal.ratio])
            lines.append(f"| {name} | {goal.ratio} | {measured} | {goal} | {verdict} |")
    return "\n".join(lines)
