"""What all benchmarks share: candidates take turns, ratios are judged by goals and kept in a JSON.

A ratio taken in one run means something on another machine; milliseconds do not. `veca bench check` compares
with `docs/bench.json`: a ratio more than 15 % worse, and still so when repeated, is a failure.
"""

import json
import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec

import torch

from veca.utils.files import write_text_atomic
from veca.utils.timing import SPREAD, collect, compare, interleave

BASELINE = Path("docs/bench.json")
MAX_LOSS = 0.15
MODULES = {  # benchmark → where its function of the same name lives; imported on use
    "attention": "veca.bench.model",
    "model": "veca.bench.model",
    "regions": "veca.bench.model",
    "pixels": "veca.bench.data",
    "loader": "veca.bench.data",
    "shards": "veca.bench.data",
    "cache": "veca.bench.training",
    "loop": "veca.bench.training",
    "probe": "veca.bench.training",
    "scale": "veca.bench.training",
}
P = ParamSpec("P")


class Goal(NamedTuple):
    """The value a ratio should reach: from below, or with `at_most` from above."""

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


class Ratio(NamedTuple):
    """How many times faster candidate `fast` is than `slow`, times `scale`, and what that should reach."""

    slow: str
    fast: str
    goal: Goal | None = None
    scale: float = 1.0


class Measured(dict[str, float]):
    """Numbers by name, as the JSON has them, the spreads of ratios among them; and the goals of some."""

    def __init__(self, numbers: Mapping[str, float] | None = None) -> None:
        super().__init__(numbers or {})
        self.goals: dict[str, Goal] = {}

    def shown(self, name: str) -> str:
        """A number and, where it was taken in turns, how far the turns lie apart."""
        value, spread = self[name], self.get(name + SPREAD)
        shown = f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
        return shown + ("" if spread is None else f" ± {spread:.0%}")

    def tell(self) -> None:
        for name, value in self.items():
            if not name.endswith(SPREAD):
                goal = self.goals.get(name)
                judged = f"  goal {goal}: {goal.verdict(value)}" if goal else ""
                print(f"{name:44} {self.shown(name):>16}{judged}", flush=True)


@dataclass(frozen=True, kw_only=True)
class Case:
    """Candidates that take turns, and the numbers taken from it."""

    candidates: Mapping[str, Callable[[], Any]]  # with `own_clock` each returns its readings by name
    ratios: Mapping[str, Ratio]
    unit: str = ""  # of what a candidate reaches by itself, as in {}_per_s; otherwise seconds per amount
    amounts: Mapping[str, float] = field(default_factory=dict)  # what a call gets done, in that unit
    repeats: int
    warmup: int = 1  # untimed rounds before
    turn: float = 0.0  # seconds that a turn takes at least; only without `own_clock`
    own_clock: bool = False

    def measure(self) -> Measured:
        if self.own_clock:
            timings = collect(self.candidates, repeats=self.repeats, warmup=self.warmup)
        else:
            timings = interleave(self.candidates, repeats=self.repeats, warmup=self.warmup, turn=self.turn)
        found = Measured()
        for name, (slow, fast, goal, scale) in self.ratios.items():
            found |= compare(timings, {name: (slow, fast)}, scale=scale)
            if goal:
                found.goals[name] = goal
        for name, amount in self.amounts.items():
            seconds = timings[name].median
            per_second = self.unit.endswith("_per_s")
            found[self.unit.format(name)] = amount / seconds if per_second else seconds / amount
        return found


Steps = Generator[Case | dict[str, float], None, None]  # cases, and numbers that need no turns


def benchmark(steps: Callable[P, Steps]) -> Callable[P, Measured]:
    """The function that measures the cases of a generator, and tells each at once: all may take minutes."""

    @wraps(steps)
    def run(*args: P.args, **kwargs: P.kwargs) -> Measured:
        whole = Measured()
        with closing(steps(*args, **kwargs)) as running:
            for step in running:  # each case is built when the one before is measured
                found = step.measure() if isinstance(step, Case) else Measured(step)
                found.tell()
                whole |= found
                whole.goals |= found.goals
        return whole

    return run


@contextmanager
def one_thread() -> Iterator[None]:
    """Threads that wait for each other would be the noise of a measurement."""
    threads, before = torch.get_num_threads(), os.environ.get("OMP_NUM_THREADS")
    # Lightning takes all cores for a process whose environment does not say how many.
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        del os.environ["OMP_NUM_THREADS"]
        if before is not None:
            os.environ["OMP_NUM_THREADS"] = before


def run_all(*, out: Path = Path("bench.json"), only: Sequence[str] | None = None) -> None:
    """Run the benchmarks, print their goals, and write every ratio with its spread to a JSON.

    Args:
        out: JSON to write.
        only: Names of benchmarks, as in model,loader; what `out` holds of the others stays.
    """
    print(f"\n{_table(_run(only, out))}\n\n{out}")


def check(
    *, baseline: Path = BASELINE, out: Path = Path("bench.json"), only: Sequence[str] | None = None
) -> None:
    """Run the benchmarks and fail where a ratio with a goal is more than 15 % worse than the one kept.

    Where it seems so, the benchmark is run once more: noise is not worse twice.

    Args:
        baseline: JSON that `veca bench all` wrote.
        out: JSON to write what is measured to; of a benchmark that is run twice, the second time.
        only: Names of benchmarks, as in model,loader, where not all of them are wanted.
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
        print("\nslower, so measured again:\n" + "\n".join(lost.values()), flush=True)
        again = losses(_run([name for name, _ in lost], out), kept)
        lost = {key: line for key, line in lost.items() if key in again}
    if lost:
        raise ValueError(f"slower than in {baseline}:\n" + "\n".join(lost.values()))
    print(f"nothing lost more than {MAX_LOSS:.0%} against {baseline}")


def losses(results: dict[str, Measured], kept: dict[str, dict[str, float]]) -> dict[tuple[str, str], str]:
    """Every (benchmark, ratio) with a goal that has become worse by more than MAX_LOSS, and a line on it."""
    return {
        (name, ratio): f"- {name} {ratio}: {found[ratio]:.3g}, was {before:.3g}"
        for name, found in results.items()
        for ratio, goal in found.goals.items()
        if (before := kept.get(name, {}).get(ratio)) is not None
        and goal.loss(found[ratio], before) > MAX_LOSS
    }


def _run(only: Sequence[str] | None, out: Path) -> dict[str, Measured]:
    """The results of the benchmarks, written as they come; what `only` leaves out stays in the file."""
    chosen = list(MODULES) if only is None else list(only)
    unknown = sorted(set(chosen) - set(MODULES))
    if unknown:
        raise ValueError(f"only: no benchmark {', '.join(unknown)}; there are {', '.join(MODULES)}.")
    kept = json.loads(out.read_text(encoding="utf-8")) if only and out.is_file() else {}
    results: dict[str, Measured] = {}
    for name, module in MODULES.items():
        if name in chosen:
            print(f"== {name}", flush=True)
            results[name] = getattr(import_module(module), name)()
            write_text_atomic(out, json.dumps(kept | results, indent=1) + "\n")
    return results


def _table(results: dict[str, Measured]) -> str:
    lines = ["| benchmark | ratio | measured | goal | |", "|---|---|---:|---:|---|"]
    for name, found in results.items():
        for ratio, goal in found.goals.items():
            verdict = goal.verdict(found[ratio])
            lines.append(f"| {name} | {ratio} | {found.shown(ratio)} | {goal} | {verdict} |")
    return "\n".join(lines)
