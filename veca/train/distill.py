"""The training step: teacher targets, student features at one budget, one loss (method §2–§5).

Both stages are this module. Pretraining and multi-resolution training differ in their recipe only: the
resolutions of the data, the length, the rates, and the budgets that validation runs.
"""

import logging
import math
import time
import warnings
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor, nn

from veca.backbones.control import NUM_GLOBAL, TransformersStudent, control_shape, load_control
from veca.checkpoint import CONTROL_KEY, SIZE_KEY, load_model
from veca.data.cached_arrays import open_targets
from veca.data.datamodule import ShardDataModule
from veca.data.views import normalise
from veca.model import Veca, create_model
from veca.model.sizes import resolve_size
from veca.optim.settings import Optimization
from veca.teachers import CachedTargets, Teacher
from veca.train.budgets import BudgetSchedule, StepPlan, share_by
from veca.train.compiling import CompileModels, trains_in_bf16_on_cpu
from veca.train.guard import NanGuard
from veca.train.losses import Losses, distillation_loss
from veca.train.validation import ConstantBaseline, GridMean
from veca.types import Batch, Features, Targets

log = logging.getLogger(__name__)


class Distill(LightningModule):
    """Distil a frozen teacher into an elastic student.

    Args:
        teacher: The frozen model that gives the targets.
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
        teacher: Teacher,
        *,
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
        problems = recipe_problems(
            size=size,
            size_overrides=size_overrides,
            attention=attention,
            budgets=budgets,
            val_budgets=val_budgets,
            dense_weight=dense_weight,
            mse_weight=mse_weight,
            global_batch_size=global_batch_size,
            optimization=optimization,
        )
        if problems:
            raise ValueError("the recipe cannot be used:\n" + "\n".join(f"- {line}" for line in problems))
        self.optimization = optimization
        self.schedule = BudgetSchedule(budgets, seed=seed)
        self.loss_weights = {"dense_weight": dense_weight, "mse_weight": mse_weight}
        self.global_batch_size = global_batch_size
        self.seed = seed
        self.student = _make_student(size, size_overrides or {}, attention, teacher)
        self.val_budgets = tuple(val_budgets or (max(self.student.budgets),))
        if init_from is not None:
            _load_weights(self.student, init_from)
        self.compile_student = compile_student
        if isinstance(self.student, Veca):
            self.student.activation_checkpointing = activation_checkpointing
        elif activation_checkpointing:
            log.warning("activation_checkpointing has no effect with attention: full.")
        self.plan: StepPlan | None = None
        self.grid: dict[int, GridMean] = {}
        self.baselines: dict[int, ConstantBaseline] = {}
        self._pace = Pace()
        self._guard = NanGuard()

    @property
    def teacher(self) -> Teacher:
        return self._unregistered["teacher"]

    def setup(self, stage: str) -> None:
        share = share_by(self.trainer.strategy)
        data: ShardDataModule = self.trainer.datamodule  # type: ignore[attr-defined]
        if stage == "fit":
            self._set_accumulation(data)
            self.plan = StepPlan(
                budget=self.schedule.budget, resolution=data.resolutions.resolution, share=share
            )
            data.resolution_of_step = self.plan.resolution
        if isinstance(self.teacher, CachedTargets):
            data.replay(self.teacher.cache, stage)
        elif self.teacher.micro_batch is None:
            self.teacher.micro_batch = data.resolutions.teacher_micro_batches

    def configure_callbacks(self) -> list[Callback]:
        return [CompileModels(), self._guard]

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
        assert self.plan is not None
        step = self.global_step
        self.plan.reach(step)
        budget = self.plan.budget(step)
        self._seed_augmentation(step, batch_idx)
        losses = self._losses(batch, self._targets(batch), budget)
        self._pace.add(len(batch.images) * self.trainer.world_size)
        if self._logs(step, batch_idx):
            self._log_training(batch, losses, budget)
        return losses.loss

    def on_train_start(self) -> None:
        self._pace.restart()

    def on_validation_start(self) -> None:
        self._start_grid()

    def on_validation_end(self) -> None:
        self._pace.restart()

    def on_test_start(self) -> None:
        self._start_grid()

    def validation_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Every budget on the same images, with one teacher pass."""
        if not batch.keys:
            return
        resolution = batch.images.shape[-1]
        targets = self._targets(batch)
        self.baselines[resolution].update(targets)
        for budget in self.grid[resolution].budgets:
            losses = self._losses(batch, targets, budget)
            self.grid[resolution].update(budget, losses, len(batch.images))

    def test_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> None:
        self.validation_step(batch, batch_idx, dataloader_idx)

    def on_validation_epoch_end(self) -> None:
        self._log_grid("val")

    def on_test_epoch_end(self) -> None:
        self._log_grid("test")

    def predict_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> Features | None:
        if not batch.keys:
            return None
        features: Features = self.student(normalise(batch.images), budget=None)
        return features

    def on_fit_start(self) -> None:
        self.teacher.to(self.device)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        if isinstance(self.student, Veca):
            checkpoint[SIZE_KEY] = self.student.size.as_dict()
        else:
            checkpoint[CONTROL_KEY] = self.student.arguments
        self._guard.check(self.trainer, checkpoint)  # its own hook is not called for weights alone

    def _losses(self, batch: Batch, targets: Targets, budget: int) -> Losses:
        features = self.student(normalise(batch.images), budget=budget)
        return distillation_loss(features, targets, **self.loss_weights)

    def _targets(self, batch: Batch) -> Targets:
        if batch.targets is not None:
            return open_targets(batch.targets)
        targets: Targets = self.teacher(batch.images)
        return targets

    def _seed_augmentation(self, step: int, batch_idx: int) -> None:
        """A generator state that depends on the place in training only, so that a resumed run repeats it."""
        place = np.random.SeedSequence((self.seed, step, batch_idx, self.global_rank))
        torch.manual_seed(int(place.generate_state(1, np.uint64)[0]))

    def _logs(self, step: int, batch_idx: int) -> bool:
        trainer = self.trainer
        last_micro_batch = (batch_idx + 1) % trainer.accumulate_grad_batches == 0
        every = trainer.log_every_n_steps  # type: ignore[attr-defined]  # set by the Trainer, not declared
        return last_micro_batch and (step + 1) % every == 0

    def _log_training(self, batch: Batch, losses: Losses, budget: int) -> None:
        values: dict[str, Any] = {f"train/{name}": value for name, value in losses._asdict().items()}
        values |= {"train/budget": float(budget), "train/resolution": float(batch.images.shape[-1])}
        values["train/images_per_second"] = self._pace.restart()
        optimizer = self.trainer.optimizers[0]
        names = ("normuon", "adamw")
        values |= {
            f"lr/{name}": group["lr"] for name, group in zip(names, optimizer.param_groups, strict=True)
        }
        values |= self.trainer.datamodule.metrics()  # type: ignore[attr-defined]
        self.log_dict(values, batch_size=len(batch.images))

    def _start_grid(self) -> None:
        """Fresh metrics for every resolution; the whole grid when validation is the task itself."""
        self.teacher.to(self.device)
        budgets = self.val_budgets if self.trainer.state.fn == TrainerFn.FITTING else self.student.budgets
        data: ShardDataModule = self.trainer.datamodule  # type: ignore[attr-defined]
        side = self.student.size.patch_size
        for resolution in data.resolutions.resolutions:
            self.grid[resolution] = GridMean(budgets).to(self.device)
            self.baselines[resolution] = ConstantBaseline(
                width=self.teacher.width, num_patches=(resolution // side) ** 2, **self.loss_weights
            ).to(self.device)

    def _log_grid(self, stage: str) -> None:
        values: dict[str, Tensor] = {}
        for resolution, metric in self.grid.items():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # a rank may have had no batch of its own
                found = {**metric.compute(), **self.baselines[resolution].compute()}
            values |= {f"{stage}/r{resolution}/{name}": value for name, value in found.items()}
        means = [
            value for name, value in values.items() if name.endswith("/loss") and "/constant/" not in name
        ]
        if means:
            values[f"{stage}/loss"] = torch.stack(means).mean()
        self.log_dict(values, sync_dist=True)  # the metrics are reduced already: this averages equal numbers

    def _set_accumulation(self, data: ShardDataModule) -> None:
        if self.global_batch_size is None:
            return
        sizes = set(data.resolutions.batch_sizes.values())
        per_pass = max(sizes) * self.trainer.world_size
        accumulate = max(1, round(self.global_batch_size / per_pass))
        if len(sizes) > 1 or accumulate * per_pass != self.global_batch_size:
            log.warning(
                "global_batch_size=%d is not a multiple of %d images per pass (%s per device × %d devices); "
                "using %d, with accumulate_grad_batches=%d.",
                self.global_batch_size,
                per_pass,
                max(sizes),
                self.trainer.world_size,
                accumulate * per_pass,
                accumulate,
            )
        self.trainer.accumulate_grad_batches = accumulate
        if self.trainer.check_val_every_n_epoch is None and isinstance(self.trainer.val_check_interval, int):
            # A recipe counts in optimizer steps, Lightning in micro-batches.
            self.trainer.val_check_interval *= accumulate


def recipe_problems(
    *,
    size: str,
    size_overrides: dict[str, Any] | None,
    attention: str,
    budgets: dict[int, float],
    val_budgets: list[int] | None,
    dense_weight: float,
    mse_weight: float,
    global_batch_size: int | None,
    optimization: Optimization,
) -> list[str]:
    """Every value of the model part of a recipe that cannot be right; nothing is built to find them."""
    problems = [f"model.optimization: {line}" for line in optimization.problems()]
    try:
        known = student_budgets(size, size_overrides or {}, attention)
        problems += [f"model.budgets: {line}" for line in BudgetSchedule(budgets).problems(known)]
        problems += [
            f"model.val_budgets: budget {budget} is not one of {', '.join(map(str, known))}."
            for budget in val_budgets or ()
            if budget not in known
        ]
    except ValueError as error:
        problems.append(f"model.size: {error}")
    for key, weight in (("dense_weight", dense_weight), ("mse_weight", mse_weight)):
        if not 0 <= weight < math.inf:
            problems.append(f"model.{key} = {weight}: must be a number ≥ 0.")
    if global_batch_size is not None and global_batch_size < 1:
        problems.append(f"model.global_batch_size = {global_batch_size}: must be at least 1.")
    return problems


class Pace:
    """Images per second of wall-clock since the last restart."""

    def __init__(self) -> None:
        self._images, self._since = 0, time.monotonic()

    def add(self, images: int) -> None:
        self._images += images

    def restart(self) -> float:
        now = time.monotonic()
        rate = self._images / max(now - self._since, 1e-9)
        self._images, self._since = 0, now
        return rate


def student_budgets(size: str, overrides: dict[str, Any], attention: str) -> tuple[int, ...]:
    """The budgets a student of this size will have."""
    if attention == "full":
        control_shape(size, overrides)
        return (NUM_GLOBAL,)
    return resolve_size(size, overrides).budgets


def _make_student(
    size: str, overrides: Mapping[str, Any], attention: str, teacher: Teacher
) -> "Veca | TransformersStudent":
    """The student, with an output projection only when the teacher's width is another."""
    if attention == "full":
        student: Veca | TransformersStudent = TransformersStudent(size, **overrides)
        if student.size.width != teacher.width:
            student = TransformersStudent(size, out_width=teacher.width, **overrides)
    else:
        student = create_model(size, **overrides)
        if student.size.width != teacher.width:
            student = create_model(size, **{**overrides, "out_width": teacher.width})
    projection = teacher.patch_projection()
    if projection is not None:
        student.load_patch_embedding(*projection)
    return student


def _load_weights(student: nn.Module, source: str) -> None:
    tensors = (load_control(source) or load_model(source)).state_dict()
    try:
        student.load_state_dict(tensors)
    except RuntimeError as error:
        raise ValueError(f"init_from={source} does not fit this student: {error}") from None
