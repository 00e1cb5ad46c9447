"""Which budget (and resolution) an optimizer step uses, and how every rank comes to know it (method §3).

The draws are functions of (seed, step). The main process makes them and shares them with the other ranks
in blocks, well ahead of need: prefetching loaders ask for steps that training has not reached, and no
step waits for a broadcast.

`join` says in one place what trainer, data and model must know of each other before the first batch. It is
called once the three have met, so it serves a recipe and objects made by hand alike. A trainer that fits
again, or another model, is joined again: nothing is counted twice.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from lightning.pytorch import Trainer
from torch import Tensor

from veca.data.datamodule import ShardDataModule
from veca.train.ddp import share_by

if TYPE_CHECKING:
    from veca.train.distill import Distill

BLOCK = 1024  # steps per shared block; far more than any loader prefetches

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class BudgetSchedule:
    """The budgets of a run."""

    weights: dict[int, float]  # how often each budget is drawn, relative to the others
    seed: int = 42

    def problems(self, budgets: tuple[int, ...]) -> list[str]:
        """Every broken rule, for a student with these budgets."""
        found = []
        for budget, weight in self.weights.items():
            if budget not in budgets:
                found.append(f"weights: budget {budget} is not one of {', '.join(map(str, budgets))}.")
            if not 0 <= weight < float("inf"):
                found.append(f"weights[{budget}] = {weight}: must be a number ≥ 0.")
        if not found and not sum(self.weights.values()) > 0:
            found.append(f"weights = {self.weights}: at least one must be above 0.")
        return found

    @property
    def drawn(self) -> list[int]:
        """The budgets that a run can meet."""
        return [budget for budget, weight in self.weights.items() if weight > 0]

    def budget(self, step: int) -> int:
        """The budget of an optimizer step."""
        weights = np.array(list(self.weights.values()), dtype=np.float64)
        # Philox is a function of (key, counter): the draw of a step needs no draw before it.
        uniform = np.random.Generator(np.random.Philox(key=self.seed, counter=step)).random()
        place = int(np.searchsorted(np.cumsum(weights) / weights.sum(), uniform, side="right"))
        return list(self.weights)[min(place, len(weights) - 1)]


class StepPlan:
    """Budget and resolution of every step, drawn on the main process, the same on all ranks.

    `share` sends the main process's tensor to all ranks. It is a collective, so it is called at points that
    all ranks pass alike: when the loader starts and when a step enters a new block.
    """

    def __init__(
        self,
        *,
        budget: Callable[[int], int],
        resolution: Callable[[int], int],
        share: Callable[[Tensor], Tensor],
    ) -> None:
        self._draws = (budget, resolution)
        self._share = share
        self._blocks: dict[int, list[list[int]]] = {}

    def reach(self, step: int) -> None:
        """Share the block of `step` and the one after it; forget the ones before."""
        first = step // BLOCK
        for number in (first, first + 1):
            if number not in self._blocks:
                steps = range(number * BLOCK, (number + 1) * BLOCK)
                drawn = torch.tensor([[draw(step) for step in steps] for draw in self._draws])
                self._blocks[number] = self._share(drawn).tolist()
        self._blocks = {number: rows for number, rows in self._blocks.items() if number >= first}

    def budget(self, step: int) -> int:
        return self._look_up(step)[0]

    def resolution(self, step: int) -> int:
        return self._look_up(step)[1]

    def _look_up(self, step: int) -> tuple[int, int]:
        if step // BLOCK not in self._blocks:
            self.reach(step)
        budgets, resolutions = self._blocks[step // BLOCK]
        return budgets[step % BLOCK], resolutions[step % BLOCK]


class StepInterval(int):
    """A `val_check_interval` in micro-batches, as Lightning counts, of so many optimizer steps."""

    steps: int


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
        trainer.val_check_interval = StepInterval(steps * batches)
        trainer.val_check_interval.steps = steps
