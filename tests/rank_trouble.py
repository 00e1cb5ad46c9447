"""A run whose second rank is in trouble: `rank_trouble.py RECIPE FOLDER TROUBLE [OPTIONS]`.

As with NCCL, giving back the process group waits for ranks that never come.
"""

import atexit
import ctypes
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.utilities.distributed import _destroy_dist_connection
from lightning.pytorch import Callback, LightningModule, Trainer


def never(*args: Any, **kwargs: Any) -> None:
    time.sleep(10_000)


def report(folder: Path, name: str) -> None:
    (folder / name).write_text(str(os.getpid()))


class Trouble(Callback):
    """Begins at the third step."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        self.folder = folder

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
        if trainer.global_step < 3:
            return
        rank = trainer.global_rank
        if self.kind == "stuck":  # in C code, where Python handles no signal
            report(self.folder, f"stuck-{rank}")
            if rank == 0:
                torch.distributed.barrier()
            while True:  # a signal ends a sleep
                ctypes.CDLL(None).sleep(10_000)
        if rank != 1:
            if self.kind.endswith("waited for"):  # as with NCCL: it does not hear of a rank that is gone
                ctypes.CDLL(None).sleep(10_000)
            return
        report(self.folder, f"failing-{rank}")
        if self.kind.startswith("error"):
            raise RuntimeError("the second rank has had enough")
        if self.kind.startswith("message"):
            raise OSError("shard 7 cannot be read")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from veca.cli import fit
    from veca.cli.main import main

    recipe, folder, kind, *options = sys.argv[1:]
    torch.set_num_threads(1)
    torch.distributed.destroy_process_group = never  # type: ignore[assignment]
    atexit.register(_destroy_dist_connection)
    savers = fit.VecaCLI._savers
    fit.VecaCLI._savers = lambda self, config: [  # type: ignore[method-assign]
        *savers(self, config),
        Trouble(kind, Path(folder)),
    ]
    main(["fit", "--config", recipe, "--trainer.default_root_dir", folder, *options])
