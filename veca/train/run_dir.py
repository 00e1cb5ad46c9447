"""A run's folder: who may write into it, what is logged there, and what is shown while it grows.

RUN/config.yaml      the recipe with every default filled in
RUN/metrics.csv      one row per value: step, name, value; appended to, never rewritten
RUN/events.*         the same for TensorBoard
RUN/environment.json where and with what each start of the run was made (`environment.py`)
RUN/snapshots/       what the student saw of a few validation images, by step (`snapshots.py`)
RUN/checkpoints/     last.ckpt, last-1.ckpt and best.ckpt (`checkpointing.py`)
RUN/.lock            held by the run's main process for as long as it lives
"""

import csv
import errno
import fcntl
import json
import logging
import math
import os
import re
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TextIO

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback, TQDMProgressBar
from lightning.pytorch.callbacks.progress.tqdm_progress import Tqdm
from lightning.pytorch.loggers import Logger, TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_info, rank_zero_only
from safetensors.torch import save_file

from veca.train.checkpointing import remove_leftovers
from veca.types import Batch, Features
from veca.utils.files import atomic_path, write_text_atomic
from veca.utils.progress import LOG_EVERY, TimeLeft

LOCK_NAME = ".lock"
_OWNER = re.compile(r"process (?P<process>\d{1,9}) on (?P<host>\S+), since [^,]*(?:, job (?P<job>\S+))?$")
METRICS_NAME = "metrics.csv"
COLUMNS = ("step", "name", "value")
SHOWN = {  # metric → its short name on the progress bar
    "train/loss": "loss",
    "train/budget": "budget",
    "train/resolution": "resolution",
    "train/images_per_second": "images/s",
    "val/loss": "val_loss",
}

log = logging.getLogger(__name__)


@contextmanager
def sole_run(folder: Path) -> Iterator[None]:
    """Claim a run's folder for the block; a second run in it would overwrite checkpoints and metrics.

    The lock is the process's own: it ends with it, however that ends, and loader workers do not inherit it.
    Where the file system has none, the name that a run leaves in the file while it lives stands for it.
    """
    with _open_lock(folder) as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            free = True
        except OSError as error:
            file.seek(0)
            owner = file.read().strip()
            free = error.errno not in (errno.EACCES, errno.EAGAIN) and not _may_live(owner)
            if not free:
                raise ValueError(_in_use(folder, owner)) from None
            log.warning("%s has no locks (%s): see that no other run uses it.", folder, error)
        file.truncate(0)
        job = os.environ.get("SLURM_JOB_ID")
        file.write(f"process {os.getpid()} on {socket.gethostname()}, since {datetime.now():%Y-%m-%d %H:%M}")
        file.write(f", job {job}\n" if job else "\n")
        file.flush()
        remove_leftovers(folder / "checkpoints")
        try:
            yield
        finally:
            with suppress(OSError):
                file.truncate(0)


