"""Sweeps over several devices, and what is left when one is interrupted."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.probes.fakes import FakeBackbone, Install, label_data
from veca import Veca
from veca.probes import features as features_module
from veca.probes.classify import knn
from veca.probes.results import read_results


def test_two_devices_give_the_results_of_one(
    tmp_path: Path, tiny_student: Veca, make_folders: Callable[..., Path]
) -> None:
    tiny_student.save_pretrained(tmp_path / "model")
    data, root = make_folders(train=4, val=2), Path(__file__).resolve().parents[2]
    script, out = root / "tests" / "probes" / "rank_probe.py", tmp_path / "two" / "knn.json"
    environment = {**os.environ, "PYTHONPATH": str(root), "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "model"), str(data), str(out)],
        capture_output=True,
        text=True,
        env=environment,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("| model | 4 | 32 |") == 1  # one rank speaks
    alone = tmp_path / "one" / "knn.json"
    knn(str(tmp_path / "model"), str(data), budgets="4", resolutions="32", out=alone, seeds=0)
    two, one = (json.loads(path.read_text()) for path in (out, alone))
    assert two == one


def test_cells_are_kept_as_they_finish(tmp_path: Path, install: Install) -> None:
    models = install({"data": label_data()})
    out = tmp_path / "knn.json"
    call = FakeBackbone.__call__

    def fails_late(self: FakeBackbone, images):  # type: ignore[no-untyped-def]
        if self.budget == 8:
            raise KeyboardInterrupt
        return call(self, images)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FakeBackbone, "__call__", fails_late)
        with pytest.raises(KeyboardInterrupt):
            knn("planted", "data", out=out, seeds=0)
    kept = read_results(out)
    assert kept is not None
    assert not kept.complete
    assert [(cell.name, cell.budget) for cell in kept.cells] == [("model", 4)]
    models["planted"].calls.clear()
    knn("planted", "data", out=out, seeds=0)
    whole = read_results(out)
    assert whole is not None
    assert whole.complete
    assert [(cell.name, cell.budget) for cell in whole.cells] == [
        ("model", 4),
        ("model", 8),
        ("raw pixels", None),
        ("constant", None),
    ]
    assert sum(shape[0] for shape in models["planted"].calls) == 70


def test_features_of_another_version_are_not_taken(
    tmp_path: Path, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = install({"data": label_data()})
    knn("planted", "data", out=tmp_path / "knn.json", budgets="4", seeds=0)
    models["planted"].calls.clear()
    monkeypatch.setattr(features_module, "VERSION", 99)
    knn("planted", "data", out=tmp_path / "knn.json", budgets="4", seeds=0)
    assert sum(shape[0] for shape in models["planted"].calls) == 70
