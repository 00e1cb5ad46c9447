"""What an earlier version wrote opens and goes on: shards, a cache, a run, a checkpoint, a saved model.

tests/compat/before was written at commit fdca028 by make_fixture.py.
"""

import shutil
from pathlib import Path

import pytest
import torch

from tests.runs import Run
from veca import load_model
from veca.train.run_dir import read_metrics

BEFORE = Path(__file__).parent / "before"


@pytest.fixture
def before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy to work in; the recipe's paths are relative to it."""
    folder = tmp_path / "before"
    shutil.copytree(BEFORE, folder)
    monkeypatch.chdir(folder)
    return folder


def losses(folder: Path) -> dict[int, float]:
    """train/loss by step."""
    return {step: value for step, name, value in read_metrics(folder / "metrics.csv") if name == "train/loss"}


@pytest.mark.parametrize("start", ["from the checkpoint", "from the beginning"])
def test_a_run_gives_the_same_ten_losses(before: Path, start: str) -> None:
    recorded = losses(before / "run")
    assert len(recorded) == 10
    folder = before / "run" if start == "from the checkpoint" else before / "again"
    with Run(before / "recipe.yaml", folder) as run:
        assert run.wait() == [0], run.log()
    if start == "from the checkpoint":
        assert "step 5" in run.log() or "step=5" in run.log()
    # Other CPUs add in another order; on one machine the numbers are equal to the last bit.
    assert losses(folder) == pytest.approx(recorded, rel=1e-5)


def test_the_model_opens_from_folder_and_checkpoint(before: Path) -> None:
    saved, checkpoint = load_model(before / "model"), load_model(before / "run/checkpoints/step=5.ckpt")
    assert saved.size == checkpoint.size
    images = torch.rand(1, 3, 32, 32)
    assert saved(images, budget=8).cls.isfinite().all()
    assert not saved.training
