"""Numbers that are not finite never reach a checkpoint, and no run continues from any."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from torch import Tensor

from tests.runs import LIMIT, Run, outcome, same, write_recipe
from tests.training import BrokenTargets, make_data, make_model, make_trainer
from veca.train.checkpointing import LastCheckpoint, SafeCheckpointIO, newest_intact, nonfinite
from veca.train.ddp import BroadcastBudgetStrategy

BAD_STEP = 3  # counted from 0; the save of step 4 follows it


class Break(Callback):
    """Spoils one number of step BAD_STEP."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: Any, optimizer: Any) -> None:
        if self.kind == "gradient" and trainer.global_step == BAD_STEP:
            pl_module.student.patch_embed.weight.grad.view(-1)[7] = torch.inf

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, *args: Any) -> None:
        if trainer.global_step != BAD_STEP + 1:
            return
        weight = pl_module.student.patch_embed.weight
        if self.kind == "weight":
            weight.data.view(-1)[7] = -torch.inf
        if self.kind == "optimizer state":
            trainer.optimizers[0].state[weight]["exp_avg"].view(-1)[7] = torch.nan


def fit(folder: Path, shards: Path, kind: str, *savers: Callback, **options: Any) -> None:
    model = make_model()
    if kind == "loss":
        model._unregistered["teacher"] = BrokenTargets(call=BAD_STEP + 1)
    trainer = make_trainer(
        folder,
        **{"max_steps": 6, "enable_checkpointing": bool(savers), **options},
        plugins=[SafeCheckpointIO()],
        callbacks=[Break(kind), *savers],
    )
    trainer.fit(model, datamodule=make_data(shards))


def assert_finite(path: Path, *, step: int) -> None:
    content = torch.load(path, weights_only=True)
    assert content["global_step"] == step
    states = [state for optimizer in content["optimizer_states"] for state in optimizer["state"].values()]
    tensors = [*content["state_dict"].values(), *(tensor for state in states for tensor in state.values())]
    assert len(tensors) > 100
    assert all(bool(tensor.isfinite().all()) for tensor in tensors)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("loss", r"the loss of rank 0 is not finite since step 3"),
        ("gradient", r"tensors are not finite, first state_dict.student.patch_embed.weight"),
        ("weight", r"1 of \d+ tensors are not finite, first state_dict.student.patch_embed.weight"),
        ("optimizer state", r"1 of \d+ tensors are not finite, first optimizer_states.0.state.\d+.exp_avg"),
    ],
)
def test_the_good_checkpoint_stays_and_is_named(
    kind: str, said: str, tiny_shards: Path, tmp_path: Path
) -> None:
    with pytest.raises(FloatingPointError, match=rf"{said} .*step 4.*last good checkpoint is .*last.ckpt"):
        fit(tmp_path, tiny_shards, kind, LastCheckpoint(tmp_path, every=2))
    assert_finite(tmp_path / "last.ckpt", step=2)
    assert [path.name for path in tmp_path.iterdir()] == ["last.ckpt"]


def test_weights_alone_are_looked_at_too(tiny_shards: Path, tmp_path: Path) -> None:
    saver = ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=4, save_weights_only=True)
    with pytest.raises(FloatingPointError, match=r"last good checkpoint is none"):
        fit(tmp_path, tiny_shards, "gradient", saver)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["loss", "gradient"])
def test_a_run_ends_where_metrics_are_logged(kind: str, tiny_shards: Path, tmp_path: Path) -> None:
    with pytest.raises(FloatingPointError, match=r"now at step 4"):
        fit(tmp_path, tiny_shards, kind, log_every_n_steps=2)


def test_nothing_of_it_is_a_buffer() -> None:
    assert not dict(make_model().named_buffers())  # DDP would let rank 0's overwrite those of other ranks
    assert not BroadcastBudgetStrategy()._ddp_kwargs["broadcast_buffers"]


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor([1.0, torch.nan]),
        torch.tensor([torch.nan, 1.0], dtype=torch.bfloat16),
        torch.tensor(-torch.inf),
        torch.tensor([[0.0], [torch.inf]], dtype=torch.float64),
    ],
    ids=str,
)
def test_one_bad_number_is_found(tensor: Tensor) -> None:
    good = {"count": torch.tensor(3), "empty": torch.empty(0), "half": torch.ones(2, dtype=torch.float16)}
    assert nonfinite({"state_dict": good, "optimizer_states": [], "callbacks": {"score": tensor}}) is None
    states = {"optimizer_states": [{"state": {0: {"momentum": tensor}}, "param_groups": [{"lr": 1.0}]}]}
    assert nonfinite({"state_dict": good, **states}) == (
        "1 of 2 tensors are not finite, first optimizer_states.0.state.0.momentum"
    )


def spoil_weight(content: dict[str, Any]) -> None:
    content["state_dict"]["student.patch_embed.weight"][0] = torch.nan


def spoil_state(content: dict[str, Any]) -> None:
    content["optimizer_states"][0]["state"][0]["momentum"][0] = torch.inf


@pytest.mark.parametrize("spoil", [spoil_weight, spoil_state])
def test_no_run_continues_from_a_bad_checkpoint(
    spoil: Callable[[dict[str, Any]], None],
    tiny_shards: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    fit(tmp_path, tiny_shards, "none", LastCheckpoint(tmp_path, every=2), max_steps=2)
    last, best = tmp_path / "last.ckpt", tmp_path / "best.ckpt"
    best.write_bytes(last.read_bytes())
    content = torch.load(last, weights_only=True)
    content["global_step"] = 4
    spoil(content)
    torch.save(content, last)
    assert newest_intact(tmp_path) == best
    assert "passed over" in caplog.text
    assert "last.ckpt: 1 of" in caplog.text
    trainer = make_trainer(tmp_path, max_steps=6, plugins=[SafeCheckpointIO()])
    with pytest.raises(ValueError, match=r"ckpt_path = .*last.ckpt: 1 of \d+ tensors .* earlier checkpoint"):
        trainer.fit(make_model(), datamodule=make_data(tiny_shards), ckpt_path=last, weights_only=True)


@pytest.mark.timeout(300)
def test_what_one_rank_sees_ends_both_and_mended_data_go_on(tiny_shards: Path, tmp_path: Path) -> None:
    """Two processes; rank 1 alone has a target that is not finite, and rank 0 alone writes."""
    options: dict[str, Any] = {"max_steps": 8, "checkpoint_every": 2, "log_every_n_steps": 50}
    options |= {"accumulate_grad_batches": 1, "val_check_interval": 6, "num_sanity_val_steps": 0}
    recipe = write_recipe(tmp_path, tiny_shards, **options)
    broken = ("--model.teacher", "tests.training.BrokenTargets", "--model.teacher.call", str(BAD_STEP + 1))
    with Run(recipe, tmp_path / "run", *broken, "--model.teacher.rank", "1", ranks=2) as run:
        assert run.wait(2 * LIMIT) == [1, 1], run.log()
    last = tmp_path / "run/checkpoints/last.ckpt"
    assert_finite(last, step=2)
    for rank in (0, 1):
        said = (tmp_path / f"run/log-{rank}.txt").read_text()
        assert f"veca: error: rank {rank}: the loss of rank 1 is not finite since step 3" in said
        assert f"The last good checkpoint is {last}." in said
    for name in ("run", "whole"):
        with Run(recipe, tmp_path / name, ranks=2) as run:
            assert run.wait(2 * LIMIT) == [0, 0], run.log()
    assert same(outcome(tmp_path / "run"), outcome(tmp_path / "whole"))
