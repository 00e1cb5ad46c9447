"""The training step: teacher targets, student features at one budget, one loss (method §2–§5).

Both stages are this module. Pretraining and multi-resolution training differ in their recipe only: the
resolutions of the data, the length, the rates, and the budgets that validation runs.

What surrounds the step lies beside it: `budgets.py` (the plan of steps; what trainer, data and teacher must
know of each other), `callbacks.py` (the log, the guard against NaN), `validation.py` (the grid of losses).
"""

import logging
import math
from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np
import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor, nn

from veca.backbones.control import TransformersStudent, load_control
from veca.checkpoint import CONTROL_KEY, SIZE_KEY, load_model
from veca.data.stored_targets import Cache
from veca.data.stored_views import open_targets
from veca.data.views import normalise
from veca.model import Veca, create_model
from veca.optim.settings import Optimization
from veca.teachers import Teacher
from veca.train.budgets import BudgetSchedule, StepPlan, join, origin_problems
from veca.train.callbacks import CompileModels, NanGuard, StepLog, trains_in_bf16_on_cpu
from veca.train.losses import distillation_loss
from veca.train.recipe import recipe_problems, refuse
from veca.train.validation import LossGrid
from veca.types import Batch, Features, Targets

log = logging.getLogger(__name__)


class Distill(LightningModule):
    """Distil a frozen teacher into an elastic student.

    Args:
        teacher: The frozen model that gives the targets; null where the data have them (`data.targets`).
        stored: Those targets: `ShardDataModule.stored`.
        size: Size of the student: tiny, small, small_plus, base or large.
        size_overrides: Fields of the size to replace, e.g. `{depth: 4}`.
        attention: `cores` for Veca, `full` for the full-attention control of the same width, depth and heads.
        optimization: Learning rates, decay, warmup.
        budgets: How often each budget is drawn, e.g. `{8: 1, 64: 4}`.
        val_budgets: Budgets that validation runs during training; null for the full budget only.
        dense_weight: λ, weight of the dense loss.
        mse_weight: μ, weight of the squared error inside the dense loss.
        global_batch_size: Images per optimizer step over all devices; accumulation follows from it. Null
            leaves accumulation to `trainer.accumulate_grad_batches`.
        init_from: A model to start from (its weights only): folder, .ckpt, authors' .pt or Hub id.
        compile_student: Compile the student's blocks; null where a run gains by it: in bf16 on CPUs that
            multiply it, from 50,000 images on.
        activation_checkpointing: Recompute activations in the backward pass: less memory, more time.
        seed: Seed of the budgets and of the student's augmentation.
    """

    def __init__(
        self,
        teacher: Teacher | None = None,
        *,
        stored: Cache | None = None,
        optimization: Optimization,
        budgets: dict[int, float],
        size: str = "small",
        size_overrides: dict[str, Any] | None = None,
        attention: Literal["cores", "full"] = "cores",
        val_budgets: list[int] | None = None,
        dense_weight: float = 1.0,
        mse_weight: float = 1.0,
        global_batch_size: int | None = None,
        init_from: str | None = None,
        compile_student: bool | None = None,
        activation_checkpointing: bool = False,
        seed: int = 42,
    ) -> None:
        super().__init__()
        # Not a submodule: checkpoints, DDP and parameter lists are about the student alone.
        self._unregistered = {"teacher": teacher}
        problems = origin_problems(teacher, stored) + recipe_problems(
            size=size,
            size_overrides=size_overrides,
            attention=attention,
            budgets=budgets,
            val_budgets=val_budgets,
            dense_weight=dense_weight,
            mse_weight=mse_weight,
            global_batch_size=global_batch_size,
            seed=seed,
            optimization=optimization,
        )
        refuse(problems)
        self.optimization = optimization
        self.schedule = BudgetSchedule(budgets, seed=seed)
        self.loss_weights = {"dense_weight": dense_weight, "mse_weight": mse_weight}
        self.global_batch_size = global_batch_size
        self.seed = seed
        self.stored = stored
        origin = stored if teacher is None else teacher
        assert origin is not None
        self.target_width = origin.width
        self.student = _make_student(size, size_overrides or {}, attention, origin)
        self.val_budgets = tuple(val_budgets or (max(self.student.budgets),))
        if init_from is not None:
            _load_weights(self.student, init_from)
        self.compile_student = compile_student
        if isinstance(self.student, Veca):
            self.student.activation_checkpointing = activation_checkpointing
        elif activation_checkpointing:
            log.warning("activation_checkpointing has no effect with attention: full.")
        self.plan: StepPlan | None = None
        self._guard, self._steps, self._grid = NanGuard(), StepLog(), LossGrid()

    @property
    def teacher(self) -> Teacher | None:
        return self._unregistered["teacher"]

    def setup(self, stage: str) -> None:
        self.plan = join(self, self.trainer, stage) or self.plan

    def configure_callbacks(self) -> list[Callback]:
        return [CompileModels(), self._guard, self._steps, self._grid]

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        max_steps = self.trainer.estimated_stepping_batches
        if math.isinf(max_steps):
            raise ValueError(
                "trainer.max_steps or trainer.max_epochs must bound the run: the schedule needs it."
            )
        steps_per_epoch = self.trainer.num_training_batches / self.trainer.accumulate_grad_batches
        optimizer, scheduler = self.optimization.make(
            self.student,
            max_steps=int(max_steps),
            steps_per_epoch=steps_per_epoch,
            bf16_on_cpu=trains_in_bf16_on_cpu(self.trainer),
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """One micro-batch: images (B, 3, H, W) uint8, N = H/16 · W/16 patches, C active cores, width D."""
        assert self.plan is not None
        step = self.global_step
        self.plan.reach(step)
        budget = self.plan.budget(step)  # C, the same on every rank and micro-batch of this step
        seed_draws(self.seed, step, batch_idx, self.global_rank)
        targets = self._targets(batch)  # cls (B, D), patches (B, N, D); no grad
        features = self.student(normalise(batch.images), budget=budget)  # cls (B, D), patches (B, N, D)
        # (1 − cos)_cls + λ [(1 − cos)_dense + μ mse_dense]
        losses = distillation_loss(features, targets, **self.loss_weights)
        self._steps.record(self, batch, losses, budget)
        return losses.loss

    def validation_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Every budget on the same images, with one teacher pass."""
        if not batch.keys:
            return
        targets = self._targets(batch)
        self._grid.record_targets(batch, targets)
        for budget in self._grid.budgets:
            features = self.student(normalise(batch.images), budget=budget)
            losses = distillation_loss(features, targets, **self.loss_weights)
            self._grid.record(batch, losses, budget)

    test_step = validation_step

    def predict_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> Features | None:
        if not batch.keys:
            return None
        features: Features = self.student(normalise(batch.images), budget=None)
        return features

    def on_fit_start(self) -> None:
        self.move_teacher()

    def move_teacher(self) -> None:
        """The teacher is no submodule, so Lightning does not move it."""
        if self.teacher is not None:
            self.teacher.to(self.device)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        if isinstance(self.student, Veca):
            checkpoint[SIZE_KEY] = self.student.size.as_dict()
        else:
            checkpoint[CONTROL_KEY] = self.student.arguments
        self._guard.check(self.trainer, checkpoint)  # its own hook is not called for weights alone

    def _targets(self, batch: Batch) -> Targets:
        """What the teacher says of these images, now or when the batch was stored."""
        if batch.targets is not None:
            return open_targets(batch.targets)
        assert self.teacher is not None
        targets: Targets = self.teacher(batch.images)
        return targets


def seed_draws(seed: int, step: int, batch_idx: int, rank: int) -> None:
    """A generator state that depends on the place in training only, so that a resumed run repeats it."""
    place = np.random.SeedSequence((seed, step, batch_idx, rank))
    torch.manual_seed(int(place.generate_state(1, np.uint64)[0]))


def _make_student(
    size: str, overrides: Mapping[str, Any], attention: str, origin: Teacher | Cache
) -> Veca | TransformersStudent:
    """The student, with an output projection only when the width of the targets is another."""
    make: Callable[..., Veca | TransformersStudent]
    make = TransformersStudent if attention == "full" else create_model
    student = make(size, **overrides)
    if student.size.width != origin.width:
        student = make(size, **{**overrides, "out_width": origin.width})
    projection = origin.patch_projection()
    if projection is not None:
        student.load_patch_embedding(*projection)
    return student


def _load_weights(student: nn.Module, source: str) -> None:
    tensors = (load_control(source) or load_model(source)).state_dict()
    try:
        student.load_state_dict(tensors)
    except RuntimeError as error:
        raise ValueError(f"init_from={source} does not fit this student: {error}") from None
