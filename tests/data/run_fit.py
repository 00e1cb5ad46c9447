"""Training without a model to speak of: records what each step saw. As a script, one to be killed.

python run_fit.py FOLDER NUM_WORKERS STEP CHECKPOINT → saves at STEP, prints "saved", goes on training
"""

import hashlib
import sys
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from veca.data.datamodule import ShardDataModule
from veca.data.resolutions import Phase, ResolutionSchedule
from veca.types import Batch

SCHEDULE = ResolutionSchedule([Phase(0, {32: 0.5, 48: 0.5})], batch_size=3)


class Recorder(LightningModule):
    """One parameter, and a list of what came by."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.seen: list[tuple[int, int, int, int, list[str], str]] = []
        self.validated: list[tuple[int, int, list[str]]] = []

    def training_step(self, batch: Batch, batch_idx: int) -> torch.Tensor:
        pixels = hashlib.sha256(batch.images.numpy().tobytes()).hexdigest()
        step, size = self.trainer.global_step, batch.images.shape[-1]
        self.seen.append((self.trainer.current_epoch, batch_idx, step, size, batch.keys, pixels))
        return self.weight * 1.0

    def validation_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> None:
        self.validated.append((self.trainer.global_step, dataloader_idx, batch.keys))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class SaveEverywhere(Callback):
    """Checkpoints at each place where Lightning's own callback may save, named by the batches seen."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_train_batch_end(self, trainer: Trainer, module: Any, *args: Any) -> None:
        self._save(trainer, module, "batch")

    def on_validation_end(self, trainer: Trainer, module: Any) -> None:
        self._save(trainer, module, "val")

    def on_train_epoch_end(self, trainer: Trainer, module: Any) -> None:
        self._save(trainer, module, "epoch")

    def _save(self, trainer: Trainer, module: Any, where: str) -> None:
        trainer.save_checkpoint(self.folder / f"{len(module.seen):03d}-{where}.ckpt")


class SaveOnce(Callback):
    def __init__(self, step: int, path: Path) -> None:
        self.step = step
        self.path = path

    def on_train_batch_end(self, trainer: Trainer, *args: Any) -> None:
        if trainer.global_step == self.step:
            trainer.save_checkpoint(self.path)
            print("saved", flush=True)


def data_module(folder: Path | str, *, num_workers: int = 0, **settings: Any) -> ShardDataModule:
    settings = {"resolutions": SCHEDULE, "window_shards": 2, **settings}
    return ShardDataModule(sources=str(folder), num_workers=num_workers, **settings)


def fit(
    data: ShardDataModule, *, ckpt_path: Path | None = None, callbacks: Any = (), **options: Any
) -> Recorder:
    module = Recorder()
    trainer = Trainer(
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        callbacks=list(callbacks),
        **options,
    )
    trainer.fit(module, data, ckpt_path=ckpt_path, weights_only=None if ckpt_path is None else True)
    return module


if __name__ == "__main__":
    fit(
        data_module(sys.argv[1], num_workers=int(sys.argv[2])),
        callbacks=[SaveOnce(int(sys.argv[3]), Path(sys.argv[4]))],
        max_steps=100_000,
        max_epochs=-1,
        limit_val_batches=0,
    )
