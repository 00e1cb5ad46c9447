"""What only CUDA devices can show. Skipped, with a reason, where there are none."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.training import make_data, make_model, make_trainer
from veca.train.ddp import BroadcastBudgetStrategy

pytestmark = pytest.mark.gpu


def need_devices(count: int) -> None:
    found = torch.cuda.device_count()
    if found < count:
        pytest.skip(f"needs {count} CUDA devices; {found} found")


def test_bf16_mixed_on_two_devices_keeps_ranks_together(tiny_shards: Path, tmp_path: Path) -> None:
    need_devices(2)
    script = Path(__file__).with_name("rank_fit.py")
    command = [sys.executable, script, tiny_shards, tmp_path, "2", "4", "cuda", "bf16-mixed"]
    subprocess.run(command, check=True, timeout=300)
    one, other = (torch.load(tmp_path / f"2-{rank}.pt", weights_only=True) for rank in (0, 1))
    assert one["budgets"] == other["budgets"]
    for name, tensor in one["student"].items():
        assert torch.equal(tensor, other["student"][name]), name


def test_compiled_blocks_train_and_give_the_same_losses(tiny_shards: Path, tmp_path: Path) -> None:
    need_devices(1)
    students = []
    for compiled in (False, True):
        model = make_model(augment_rope=False, compile_student=compiled)
        trainer = make_trainer(tmp_path, max_steps=4, accelerator="cuda")
        trainer.fit(model, datamodule=make_data(tiny_shards))
        students.append(model.student.state_dict())
    for name, tensor in students[0].items():
        torch.testing.assert_close(tensor, students[1][name], rtol=1e-2, atol=1e-3, msg=name)


def test_a_resumed_run_continues_on_the_device(tiny_shards: Path, tmp_path: Path) -> None:
    need_devices(1)
    first = make_trainer(tmp_path, max_steps=3, accelerator="cuda", precision="bf16-mixed")
    first.fit(make_model(), datamodule=make_data(tiny_shards))
    first.save_checkpoint(tmp_path / "three.ckpt")
    model = make_model()
    second = make_trainer(
        tmp_path, max_steps=6, accelerator="cuda", precision="bf16-mixed", strategy=BroadcastBudgetStrategy()
    )
    second.fit(model, datamodule=make_data(tiny_shards), ckpt_path=tmp_path / "three.ckpt", weights_only=True)
    assert second.global_step == 6
    assert all(bool(p.isfinite().all()) for p in model.student.parameters())
