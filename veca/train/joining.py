"""What trainer, data and model must know of each other before the first batch, said in one place.

Lightning calls it once the three have met, so it serves a recipe and objects made by hand alike. A trainer
that fits again, or another model, is joined again: nothing is counted twice.
"""

import logging
from typing import TYPE_CHECKING, Any, Self

from lightning.pytorch import Trainer

from veca.data.datamodule import ShardDataModule
from veca.train.budgets import StepPlan, share_by

if TYPE_CHECKING:
    from veca.train.distill import Distill

log = logging.getLogger(__name__)


class StepInterval(int):
    """A `val_check_interval` in micro-batches, as Lightning counts, of so many optimizer steps."""

    steps: int

    @classmethod
    def of(cls, steps: int, *, accumulate: int) -> Self:
        interval = cls(steps * accumulate)
        interval.steps = steps
        return interval


def join(model: "Distill", trainer: Trainer, stage: str) -> StepPlan | None:
    """Give data, teacher and trainer what they need of each other; the plan of steps when it is to fit."""
    share = share_by(trainer.strategy)
    data: ShardDataModule = trainer.datamodule  # type: ignore[attr-defined]
    if model.stored != data.stored:
        names = [None if cache is None else str(cache.folder) for cache in (model.stored, data.stored)]
        raise ValueError(
            f"the model was made for the stored targets {names[0]}, its data read {names[1]}. Give both the "
            "same: data = ShardDataModule(targets=…), Distill(stored=data.stored)."
        )
    if model.teacher is not None and model.teacher.micro_batch is None:
        model.teacher.micro_batch = data.resolutions.teacher_micro_batches
    if stage != "fit":
        return None
    if model.global_batch_size is not None:
        accumulate(trainer, data.resolutions.batch_sizes, global_batch_size=model.global_batch_size)
    plan = StepPlan(budget=model.schedule.budget, resolution=data.resolutions.resolution, share=share)
    data.resolution_of_step = plan.resolution
    return plan


def origin_problems(teacher: Any, targets: Any) -> list[str]:
    """Whether targets come from one place: `model.teacher`, or `data.targets`."""
    if teacher is None and targets is None:
        return [
            "model.teacher = data.targets = null: a student needs targets. Name a teacher, as by "
            "--model.teacher veca.teachers.EfficientNetTeacher, or stored targets by --data.targets SHARDS."
        ]
    if teacher is not None and targets is not None:
        return [
            "model.teacher and data.targets are both given: targets come from one of them. Leave one out, as "
            "by --model.teacher null."
        ]
    return []


def batches_per_step(global_batch_size: int, *, per_pass: int) -> int:
    """How many micro-batches come nearest to the global batch."""
    return max(1, round(global_batch_size / per_pass))


def accumulate(trainer: Trainer, batch_sizes: dict[int, int], *, global_batch_size: int) -> None:
    """Let as many micro-batches as come nearest to the global batch make an optimizer step."""
    largest = max(batch_sizes.values())
    per_pass = largest * trainer.world_size
    batches = batches_per_step(global_batch_size, per_pass=per_pass)
    if len(set(batch_sizes.values())) > 1 or batches * per_pass != global_batch_size:
        log.warning(
            "global_batch_size=%d is not a multiple of %d images per pass (%s per device × %d devices); "
            "using %d, with accumulate_grad_batches=%d.",
            global_batch_size,
            per_pass,
            largest,
            trainer.world_size,
            batches * per_pass,
            batches,
        )
    trainer.accumulate_grad_batches = batches
    every = trainer.val_check_interval
    if trainer.check_val_every_n_epoch is None and isinstance(every, int):
        # A recipe counts optimizer steps, Lightning micro-batches; an earlier fit may have converted them.
        steps = every.steps if isinstance(every, StepInterval) else every
        trainer.val_check_interval = StepInterval.of(steps, accumulate=batches)
