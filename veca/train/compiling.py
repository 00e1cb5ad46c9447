"""Training in bf16 on a CPU that multiplies it: plain attention, and one compiled graph per budget and size.

Compiling takes about ten seconds per graph and saves a third of every step, so it is done where a run is long
enough to gain by it, or where the recipe says so; and before step 1, so that all steps take their own time.
Elsewhere `compile_student` compiles one graph for all budgets and sizes, on first use.
"""

import time
from itertools import product
from typing import TYPE_CHECKING

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_info

from veca.model import Veca
from veca.teachers import Teacher
from veca.utils.precision import BF16, WORTH_COMPILING, cpu_multiplies_bf16, has_cpp_compiler

if TYPE_CHECKING:
    from veca.train.distill import Distill


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
    student = module.student
    budgets = module.schedule.drawn
    # One function serves all blocks; past its limit torch would fall back to running it uncompiled.
    limit = 1 + 2 * len(budgets) * len(sizes)
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, limit)
    student.compile_blocks(dynamic=False)
    start = time.monotonic()
    rank_zero_info(
        f"compiling the student, {len(budgets)} budgets at {len(sizes)} resolutions, before the first step …"
    )
    channels = student.size.in_channels
    with torch.random.fork_rng(devices=[]), trainer.precision_plugin.train_step_context():
        for budget, (resolution, count) in product(budgets, sizes.items()):
            images = torch.zeros(count, channels, resolution, resolution)
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
