"""What goes along with the training step: compiled graphs, the log of its numbers, the guard against NaN.

Models are compiled where a run is long enough to gain by it, or where the recipe says so. In bf16 on a CPU
that multiplies it, with plain attention, that is one graph per budget and size: ten seconds each, for a third
of every step, and before step 1, so that all steps take their own time. Elsewhere `compile_student` compiles
one graph for all budgets and sizes, on first use.

A run whose numbers are not finite ends, on all ranks alike, and leaves its last good checkpoint as it is.

Two things are looked at. Each loss leaves a mark on the device if it is not finite. Weights and optimizer
state are looked at as a whole, and with them every gradient there was: momenta keep a NaN for ever. A
gradient that the step does not use, as with float16's loss scaling, is no fault.

The device is read only where it is waited for anyway: when metrics are logged and before a checkpoint is
written. All ranks pass these points alike, and agree there; one that stopped alone would leave the others
waiting, or writing.
"""

import time
from collections.abc import Mapping
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.utilities import rank_zero_info

from veca.model import Veca
from veca.teachers import Teacher
from veca.train.checkpointing import newest_intact, nonfinite
from veca.train.ddp import any_rank
from veca.train.losses import Losses
from veca.types import Batch
from veca.utils.precision import BF16, WORTH_COMPILING, cpu_multiplies_bf16, has_cpp_compiler

if TYPE_CHECKING:
    from veca.train.distill import Distill


class StepLog(Callback):
    """Logs losses, budget, resolution, rates and pace, in the last micro-batch of every so many steps.

    The step calls `record`, and no hook: a hook comes after the schedule has moved the rates, and after the
    progress bar has shown what was logged.
    """

    def __init__(self) -> None:
        self._images, self._since = 0, time.monotonic()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._restart()

    on_validation_end = on_train_start

    def record(self, model: "Distill", batch: Batch, losses: Losses, budget: int) -> None:
        """Count a micro-batch, and log it where its turn has come; reads nothing from the device."""
        trainer = model.trainer
        self._images += len(batch.images) * trainer.world_size
        done = trainer.fit_loop.epoch_loop.batch_idx + 1  # micro-batches of this epoch
        every = trainer.log_every_n_steps  # type: ignore[attr-defined]  # set by the Trainer, not declared
        if done % trainer.accumulate_grad_batches or (trainer.global_step + 1) % every:
            return
        values: dict[str, Any] = {f"train/{name}": value for name, value in losses._asdict().items()}
        values |= {"train/budget": float(budget), "train/resolution": float(batch.images.shape[-1])}
        values["train/images_per_second"] = self._restart()
        groups = zip(("normuon", "adamw"), trainer.optimizers[0].param_groups, strict=True)
        values |= {f"lr/{name}": group["lr"] for name, group in groups}
        values |= trainer.datamodule.metrics()  # type: ignore[attr-defined]
        model.log_dict(values, batch_size=len(batch.images))

    def _restart(self) -> float:
        """Images per second of wall-clock since the last call."""
        now = time.monotonic()
        rate = self._images / max(now - self._since, 1e-9)
        self._images, self._since = 0, now
        return rate


class NanGuard(Callback):
    """Watches the losses of a run; ends it when they, its weights or its optimizer state are not finite."""

    def __init__(self) -> None:
        self._step = 0  # the one under way
        self._first_bad = torch.tensor(-1)  # the first step with a loss that is not finite

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._first_bad = torch.tensor(-1, device=pl_module.device)

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self._step = trainer.global_step

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        fine = outputs["loss"].isfinite() | (self._first_bad >= 0)
        self._first_bad = torch.where(fine, self._first_bad, self._step)
        every = trainer.log_every_n_steps  # type: ignore[attr-defined]  # set by the Trainer, not declared
        if trainer.global_step > self._step and trainer.global_step % every == 0:
            optimizers = [optimizer.state_dict() for optimizer in trainer.optimizers]
            self.check(trainer, {"state_dict": pl_module.state_dict(), "optimizer_states": optimizers})

    def check(self, trainer: Trainer, checkpoint: Mapping[str, Any]) -> None:
        """Raise on all ranks where one of them has met a number that is not finite. A collective."""
        first, problem = int(self._first_bad), nonfinite(checkpoint)
        if not any_rank(trainer.strategy, first >= 0 or problem is not None):
            return
        firsts = [trainer.strategy.broadcast(first, src=rank) for rank in range(trainer.world_size)]
        if bad := {rank: step for rank, step in enumerate(firsts) if step >= 0}:
            rank = min(bad, key=lambda rank: bad[rank])
            problem = f"the loss of rank {rank} is not finite since step {bad[rank]}"
        last = trainer.strategy.broadcast(_last_good(trainer) if trainer.is_global_zero else None)
        raise FloatingPointError(
            f"{problem or 'another rank has numbers that are not finite'} (now at step "
            f"{trainer.global_step}; nothing of it was saved). The last good checkpoint is {last or 'none'}. "
            "Continue from there with a lower model.optimization.lr, with trainer.gradient_clip_val, or with "
            "data that are mended."
        )


