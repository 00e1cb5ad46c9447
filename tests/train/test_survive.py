"""Runs that lose a process, a disk or a file."""

import errno
import multiprocessing
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import nullcontext
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.runs import LIMIT, Run, outcome, same, write_recipe
from veca.cli.main import main
from veca.train.checkpointing import SafeCheckpointIO, newest_intact, read_step, remove_leftovers
from veca.train.preemption import STOPPED
from veca.train.run_dir import MetricsLog, read_metrics, sole_run

STEPS = 16


@pytest.fixture(autouse=True)
def _own_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["veca"])


def campaign(count: int) -> list[Any]:
    """The first case always, the rest in `make torture`."""
    return [0, *(pytest.param(n, marks=pytest.mark.torture) for n in range(1, count))]


@pytest.fixture(scope="session")
def recipe(tmp_path_factory: pytest.TempPathFactory, tiny_shards: Path) -> Path:
    return write_recipe(tmp_path_factory.mktemp("recipe"), tiny_shards, max_steps=STEPS, num_workers=1)


@pytest.fixture(scope="session")
def whole(recipe: Path) -> dict[str, Any]:
    """The run with two ranks that nothing happens to."""
    with Run(recipe, recipe.parent / "whole", ranks=2) as run:
        assert run.wait(2 * LIMIT) == [0, 0], run.log()
    return outcome(run.folder)


def finish(recipe: Path, folder: Path) -> None:
    with Run(recipe, folder, ranks=2) as run:
        assert run.wait(2 * LIMIT) == [0, 0], run.log()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["main", "rank", "worker"])
@pytest.mark.parametrize("number", campaign(20))
def test_a_killed_process_ends_the_run_and_it_resumes(
    kind: str, number: int, recipe: Path, whole: dict[str, Any], tmp_path: Path
) -> None:
    chance = random.Random(f"{kind}{number}")
    with Run(recipe, tmp_path / "run", ranks=2) as run:
        run.wait_for_step(chance.randrange(STEPS - 1))
        killed = run.kill(kind, chance)
        ended = run.wait()
        assert None not in ended, f"still running after {LIMIT} s: {run.log()}"
        assert not killed or ended != [0, 0] or run.step() == STEPS - 1
        if killed and ended != [0, 0]:
            assert any(
                words in run.log() for words in ("lost another rank", "killed by signal", "closed by peer")
            )
    finish(recipe, tmp_path / "run")
    resumed = outcome(tmp_path / "run")
    # The row of a step is written after its checkpoint: a kill between them may lose it.
    assert same({**resumed, "losses": None}, {**whole, "losses": None})


@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", campaign(25))
def test_a_signal_to_any_rank_at_any_moment_hangs_nothing(
    number: int, recipe: Path, whole: dict[str, Any], tmp_path: Path
) -> None:
    chance = random.Random(number)
    with Run(recipe, tmp_path / "run", ranks=2) as run:
        run.wait_for_step(chance.randrange(-1, STEPS - 2))
        for process in chance.sample(run.ranks, chance.choice([1, 2])):
            os.kill(process.pid or 0, chance.choice([signal.SIGUSR1, signal.SIGTERM]))
        ended = run.wait()
        assert ended in ([STOPPED, 0], [0, 0]), run.log()
    finish(recipe, tmp_path / "run")
    assert same(outcome(tmp_path / "run"), whole)


def test_a_copied_folder_resumes_and_keeps_its_best(recipe: Path, tmp_path: Path) -> None:
    def fit(folder: Path, *options: str) -> None:
        words = ["--trainer.default_root_dir", str(folder), "--data.num_workers", "0", *options]
        main(["fit", "--config", str(recipe), "--ckpt_path", "last", *words])

    fit(tmp_path / "one", "--trainer.max_steps", "8")
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    shutil.rmtree(tmp_path / "one")
    fit(tmp_path / "two", "--trainer.max_steps", "9")
    assert not (tmp_path / "one").exists()
    callbacks = torch.load(tmp_path / "two/checkpoints/last.ckpt", weights_only=True)["callbacks"]
    (best,) = [state for key, state in callbacks.items() if "val/loss" in key]
    assert best["best_model_path"] == str(tmp_path / "two/checkpoints/best.ckpt")
    assert best["best_model_score"] is not None


