"""What goes wrong inside a run, from one moment on: a callback that a recipe names (`cases.py`)."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

from veca.utils.files import write_text_atomic

BALLAST = "ballast"


class Trouble(Callback):
    """Does the harm, or only says that the moment has come: FOLDER/moment-RANK then holds the step.

    Args:
        kind: What happens; `nothing` leaves it to somebody else.
        hook: A hook of the training loop.
        step: The first step of which it counts.
        rank: Where it happens; -1 is everywhere.
        amount: How much of it: seconds, bytes.
        folder: Where the moment is told.
        disk: What a full disk is filled through.
    """

    def __init__(
        self, *, kind: str, hook: str, step: int, rank: int, amount: float, folder: str, disk: str = ""
    ) -> None:
        self.kind, self.step, self.rank, self.amount = kind, step, rank, amount
        self.folder, self.disk = Path(folder), Path(disk)
        self._over = False
        setattr(self, hook, self._hook)

    def _hook(self, trainer: Trainer, pl_module: LightningModule, *args: Any, **kwargs: Any) -> None:
        if self._over or trainer.global_step < self.step:
            return
        self._over = True
        write_text_atomic(self.folder / f"moment-{trainer.global_rank}", str(trainer.global_step))
        if self.rank in (-1, trainer.global_rank) and self.kind != "nothing":
            getattr(self, f"_{self.kind}")(pl_module)

    def _kill(self, pl_module: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def _full_disk(self, pl_module: Any) -> None:
        """Leave `amount` bytes free."""
        status = os.statvfs(self.disk)
        size = max(0, status.f_bavail * status.f_frsize - int(self.amount))
        (self.disk / BALLAST).write_bytes(bytes(size))

    def _slow_disk(self, pl_module: Any) -> None:
        real = os.fsync

        def fsync(descriptor: int) -> None:
            time.sleep(self.amount)
            real(descriptor)

        os.fsync = fsync

    def _clock(self, pl_module: Any) -> None:
        real, real_ns = time.time, time.time_ns
        time.time = lambda: real() + self.amount
        time.time_ns = lambda: real_ns() + int(self.amount * 1e9)

    def _loss(self, pl_module: Any) -> None:
        real = pl_module.training_step

        def training_step(*args: Any) -> Any:
            pl_module.training_step = real
            return real(*args) * torch.nan

        pl_module.training_step = training_step

    def _gradient(self, pl_module: Any) -> None:
        def spoil(grad: torch.Tensor) -> torch.Tensor:
            handle.remove()
            return grad * torch.inf

        handle = pl_module.student.patch_embed.weight.register_hook(spoil)

    def _target(self, pl_module: Any) -> None:
        def spoil(module: Any, inputs: Any, targets: Any) -> Any:
            handle.remove()
            return targets._replace(patches=targets.patches * torch.nan)

        handle = pl_module.teacher.register_forward_hook(spoil)

    def _weight(self, pl_module: Any) -> None:
        pl_module.student.patch_embed.weight.data.view(-1)[7] = torch.nan
