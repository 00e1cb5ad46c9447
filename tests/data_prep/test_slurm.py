"""The batch scripts, with a stand-in for srun."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "recipes" / "slurm"


def _run(tmp_path: Path, script: str = "shards", **environment: str) -> subprocess.CompletedProcess[str]:
    srun = tmp_path / "bin" / "srun"
    srun.parent.mkdir(exist_ok=True)
    srun.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    srun.chmod(0o755)
    path = f"{srun.parent}:{os.environ['PATH']}"
    slurm = {"SLURM_ARRAY_TASK_ID": "3", "SLURM_ARRAY_TASK_COUNT": "16", "SLURM_CPUS_PER_TASK": "4"}
    return subprocess.run(
        ["bash", str(SCRIPTS / f"{script}.sbatch"), "--quality", "92"],
        env={"PATH": path, **slurm, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_the_script_runs_its_part(tmp_path):
    done = _run(tmp_path, SOURCE="/a b", OUT="/out")
    expected = ["veca", "data", "shards", "/a b", "--out", "/out", "--part", "3/16", "--quality", "92"]
    assert done.stdout.splitlines()[1:] == expected
    again = _run(tmp_path, SOURCE="/a", OUT="/out", PARTS="40", SLURM_ARRAY_TASK_COUNT="1")
    assert "3/40" in again.stdout.splitlines()
    assert "export SOURCE" in _run(tmp_path, OUT="/out").stderr


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_the_cache_script_tells_lightning_how_many_there_are(tmp_path):
    sizes = {"SLURM_NNODES": "2", "SLURM_NTASKS_PER_NODE": "4"}
    done = _run(tmp_path, "cache", SHARDS="/a b", **sizes)
    expected = ["veca", "data", "cache", "/a b", "--num-nodes", "2", "--devices", "4", "--quality", "92"]
    assert done.stdout.splitlines()[1:] == expected
    assert "export SHARDS" in _run(tmp_path, "cache", **sizes).stderr