def hold(folder: Path, ready: Event) -> None:
    with sole_run(folder):
        ready.set()
        time.sleep(LIMIT)


def test_two_runs_in_one_folder_the_second_refuses(tmp_path: Path) -> None:
    context = multiprocessing.get_context("forkserver")
    ready = context.Event()
    other = context.Process(target=hold, args=(tmp_path, ready))
    other.start()
    assert ready.wait(LIMIT)
    with pytest.raises(ValueError, match=rf"in use by process {other.pid} on .*a folder of its own"):
        sole_run(tmp_path).__enter__()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "gethostname", lambda: "elsewhere")
        with pytest.raises(ValueError, match=re.escape(f"process is gone, delete {tmp_path / '.lock'}")):
            sole_run(tmp_path).__enter__()
    other.kill()
    other.join()
    with sole_run(tmp_path):  # the lock died with its process
        assert f"process {os.getpid()} on {socket.gethostname()}, since" in (tmp_path / ".lock").read_text()
    assert not (tmp_path / ".lock").read_text()


@pytest.mark.parametrize(
    ("process", "host", "job", "hint"),
    [
        ("gone", "here", None, None),
        ("alive", "here", None, "a folder of its own.$"),
        ("alive", "here", "7", "a folder of its own.$"),
        ("gone", "elsewhere", None, "If that process is gone, delete .*lock"),
        ("gone", "elsewhere", "6", "If that process is gone, delete .*lock"),
        ("gone", "elsewhere", "7", None),  # the same job, requeued
        ("half", "here", None, None),  # killed while it wrote its name
    ],
)
def test_without_locks_the_name_of_the_owner_stands_for_one(
    process: str,
    host: str,
    job: str | None,
    hint: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*arguments: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.lockf", refuse)
    monkeypatch.setattr(socket, "gethostname", lambda: "here")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    ended = subprocess.Popen(["true"])
    ended.wait()
    number = {"gone": ended.pid, "alive": os.getppid(), "half": ""}[process]
    (tmp_path / ".lock").write_text(
        f"process {number} on {host}, since 2026-01-02 03:04{f', job {job}' if job else ''}\n"
    )
    with pytest.raises(ValueError, match=hint) if hint else nullcontext(), sole_run(tmp_path):
        assert "here, since 20" in (tmp_path / ".lock").read_text()
    assert bool((tmp_path / ".lock").read_text()) == bool(hint)


@pytest.mark.parametrize("place", ["file/run", "/proc/run"])
def test_a_folder_that_cannot_be_written_is_named(
    place: str,
    recipe: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("")
    with pytest.raises(SystemExit) as stop:
        main(["fit", "--config", str(recipe), "--trainer.default_root_dir", place])
    assert stop.value.code == 2
    assert f"default_root_dir = {place}: the run cannot write there" in capsys.readouterr().err


def checkpoint(step: int) -> dict[str, Any]:
    return {"global_step": step, "state_dict": {"weight": torch.arange(5000) + step}}


def test_last_is_the_latest_step_that_is_intact(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert newest_intact(tmp_path) is None
    io = SafeCheckpointIO()
    io.save_checkpoint(checkpoint(5), tmp_path / "last.ckpt")
    io.save_checkpoint(
        checkpoint(4), tmp_path / "best.ckpt"
    )  # later, as a copy may be, and of an earlier step
    assert newest_intact(tmp_path) == tmp_path / "last.ckpt"
    flip_a_bit(tmp_path / "last.ckpt")
    assert newest_intact(tmp_path) == tmp_path / "best.ckpt"
    assert "passed over a damaged checkpoint" in caplog.text
    assert "last.ckpt" in caplog.text
    (tmp_path / "best.ckpt").write_bytes((tmp_path / "best.ckpt").read_bytes()[:-50])
    with pytest.raises(ValueError, match=r"no checkpoint in .* is intact") as error:
        newest_intact(tmp_path)
    assert "best.ckpt" in str(error.value)
    assert "last.ckpt" in str(error.value)


def kept_steps(folder: Path) -> dict[str, int]:
    return {path.name: read_step(path) for path in folder.glob("*.ckpt")}


def test_the_checkpoint_before_the_last_is_kept(tmp_path: Path) -> None:
    io, last = SafeCheckpointIO(), tmp_path / "last.ckpt"
    for step in (5, 10, 15):
        io.save_checkpoint(checkpoint(step), last)
        io.save_checkpoint(checkpoint(step), tmp_path / "best.ckpt")
    assert kept_steps(tmp_path) == {"last.ckpt": 15, "last-1.ckpt": 10, "best.ckpt": 15}
    io.save_checkpoint(checkpoint(15), last)  # a run that is asked to stop may save a step once more
    assert kept_steps(tmp_path)["last-1.ckpt"] == 10
    assert len(list(tmp_path.iterdir())) == 3

    (tmp_path / "best.ckpt").unlink()
    flip_a_bit(last)
    assert newest_intact(tmp_path) == tmp_path / "last-1.ckpt"
    io.save_checkpoint(checkpoint(17), last)
    assert kept_steps(tmp_path) == {"last.ckpt": 17, "last-1.ckpt": 10}  # what was damaged is not kept
    assert newest_intact(tmp_path) == last


def test_a_run_begun_anew_leaves_no_later_step_behind(tmp_path: Path) -> None:
    io, last = SafeCheckpointIO(), tmp_path / "last.ckpt"
    for step in (95, 100, 5):
        io.save_checkpoint(checkpoint(step), last)
    assert kept_steps(tmp_path) == {"last.ckpt": 5}
    io.save_checkpoint(checkpoint(10), last)
    assert kept_steps(tmp_path) == {"last.ckpt": 10, "last-1.ckpt": 5}


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1  # within the tensor: torch itself would not notice
    path.write_bytes(data)


def test_a_full_disk_keeps_the_previous_checkpoint(tmp_path: Path) -> None:
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small disk needs root")
    try:
        io, path = SafeCheckpointIO(), folder / "last.ckpt"
        io.save_checkpoint(checkpoint(1), path)
        big = {"global_step": 2, "state_dict": {"weight": torch.zeros(100_000)}}
        with pytest.raises(OSError, match=r"last.ckpt could not be saved: .*previous last.ckpt is as it was"):
            io.save_checkpoint(big, path)
        assert newest_intact(folder) == path
        assert [file.name for file in folder.iterdir()] == ["last.ckpt"]
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_save_that_fails_ends_the_run_with_what_to_do(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    saves: list[Path] = []
    real = os.fsync

    def full(descriptor: int) -> None:
        saves.append(Path(f"/proc/self/fd/{descriptor}").readlink())
        if sum("last.ckpt" in path.name for path in saves) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    words = ["--trainer.default_root_dir", str(tmp_path / "run"), "--data.num_workers", "0"]
    with pytest.raises(SystemExit) as stop:
        main(["fit", "--config", str(recipe), *words])
    assert stop.value.code == 2
    said = capsys.readouterr().err
    for part in ("No space left on device", "previous last.ckpt is as it was", "--ckpt_path last"):
        assert part in said
    content = torch.load(tmp_path / "run/checkpoints/last.ckpt", weights_only=True)
    assert content["global_step"] == 5


def test_what_a_killed_save_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / ".last.ckpt.123.tmp").write_bytes(b"half")
    (tmp_path / "last.ckpt").write_bytes(b"whole")
    remove_leftovers(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["last.ckpt"]


@pytest.mark.parametrize("count", [10, 20_000])
def test_a_byte_that_turned_into_a_quote_costs_one_row(count: int, tmp_path: Path) -> None:
    log = MetricsLog(tmp_path)
    for step in range(3):
        log.log_metrics({"train/loss": 0.5}, step)
    path = tmp_path / "metrics.csv"
    path.write_text(path.read_text().replace("\n2,", '\n",') + "3,train/loss,0.25\n" * count)
    assert (
        read_metrics(path)
        == [(0, "train/loss", 0.5), (1, "train/loss", 0.5)] + [(3, "train/loss", 0.25)] * count
    )
