"""Runs meet faults, are mended and go on. `cases.py` says what a case is and what counts as failure."""

import contextlib
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from tests.data import server as serving
from tests.data.caches import write_cache
from tests.data.shards import write_dataset
from tests.runs import Run, outcome, same, write_recipe
from tests.torture.cases import CASES, DEADLINE, SAVE_EVERY, SEED, STEPS, Case, draw
from tests.torture.trouble import BALLAST
from veca.train.checkpointing import newest_intact, read_step
from veca.utils.process import STOPPED

pytestmark = [pytest.mark.torture, pytest.mark.timeout(900)]

DISK_BYTES = 32_000_000
INSIDE = {  # faults that the run does to itself → what `Trouble` calls them
    "full disk": "full_disk",
    "slow disk": "slow_disk",
    "clock jump": "clock",
    "NaN in a loss": "loss",
    "NaN in a gradient": "gradient",
    "NaN in a target": "target",
    "NaN in a weight": "weight",
}
UNNOTICED = ("stop and continue", "slow disk", "clock jump")  # the run goes on
WITH_TRACEBACK = ("kill -9",)  # a rank may hear of the death of another in the middle of anything
STORM_SECONDS = 0.8


class World:
    """What all cases share: data, recipe, and the outcomes of runs that nothing happens to."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.shards = write_dataset(folder / "shards", [20, 13, 17], [9])
        self.cache = write_cache(self.shards, resolutions=(32,), views=1)
        steps = {"max_steps": STEPS, "checkpoint_every": SAVE_EVERY}
        self.recipe = write_recipe(folder, self.shards, **steps, val_check_interval=2 * SAVE_EVERY)
        self._whole: dict[tuple[int, bool], Any] = {}

    def whole(self, ranks: int, *, cached: bool) -> Any:
        """The undisturbed run; the number of workers changes nothing."""
        if (ranks, cached) not in self._whole:
            folder = self.folder / f"whole-{ranks}-{cached}"
            with Run(self.recipe, folder, *self.targets(self.shards, cached), ranks=ranks) as run:
                assert run.wait(DEADLINE) == [0] * ranks, run.log()
            self._whole[ranks, cached] = outcome(folder)
        return self._whole[ranks, cached]

    @staticmethod
    def targets(shards: Path, cached: bool) -> list[str]:
        return ["--model.teacher", "null", "--data.targets", str(shards)] if cached else []


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("torture"))


@pytest.mark.parametrize("number", range(CASES))
def test_a_case(number: int, world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = draw(SEED, number)
    start = time.monotonic()
    with capsys.disabled():
        print(f"\n{case}", end="", flush=True)
        with small_disk(tmp_path / "disk") if case.fault == "full disk" else contextlib.nullcontext():
            try:
                came_to = Trial(case, world, tmp_path).run()
            except BaseException as error:
                error.add_note(f"{case}. Alone: {case.command}")
                raise
        print(f": {came_to}, {time.monotonic() - start:.0f} s", end="", flush=True)


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small disk needs root")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


class Trial:
    """A case under way."""

    def __init__(self, case: Case, world: World, folder: Path) -> None:
        self.case, self.world, self.folder = case, world, folder
        self.chance = case.chance
        self.cached = case.fault == "damaged cache"
        self.shards = world.shards
        if case.fault.startswith("damaged"):
            self.shards = folder / "shards"
            shutil.copytree(world.shards, self.shards)
        self.place = folder / "disk" / "run" if case.fault == "full disk" else folder / "run"
        self.checkpoints = self.place / "checkpoints"
        self.compares = True  # whether the data were intact

    def run(self) -> str:
        """Disturb, look at what is left, mend, go on, compare; returns what came of it in a word or two."""
        whole = self.world.whole(self.case.ranks, cached=self.cached)
        if self.case.fault == "dead server":
            with serving.serve(self.shards) as (url, server):
                words = ["--data.sources", url, "--data.cache_dir", str(self.folder / "cache")]
                die(server, self.chance)
                ended = self.disturbed(*words)
                server.__dict__.pop("answer")
                self.finish(*words)
        else:
            words = ["--data.sources", str(self.shards), *self.world.targets(self.shards, self.cached)]
            ended = self.disturbed(*words)
            if self.case.fault in ("damaged index", "damaged checkpoint"):
                ended += self.damaged_between(words)
            self.mend()
            self.finish(*words)
        assert not list(self.checkpoints.glob(".*")), "temporary files are left"
        if self.compares:
            left = outcome(self.place)
            assert all(same(left[part], whole[part]) for part in ("step", "weights", "optimizers"))
        return f"ended with {ended}, {'the same' if self.compares else 'sound'} after all"

    # The disturbed run

    def disturbed(self, *words: str) -> list[int | None]:
        repeats = self.chance.choice((1, 1, 2)) if self.case.fault == "kill -9" else 1
        for number in range(repeats):
            ended = self._disturbed_once(number, words)
        return ended

    def _disturbed_once(self, number: int, words: tuple[str, ...]) -> list[int | None]:
        told = self.folder / f"moments-{number}"
        told.mkdir()
        logged = len(self._log())
        with Run(
            self.world.recipe, self.folder / "run", *words, *self._trouble(told), ranks=self.case.ranks
        ) as run:
            step = wait_for_moment(run, told / "moment-0")
            workers = run.workers()
            hurt = self._harm(run) if step is not None else True
            ended = run.wait(DEADLINE)
            self.ended(ended, workers, self._log()[logged:], hurt)
        self._look_at_checkpoints(step)
        return ended

    def _trouble(self, told: Path) -> list[str]:
        """The options of a run with the callback that knows the moment."""
        case, chance = self.case, self.chance
        kind, rank, amount = INSIDE.get(case.fault, "nothing"), chance.randrange(case.ranks), 0.0
        if case.fault == "kill -9" and chance.random() < 0.5:
            kind = "kill"
        elif case.fault == "full disk":
            rank, amount = 0, chance.choice((0, 4096, 200_000))
        elif case.fault == "slow disk":
            rank, amount = -1, chance.uniform(0.1, 1)
        elif case.fault == "clock jump":
            rank, amount = -1, chance.choice((-1, 1)) * chance.choice((3600, 86_400, 3e8))
        arguments = {"kind": kind, "hook": case.hook, "step": case.step, "rank": rank, "amount": amount}
        arguments |= {"folder": str(told), "disk": str(self.folder / "disk")}
        callback = {"class_path": "tests.torture.trouble.Trouble", "init_args": arguments}
        recipe = {"trainer": {"callbacks": [callback], "log_every_n_steps": case.looks}}
        path = told / "trouble.yaml"
        path.write_text(yaml.safe_dump(recipe), encoding="utf-8")
        return [
            *("--config", str(path), "--data.num_workers", str(case.workers)),
            *("--trainer.default_root_dir", str(self.place)),
        ]

    def _harm(self, run: Run) -> bool:
        """What is done from outside once the moment has come; False where it may end the run by force."""
        fault, chance = self.case.fault, self.chance
        time.sleep(chance.uniform(0, 0.06))
        if fault == "kill -9":
            kinds = ["main", *["rank"] * (self.case.ranks > 1), *["worker"] * (self.case.workers > 0)]
            run.kill(chance.choice(kinds), chance)
        elif fault in ("damaged index", "damaged checkpoint") or (
            fault == "clock jump" and chance.random() < 0.5
        ):
            for process in run.ranks:
                process.kill()
        elif fault == "stop and continue":
            stop_and_continue(chance.choice(everyone(run)), chance.uniform(0.1, 2))
        elif fault == "signal storm":
            return storm(run, chance) < STORM_SECONDS + 0.1
        elif fault in ("damaged tar", "damaged cache"):
            folder = next(self.shards.glob("targets-*")) if self.cached else self.shards
            how = damage(chance.choice(sorted(folder.glob("train-*.tar"))), chance)
            self.compares = how in ("cut off", "gone")  # other bytes may pass for an image
        return True

    def ended(self, ended: list[int | None], workers: list[int], log: str, gently: bool) -> None:
        fault = self.case.fault
        assert None not in ended, f"{self.case} outlived its {DEADLINE:.0f} s: {log}"
        wait_for_the_end_of(workers)
        if fault in UNNOTICED and -signal.SIGKILL not in ended:
            assert ended == [0] * self.case.ranks, log
        if fault == "signal storm" and gently:
            assert ended[0] in (0, STOPPED), log
            assert not any(ended[1:]), log
        if fault.startswith("NaN"):
            assert set(ended) in ({0}, {1}), log
        if fault == "full disk" and any(ended):
            assert "no space left" in log.lower() or "could not be saved" in log, log
        if fault not in WITH_TRACEBACK:
            assert "Traceback" not in log, log

    def _look_at_checkpoints(self, step: int | None) -> None:
        """None is lost that was due before the moment, none holds a number that is not finite."""
        for path in self.checkpoints.glob("*.ckpt"):
            content = torch.load(path, weights_only=True)
            assert_finite({key: content[key] for key in ("state_dict", "optimizer_states")}, path.name)
        due = (max(0, (step or 0) - 1) // SAVE_EVERY) * SAVE_EVERY
        if due:
            newest = newest_intact(self.checkpoints)
            assert newest is not None, f"no checkpoint is left, and one of step {due} was due"
            assert read_step(newest) >= due, f"{newest} is of step {read_step(newest)}, not {due}"

    # What lies between that run and the next

    def damaged_between(self, words: list[str]) -> list[int | None]:
        """Go on with a damaged file: refused by its name, or not harmed by it."""
        case, chance = self.case, self.chance
        paths = [self.shards / "index.json"]
        if case.fault == "damaged checkpoint":
            paths = sorted(self.checkpoints.glob("*.ckpt"))
        if not paths:
            return []
        path = chance.choice(paths)
        kept = path.read_bytes()
        damage(path, chance)
        logged = len(self._log())
        with Run(self.world.recipe, self.folder / "run", *words, ranks=case.ranks) as run:
            ended = run.wait(DEADLINE)
        log = self._log()[logged:]
        assert None not in ended, f"{case} outlived its {DEADLINE:.0f} s: {log}"
        assert "Traceback" not in log, log
        if any(ended):
            assert str(path.parent) in log, log
            path.write_bytes(kept)
        elif case.fault == "damaged index":
            self.compares = False  # another index that can be read: another order of samples, perhaps
        return ended

    def mend(self) -> None:
        (self.folder / "disk" / BALLAST).unlink(missing_ok=True)
        if self.case.fault in ("damaged tar", "damaged cache", "damaged index"):
            shutil.rmtree(self.shards)
            shutil.copytree(self.world.shards, self.shards)
        if self.case.fault == "clock jump":
            for path in self.checkpoints.glob("*"):
                moment = time.time() + self.chance.uniform(-3e8, 3e8)
                os.utime(path, (moment, moment))

    def finish(self, *words: str) -> None:
        options = [
            "--trainer.default_root_dir",
            str(self.place),
            "--data.num_workers",
            str(self.case.workers),
        ]
        with Run(self.world.recipe, self.folder / "run", *words, *options, ranks=self.case.ranks) as run:
            assert run.wait(DEADLINE) == [0] * self.case.ranks, f"{self.case}\n{run.log()}"

    def _log(self) -> str:
        return "\n".join(path.read_text() for path in sorted((self.folder / "run").glob("log-*.txt")))


def wait_for_moment(run: Run, path: Path) -> int | None:
    """The step at which the moment came; None where the run ended before it."""
    until = time.monotonic() + DEADLINE
    while not path.exists():
        if all(process.exitcode is not None for process in run.ranks) or time.monotonic() > until:
            return None
        time.sleep(0.005)
    return int(path.read_text())


def everyone(run: Run) -> list[int]:
    return [*(process.pid or 0 for process in run.ranks), *run.workers()]


def stop_and_continue(pid: int, seconds: float) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)
        time.sleep(seconds)
        os.kill(pid, signal.SIGCONT)


def storm(run: Run, chance: random.Random) -> float:
    """Seconds that it took: two strong wishes a second apart end a run by force."""
    start, pids, count = time.monotonic(), everyone(run), chance.randint(2, 40)
    for _ in range(count):
        with contextlib.suppress(ProcessLookupError):
            os.kill(chance.choice(pids), chance.choice((signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)))
        time.sleep(chance.uniform(0, STORM_SECONDS / count))
    return time.monotonic() - start


def damage(path: Path, chance: random.Random) -> str:
    """Harm one file, and say how."""
    how = chance.choice(("a flipped bit", "zeros", "cut off", "gone"))
    body = bytearray(path.read_bytes())
    place = chance.randrange(len(body))
    if how == "gone":
        path.unlink()
    elif how == "cut off":
        os.truncate(path, place)
    else:
        end = min(place + 4096, len(body))
        body[place:end] = (
            bytes(end - place) if how == "zeros" else bytes([body[place] ^ 1]) + body[place + 1 : end]
        )
        with path.open("r+b") as file:  # in place: who has it open sees it
            file.write(body)
    return how


def die(server: serving.ShardServer, chance: random.Random) -> None:
    """From one request on the server fails, once or for ever."""
    well, lasts = server.answer, chance.random() < 0.5
    asked, fails_at = iter(range(10**9)), chance.randrange(12)
    how: Callable[[BaseHTTPRequestHandler, bytes], None] = chance.choice(
        (nothing, serving.cut_off, serving.unavailable, serving.corrupt)
    )

    def answer(request: BaseHTTPRequestHandler, *, body: bool) -> None:
        number = next(asked)
        path = server.folder / request.path.lstrip("/")
        hit = number >= fails_at if lasts else number == fails_at
        if (
            hit and path.is_file() and (how is not serving.corrupt or path.suffix == ".tar")
        ):  # the rest has no hash
            how(request, path.read_bytes())
        else:
            well(request, body=body)

    server.answer = answer  # type: ignore[method-assign]


def nothing(request: BaseHTTPRequestHandler, data: bytes) -> None:
    request.close_connection = True


def wait_for_the_end_of(pids: list[int]) -> None:
    until = time.monotonic() + 10
    while alive := [pid for pid in pids if _lives(pid)]:
        assert time.monotonic() < until, f"workers {alive} outlive their run"
        time.sleep(0.05)


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def assert_finite(content: Any, name: str) -> None:
    if isinstance(content, torch.Tensor):
        assert not content.is_floating_point() or bool(content.isfinite().all()), f"{name} is poisoned"
    elif isinstance(content, dict | list | tuple):
        for key, part in content.items() if isinstance(content, dict) else enumerate(content):
            assert_finite(part, f"{name}.{key}")
