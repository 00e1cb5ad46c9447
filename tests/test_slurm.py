"""A real SLURM with two nodes: `.ci/slurm make test-slurm` starts one on this machine, and ends it."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.data.shards import tiny_jpeg
from tests.runs import outcome, same, write_recipe
from veca.train.run_dir import read_metrics

SCRIPTS = Path(__file__).resolve().parents[1] / "recipes" / "slurm"
STEPS = 60

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(600)]


@pytest.fixture(scope="module", autouse=True)
def _slurm() -> None:
    found = shutil.which("sbatch") and shutil.which("sinfo")
    if not found or subprocess.run(["sinfo"], capture_output=True, check=False).returncode:
        pytest.skip("no SLURM answers here (.ci/slurm starts one)")


class Job:
    """A submitted batch script."""

    def __init__(
        self, script: str, *words: str, options: tuple[str, ...], folder: Path, **environment: str
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        command = [
            "sbatch",
            "--parsable",
            "--cpus-per-task=1",
            "--time=60",
            *options,
            str(SCRIPTS / script),
            *words,
        ]
        binaries = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        settings = {"PATH": binaries, "MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1", **environment}
        done = subprocess.run(
            command, env={**os.environ, **settings}, cwd=folder, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        self.number = done.stdout.strip()

    def show(self, field: str) -> set[str]:
        """A field of the job; of all tasks of an array."""
        command = ["scontrol", "show", "job", "--oneliner", self.number]
        shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        words = [word.partition("=") for line in shown.splitlines() for word in line.split()]
        return {value for name, _, value in words if name == field}

    def wait(self, limit: float = 240) -> set[str]:
        """The state in which it ended."""
        until = time.monotonic() + limit
        while (states := self.show("JobState")) & {"PENDING", "RUNNING", "CONFIGURING", "COMPLETING"}:
            assert time.monotonic() < until, f"a hang: {states}\n{self.log()}"
            time.sleep(0.3)
        return states

    def wait_for_step(self, step: int, limit: float = 120) -> None:
        until, path = time.monotonic() + limit, self.folder / "run" / "metrics.csv"
        while not path.exists() or max((row[0] for row in read_metrics(path)), default=-1) < step:
            assert time.monotonic() < until, self.log()
            time.sleep(0.05)

    def signal(self, name: str) -> None:
        subprocess.run(["scancel", "--signal", name, self.number], check=False)  # it may have ended

    def log(self) -> str:
        return "\n".join(path.read_text() for path in sorted(self.folder.glob("*.log")))


def fit(folder: Path, shards: Path, *words: str) -> Job:
    folder.mkdir(parents=True, exist_ok=True)
    recipe = write_recipe(folder, shards, max_steps=STEPS, num_workers=1)
    words = ("--config", str(recipe), "--trainer.default_root_dir", str(folder / "run"), *words)
    options = ("--nodes=2", "--ntasks-per-node=1", "--gpus-per-node=0")
    return Job("fit.sbatch", *words, options=options, folder=folder)


def test_two_nodes_preempted_come_to_the_weights_of_those_that_were_not(
    tiny_shards: Path, tmp_path: Path
) -> None:
    whole, preempted = fit(tmp_path / "whole", tiny_shards), fit(tmp_path / "preempted", tiny_shards)
    preempted.wait_for_step(8)
    preempted.signal("USR1")
    assert preempted.wait() == {"COMPLETED"}, preempted.log()
    assert preempted.show("Restarts") == {"1"}
    assert f"job {preempted.number} is requeued; it continues from there" in preempted.log()
    assert "no checkpoint in" in preempted.log()  # the first start
    assert whole.wait() == {"COMPLETED"}, whole.log()
    one, two = outcome(whole.folder / "run"), outcome(preempted.folder / "run")
    assert one["step"] == STEPS
    assert same(one, two)


def test_a_cancelled_run_saves_and_stays_cancelled(tiny_shards: Path, tmp_path: Path) -> None:
    job = fit(tmp_path, tiny_shards, "--trainer.max_steps", "100000", "--checkpoint_every", "100000")
    job.wait_for_step(8)
    subprocess.run(["scancel", job.number], check=True)
    assert job.wait() == {"CANCELLED"}, job.log()
    assert outcome(tmp_path / "run")["step"] >= 8
    assert "was not asked to run it again" in job.log()


def test_a_rank_that_fails_on_one_node_ends_the_job_with_its_message(
    tmp_path: Path, tiny_shards: Path
) -> None:
    """`rank_trouble.py` lets its second rank fail, and never gives back the process group."""
    recipe = write_recipe(tmp_path, tiny_shards, max_steps=1000, num_nodes=2)
    script = Path(__file__).with_name("rank_trouble.py")
    command = [
        "srun",
        "--nodes=2",
        "--ntasks-per-node=1",
        "--kill-on-bad-exit=1",
        sys.executable,
        str(script),
    ]
    command += [str(recipe), str(tmp_path / "run"), "error, waited for"]
    settings = {"MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command,
        env={**os.environ, **settings},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert "RuntimeError: the second rank has had enough" in done.stderr, done.stderr
    assert done.returncode != 0
    assert (tmp_path / "run" / "failing-1").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--trainer.num_nodes", "3"), "SLURM gave 2 nodes. Set --trainer.num_nodes 2"),
        (("--trainer.devices", "2"), "SLURM gave 1 tasks per node"),
    ],
)
def test_what_does_not_fit_fails_in_seconds_and_names_the_fix(
    words: tuple[str, ...], message: str, tiny_shards: Path, tmp_path: Path
) -> None:
    recipe = write_recipe(tmp_path, tiny_shards, max_steps=2)
    veca = str(Path(sys.executable).with_name("veca"))
    command = ["srun", "--nodes=2", "--ntasks-per-node=1", "--kill-on-bad-exit=1", veca, "fit"]
    command += ["--config", str(recipe), "--trainer.num_nodes", "2", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, cwd=tmp_path)
    # srun tells the highest status, and ends the task that has not found the mistake yet.
    assert done.returncode in (2, 128 + signal.SIGTERM)
    assert message in done.stderr


def test_shards_made_by_an_array_are_those_of_one_machine(tmp_path: Path) -> None:
    images = tmp_path / "images"
    images.mkdir()
    for number in range(24):
        (images / f"{number:03d}.jpg").write_bytes(tiny_jpeg(number))
    job = Job(
        "shards.sbatch",
        *("--shard-samples", "5"),
        options=("--array=0-2", "--mem=0"),
        folder=tmp_path,
        SOURCE=str(images),
        OUT=str(tmp_path / "array"),
    )
    assert job.wait() == {"COMPLETED"}, job.log()
    veca_data("merge", str(tmp_path / "array"))
    veca_data("shards", str(images), "--out", str(tmp_path / "alone"), "--shard-samples", "5")
    assert contents(tmp_path / "array") == contents(tmp_path / "alone")


@pytest.mark.torture
@pytest.mark.parametrize("number", range(25))
def test_signals_at_random_moments(number: int, tiny_shards: Path, tmp_path: Path) -> None:
    chance = random.Random(number)
    job = fit(tmp_path, tiny_shards)
    while job.show("JobState") != {"RUNNING"}:
        time.sleep(0.1)
    time.sleep(chance.uniform(0, 25))
    job.signal(chance.choice(["USR1", "TERM"]))
    assert job.wait() == {"COMPLETED"}, job.log()


def veca_data(*words: str) -> None:
    subprocess.run([str(Path(sys.executable).with_name("veca-data")), *words], check=True)


def contents(folder: Path) -> dict[str, Any]:
    names = [path for path in folder.iterdir() if path.suffix in (".tar", ".npy", ".json")]
    return {path.name: path.read_bytes() for path in names}
