"""A whole run at toy size, for tests that need a real Trainer."""

import os
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback

from veca.data.datamodule import ShardDataModule
from veca.data.resolutions import Phase, ResolutionSchedule
from veca.optim.settings import Optimization
from veca.teachers import OfflineTeacher
from veca.train.ddp import BroadcastBudgetStrategy
from veca.train.distill import Distill
from veca.types import Batch, Targets

BUDGETS = {4: 1.0, 8: 1.0, 12: 2.0, 16: 2.0}
STAGE1 = {32: 1.0}
STAGE2 = {32: 0.5, 48: 0.5}


class Diary(Callback):
    """Keys, pixels and budget of every micro-batch."""

    def __init__(self) -> None:
        self.pages: list[tuple[int, int, tuple[int, ...], list[str], int]] = []

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Batch, batch_idx: int
    ) -> None:
        assert isinstance(pl_module, Distill)
        assert pl_module.plan is not None
        step = trainer.global_step
        pixels = int(batch.images.long().sum())
        self.pages.append((step, pl_module.plan.budget(step), tuple(batch.images.shape), batch.keys, pixels))


class InactiveCores(Callback):
    """After every step, cores outside of its budget have the weights and optimizer state of before."""

    def __init__(self) -> None:
        self.checked = 0

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Batch, batch_idx: int
    ) -> None:
        self._before = self._states(trainer, pl_module)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        assert isinstance(pl_module, Distill)
        assert pl_module.plan is not None
        groups = pl_module.plan.budget(trainer.global_step - 1) // pl_module.student.size.core_group
        now = self._states(trainer, pl_module)
        for number, (before, after) in enumerate(zip(self._before, now, strict=True)):
            active = number % (len(now) // 2) < groups  # tokens, then coordinates
            assert torch.equal(before["weight"], after["weight"]) != active
            if not active:
                assert before.keys() == after.keys()
                assert all(torch.equal(before[name], after[name]) for name in before)
                self.checked += 1

    @staticmethod
    def _states(trainer: pl.Trainer, pl_module: pl.LightningModule) -> list[dict[str, torch.Tensor]]:
        state = trainer.optimizers[0].state
        return [
            {
                name: tensor.detach().clone()
                for name, tensor in {"weight": core, **state.get(core, {})}.items()
            }
            for core in pl_module.student.cores.parameters()  # type: ignore[union-attr,operator]
        ]


class BrokenTargets(OfflineTeacher):
    """A teacher whose n-th answer on one rank is not finite."""

    def __init__(self, *, call: int, rank: int = 0) -> None:
        super().__init__()
        self.left = call if rank == int(os.environ.get("RANK", "0")) else 0

    def forward(self, images: torch.Tensor) -> Targets:
        targets: Targets = super().forward(images)
        self.left -= 1
        if self.left == 0:
            targets.patches[0] = torch.nan
        return targets


def make_model(*, augment_rope: bool = True, **changes: Any) -> Distill:
    torch.manual_seed(0)
    optimization = {"lr": 4e-3, "min_lr": 5e-4, "weight_decay": 0.015, "warmup_steps": 0}
    options: dict[str, Any] = {
        "optimization": Optimization(**{**optimization, **changes.pop("optimization", {})}),
        "budgets": BUDGETS,
        "size": "tiny",
        "size_overrides": {"width": 32, "depth": 2, "num_heads": 2, "num_cores": 16, "core_group": 4},
    }
    teacher = None if "stored" in changes else OfflineTeacher()
    model = Distill(teacher, **{**options, **changes})
    model.student.augment_rope = augment_rope
    return model


def make_data(
    shards: Path, *, resolutions: dict[int, float] = STAGE1, batch_size: int = 4, **options: Any
) -> ShardDataModule:
    schedule = ResolutionSchedule(phases=[Phase(0, resolutions)], batch_size=batch_size)
    return ShardDataModule(sources=str(shards), resolutions=schedule, **{"num_workers": 0, **options})


def make_trainer(folder: Path, *, max_steps: int, **options: Any) -> pl.Trainer:
    defaults: dict[str, Any] = {
        "accelerator": "cpu",
        "devices": 1,
        "strategy": BroadcastBudgetStrategy(),
        "max_steps": max_steps,
        "max_epochs": -1,
        "default_root_dir": folder,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "limit_val_batches": 0,
        "num_sanity_val_steps": 0,
    }
    return pl.Trainer(**{**defaults, **options})