def _may_live(owner: str) -> bool:
    """Whether the process that a lock names may still run."""
    named = _OWNER.match(owner)
    if named is None:  # a run that ended in order leaves an empty file
        return False
    if named["host"] != socket.gethostname():  # a job that was requeued has ended
        return named["job"] is None or named["job"] != os.environ.get("SLURM_JOB_ID")
    try:
        os.kill(int(named["process"]), 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # somebody else's
        return True
    return int(named["process"]) != os.getpid()


def _in_use(folder: Path, owner: str) -> str:
    problem = (
        f"trainer.default_root_dir = {folder} is in use by {owner or 'another run'}. "
        "Wait for its end, or give this run a folder of its own."
    )
    named = _OWNER.match(owner)
    elsewhere = named is not None and named["host"] != socket.gethostname()
    return problem + (f" If that process is gone, delete {folder / LOCK_NAME}." if elsewhere else "")


def _open_lock(folder: Path) -> TextIO:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return (folder / LOCK_NAME).open("a+", encoding="utf-8")
    except OSError as error:
        raise OSError(
            f"trainer.default_root_dir = {folder}: the run cannot write there ({error.strerror}). Give it "
            "another folder, or the right to write in this one."
        ) from None


class MetricsLog(Logger):
    """Appends every metric to metrics.csv as (step, name, value).

    A resumed run drops the rows past the step it resumes from, so that no step stands there twice.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    @property
    def name(self) -> str:
        return ""

    @property
    def version(self) -> str:
        return ""

    @property
    def save_dir(self) -> str:
        return str(self.folder)

    @rank_zero_only
    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """The recipe is in config.yaml."""

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        path = self.folder / METRICS_NAME
        fresh = not path.exists()
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", newline="", encoding="utf-8") as file:
            rows = csv.writer(file, lineterminator="\n")
            if fresh:
                rows.writerow(COLUMNS)
            rows.writerows((step, name, value) for name, value in metrics.items() if name != "epoch")

    @rank_zero_only
    def forget_after(self, step: int) -> None:
        path = self.folder / METRICS_NAME
        if path.exists():
            kept = [row for row in read_metrics(path) if row[0] < step]
            lines = [",".join(COLUMNS), *(f"{at},{name},{value!r}" for at, name, value in kept)]
            write_text_atomic(path, "\n".join(lines) + "\n")


def read_metrics(path: Path) -> list[tuple[int, str, float]]:
    """The rows of a metrics.csv; one cut short by a crash is left out, a file without a good one refused."""
    rows, bad = [], 0
    with path.open(encoding="utf-8", errors="replace") as file:
        # Not csv.reader, for which one byte turned into a quote joins all lines that follow.
        for line in file:
            try:
                step, name, value = line.replace("\0", "").split(",")
                rows.append((int(step), name, float(value)))
            except ValueError:
                bad += line.strip() != ",".join(COLUMNS)
    if bad and not rows:
        raise ValueError(f"{path} is damaged: not one of its {bad} rows is step,name,value.")
    return rows


class RunFiles(Callback):
    """A resumed run continues its metrics.csv at its step; a new run begins it.

    `veca predict` writes one safetensors file per batch, with the keys of its samples in the metadata.
    """

    def __init__(self, folder: Path) -> None:
        self.features = folder / "features"

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        for logger in trainer.loggers:
            if isinstance(logger, MetricsLog):
                logger.forget_after(trainer.global_step)

    def on_predict_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Features | None,
        batch: Batch,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        if outputs is None:  # an empty batch
            return
        self.features.mkdir(parents=True, exist_ok=True)
        name = f"r{batch.images.shape[-1]}-rank{trainer.global_rank}-{batch_idx:06d}.safetensors"
        tensors = {key: getattr(outputs, key).cpu().contiguous() for key in ("cls", "patches")}
        metadata = {"keys": json.dumps(batch.keys), "grid": json.dumps(outputs.grid)}
        with atomic_path(self.features / name) as path:
            save_file(tensors, path, metadata=metadata)


class ValidateAfterFirstEpoch(Callback):
    """Validate after epoch 1 as well as every `check_val_every_n_epoch`: an early sign of life."""

    def __init__(self) -> None:
        self._every: int | None = None

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._every is None:
            self._every = trainer.check_val_every_n_epoch
        trainer.check_val_every_n_epoch = 1 if trainer.current_epoch == 0 else self._every


class StudentSize(Callback):
    """Says how large the student is. Lightning's table takes a dozen lines, and counts 0 FLOPs."""

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        count = sum(parameter.numel() for parameter in pl_module.parameters())
        rank_zero_info(f"the student has {count:,} parameters, {4 * count / 1e6:,.1f} MB in float32")


class RunProgress(TQDMProgressBar):
    """Loss, budget, resolution, images/s and the time left to the end of the run: a bar, or lines in a log.

    Reading a metric waits for the device, so the bar moves when metrics are logged and not in every step.
    Where no terminal shows it, a line is written every so many seconds.
    """

    def __init__(self) -> None:
        super().__init__()
        self._in_lines = not (sys.stdout.isatty() and sys.stderr.isatty())
        self._written = -math.inf
        self._time_left: TimeLeft | None = None
        self._validates_since: float | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        every = trainer.log_every_n_steps  # type: ignore[attr-defined]  # set by the Trainer, not declared
        # 0 draws no bars.
        self._refresh_rate = 0 if self._in_lines else max(1, every * trainer.accumulate_grad_batches)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        self._time_left = TimeLeft(step=trainer.global_step, now=time.monotonic())
        self._write(trainer, "training", at_once=True)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *batch: Any) -> None:
        super().on_train_batch_end(trainer, pl_module, *batch)
        self._write(trainer, "training")

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_end(trainer, pl_module)
        self._write(trainer, "training", at_once=True)

    def on_validation_batch_end(self, trainer: Trainer, pl_module: LightningModule, *batch: Any) -> None:
        super().on_validation_batch_end(trainer, pl_module, *batch)
        self._write(trainer, f"validation, batch {batch[2] + 1}")

    def on_test_batch_end(self, trainer: Trainer, pl_module: LightningModule, *batch: Any) -> None:
        super().on_test_batch_end(trainer, pl_module, *batch)
        self._write(trainer, f"test, batch {batch[2] + 1}")

    def on_predict_batch_end(self, trainer: Trainer, pl_module: LightningModule, *batch: Any) -> None:
        super().on_predict_batch_end(trainer, pl_module, *batch)
        self._write(trainer, f"prediction, batch {batch[2] + 1}")

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_validation_start(trainer, pl_module)
        self._validates_since = time.monotonic()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_validation_end(trainer, pl_module)
        if self._time_left is not None and self._validates_since is not None:
            self._time_left.pause(time.monotonic() - self._validates_since)

    def init_train_tqdm(self) -> Tqdm:
        """Without tqdm's own rate and time left, which are those of an epoch, at the mean since its start."""
        bar = super().init_train_tqdm()
        bar.bar_format = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}{postfix}]"
        return bar

    def get_metrics(self, trainer: Trainer, pl_module: LightningModule) -> dict[str, Any]:
        logged = trainer.callback_metrics
        items: dict[str, Any] = {
            shown: f"{float(logged[name]):.4g}" for name, shown in SHOWN.items() if name in logged
        }
        left = None
        if self._time_left is not None:
            total = int(trainer.estimated_stepping_batches)
            left = self._time_left.seconds(step=trainer.global_step, total=total, now=time.monotonic())
        items["left"] = "?" if left is None else str(timedelta(seconds=round(left)))
        return items

    def _write(self, trainer: Trainer, doing: str, *, at_once: bool = False) -> None:
        due = at_once or time.monotonic() - self._written >= LOG_EVERY
        if not (self._in_lines and trainer.is_global_zero and due):
            return
        self._written = time.monotonic()
        if self._time_left is not None:
            doing += f", step {trainer.global_step} of {int(trainer.estimated_stepping_batches)}"
            metrics = self.get_metrics(trainer, trainer.lightning_module)
            doing += "".join(f", {name} {value}" for name, value in metrics.items())
        print(doing, file=sys.stderr, flush=True)


def run_loggers(folder: Path, *, wandb_project: str | None = None) -> list[Logger]:
    """CSV and TensorBoard in the run's folder, and Weights & Biases when a project is named."""
    loggers: list[Logger] = [MetricsLog(folder), TensorBoardLogger(folder, name="", version="")]
    if wandb_project is not None:
        from lightning.pytorch.loggers import WandbLogger

        loggers.append(WandbLogger(project=wandb_project, save_dir=folder, name=folder.name))
    return loggers