def _last_good(trainer: Trainer) -> str | None:
    """The newest checkpoint that the run could continue from."""
    for each in trainer.checkpoint_callbacks:  # a run's are all in one folder
        if isinstance(each, ModelCheckpoint) and each.dirpath:
            with suppress(ValueError):  # none is intact
                found = newest_intact(Path(each.dirpath))
                return None if found is None else str(found)
    return None


class CompileModels(Callback):
    """Prepares what `Distill` trains, and its teacher, as `compile_student` and `compile_teacher` say."""

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        module: Distill = pl_module  # type: ignore[assignment]
        if not trains_in_bf16_on_cpu(trainer):
            if module.compile_student:
                module.student.compile_blocks()
        elif isinstance(module.student, Veca):
            module.student.attend_plainly()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        module: Distill = pl_module  # type: ignore[assignment]
        if not trains_in_bf16_on_cpu(trainer):
            return
        # Of the whole run, so that one which resumes decides as it did before.
        images = int(trainer.estimated_stepping_batches) * trainer.accumulate_grad_batches
        images *= max(trainer.datamodule.resolutions.batch_sizes.values())  # type: ignore[attr-defined]
        worth = images >= WORTH_COMPILING and has_cpp_compiler()
        if module.compile_student or (worth and module.compile_student is None):
            compile_static(trainer, module)
        teacher = module.teacher
        if worth and teacher is not None and teacher.compile_teacher is None:
            compile_teacher(trainer, teacher)


def trains_in_bf16_on_cpu(trainer: Trainer) -> bool:
    """Whether a run has the products that plain attention, fixed graphs and small passes are for."""
    on_cpu = trainer.strategy.root_device.type == "cpu"
    return on_cpu and trainer.precision == BF16 and cpu_multiplies_bf16()


def compile_static(trainer: Trainer, module: "Distill") -> None:
    """One graph of the student per budget and resolution, made now."""
    sizes = trainer.datamodule.resolutions.batch_sizes  # type: ignore[attr-defined]
    student, budgets = module.student, module.schedule.drawn
    # One function serves all blocks; past its limit torch would fall back to running it uncompiled.
    limit = 1 + 2 * len(budgets) * len(sizes)
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, limit)
    student.compile_blocks(dynamic=False)
    start = time.monotonic()
    rank_zero_info(
        f"compiling the student, {len(budgets)} budgets at {len(sizes)} resolutions, before the first step …"
    )
    with torch.random.fork_rng(devices=[]), trainer.precision_plugin.train_step_context():
        for budget, (resolution, count) in product(budgets, sizes.items()):
            images = torch.zeros(count, student.size.in_channels, resolution, resolution)
            features = student(images, budget=budget)
            (features.cls.float().sum() + features.patches.float().sum()).backward()
    student.zero_grad(set_to_none=True)
    rank_zero_info(f"compiled the student in {time.monotonic() - start:.0f} s")


def compile_teacher(trainer: Trainer, teacher: Teacher) -> None:
    """One graph of the teacher per resolution, made now."""
    sizes = trainer.datamodule.resolutions.batch_sizes  # type: ignore[attr-defined]
    start = time.monotonic()
    rank_zero_info(f"compiling the teacher at {len(sizes)} resolutions, before the first step …")
    teacher.compile_fixed()
    with trainer.precision_plugin.train_step_context():
        for resolution, count in sizes.items():
            teacher(torch.zeros(count, 3, resolution, resolution, dtype=torch.uint8))
    rank_zero_info(f"compiled the teacher in {time.monotonic() - start:.0f} s")
