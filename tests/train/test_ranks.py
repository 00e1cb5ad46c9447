"""Two ranks of which one fails or is stuck, and a process group that is never given back."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.runs import write_recipe
from veca.utils.process import PATIENCE, STOPPED

LIMIT = 90.0  # seconds for a start on a busy machine


class Launched:
    """A run that `rank_trouble.py` started, with its children in a group of their own."""

    def __init__(self, recipe: Path, folder: Path, trouble: str, *options: str) -> None:
        folder.mkdir()
        self.folder, self.path = folder, folder / "said.txt"
        script = Path(__file__).parents[1] / "rank_trouble.py"
        words = [str(recipe), str(folder), trouble, "--trainer.devices", "2", *options]
        with self.path.open("wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, str(script), *words], stdout=file, stderr=file, start_new_session=True
            )

    def pid_of(self, name: str) -> int:
        until = time.monotonic() + LIMIT
        while not (path := self.folder / name).exists() or not path.read_text():
            assert time.monotonic() < until, self.said()
            assert self.process.poll() is None, self.said()
            time.sleep(0.02)
        return int(path.read_text())

    def wait(self, limit: float) -> int:
        return self.process.wait(limit)

    def said(self) -> str:
        return self.path.read_text(errors="replace")

    def is_gone(self) -> bool:
        """Whether no process of the run is left."""
        until = time.monotonic() + 10
        while time.monotonic() < until:
            try:
                os.killpg(self.process.pid, 0)
            except ProcessLookupError:
                return True
            time.sleep(0.05)
        return False

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def launched(tiny_shards: Path, tmp_path: Path) -> Iterator[list[Launched]]:
    """A list of what is to be ended after the test."""
    runs: list[Launched] = []
    yield runs
    for run in runs:
        run.end()


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory, tiny_shards: Path) -> Path:
    options = {"val_check_interval": 1000, "limit_val_batches": 1, "num_sanity_val_steps": 0}
    return write_recipe(tmp_path_factory.mktemp("recipe"), tiny_shards, max_steps=1000, **options)


@pytest.mark.parametrize(
    ("trouble", "words"),
    [
        ("error, waited for", "RuntimeError: the second rank has had enough"),
        pytest.param("error", "veca: error: rank 1: Traceback", marks=pytest.mark.torture),
        pytest.param("message", "veca: error: rank 1: shard 7 cannot be read", marks=pytest.mark.torture),
    ],
)
def test_a_rank_that_fails_ends_all_with_its_message(
    trouble: str, words: str, recipe: Path, tmp_path: Path, launched: list[Launched]
) -> None:
    run = Launched(recipe, tmp_path / "run", trouble)
    launched.append(run)
    run.pid_of("failing-1")
    assert run.wait(3 * PATIENCE + 10) == 1, run.said()
    assert words in run.said()
    assert run.is_gone()


@pytest.mark.parametrize(
    ("numbers", "saves", "status"),
    [
        ((signal.SIGTERM, signal.SIGTERM), True, STOPPED),
        pytest.param((signal.SIGINT, signal.SIGINT), False, 128 + signal.SIGINT, marks=pytest.mark.torture),
    ],
)
def test_a_second_signal_ends_a_run_that_is_stuck(
    numbers: tuple[int, int],
    saves: bool,
    status: int,
    recipe: Path,
    tmp_path: Path,
    launched: list[Launched],
) -> None:
    run = Launched(recipe, tmp_path / "run", "stuck", "--checkpoint_every", "1" if saves else "1000")
    launched.append(run)
    launcher, _ = run.pid_of("stuck-0"), run.pid_of("stuck-1")
    assert launcher == run.process.pid
    os.kill(launcher, numbers[0])
    time.sleep(1.5)
    assert run.process.poll() is None
    os.kill(launcher, numbers[1])
    assert run.wait(10) == status, run.said()
    assert f"asked again to stop, by {signal.Signals(numbers[1]).name}" in run.said()
    assert run.is_gone()


@pytest.mark.torture
def test_a_child_that_is_asked_twice_ends_the_run(
    recipe: Path, tmp_path: Path, launched: list[Launched]
) -> None:
    run = Launched(recipe, tmp_path / "run", "stuck", "--checkpoint_every", "1")
    launched.append(run)
    run.pid_of("stuck-0")
    for _ in range(2):
        os.kill(run.pid_of("stuck-1"), signal.SIGTERM)
        time.sleep(1.5)
    assert run.wait(10 + PATIENCE) == STOPPED, run.said()
    assert run.is_gone()
