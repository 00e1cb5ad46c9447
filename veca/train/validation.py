"""Validation metrics: losses over the resolution × budget grid, and the constant to beat.

A student that ignores the image can still look good, because teacher features share a large mean. So each
resolution also reports what the best constant scores: one vector per position, the mean of the very
targets it is judged on.
"""

import warnings
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor
from torchmetrics import Metric

from veca.data.resolutions import PATCH_SIZE
from veca.train.losses import NORM_EPS, Losses
from veca.types import Batch, Targets

if TYPE_CHECKING:
    from veca.train.distill import Distill

QUANTITIES = ("loss", "loss_cls", "loss_dense")


class LossGrid(Callback):
    """The losses of one validation by resolution × budget; every budget where validation is the task."""

    def __init__(self) -> None:
        self.budgets: tuple[int, ...] = ()
        self._means: dict[int, GridMean] = {}
        self._baselines: dict[int, ConstantBaseline] = {}

    def record_targets(self, batch: Batch, targets: Targets) -> None:
        self._baselines[batch.images.shape[-1]].update(targets)

    def record(self, batch: Batch, losses: Losses, budget: int) -> None:
        self._means[batch.images.shape[-1]].update(budget, losses, len(batch.images))

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Fresh metrics for every resolution of the data."""
        model: Distill = pl_module  # type: ignore[assignment]
        model.move_teacher()
        self.budgets = model.val_budgets if trainer.state.fn == TrainerFn.FITTING else model.student.budgets
        self._means, self._baselines = {}, {}
        for resolution in trainer.datamodule.resolutions.resolutions:  # type: ignore[attr-defined]
            num_patches = (resolution // PATCH_SIZE) ** 2
            baseline = ConstantBaseline(
                width=model.target_width, num_patches=num_patches, **model.loss_weights
            )
            self._means[resolution] = GridMean(self.budgets).to(model.device)
            self._baselines[resolution] = baseline.to(model.device)

    on_test_start = on_validation_start

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        stage = "test" if trainer.testing else "val"
        values: dict[str, Tensor] = {}
        for resolution, means in self._means.items():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # a rank may have had no batch of its own
                found = {**means.compute(), **self._baselines[resolution].compute()}
            values |= {f"{stage}/r{resolution}/{name}": value for name, value in found.items()}
        losses = [values[name] for name in values if name.endswith("/loss") and "/constant/" not in name]
        if losses:
            values[f"{stage}/loss"] = torch.stack(losses).mean()
        pl_module.log_dict(values, sync_dist=True)  # reduced already: this averages equal numbers

    on_test_epoch_end = on_validation_epoch_end


class GridMean(Metric):
    """Means of the losses per budget, weighed by sample count, over all ranks."""

    sums: Tensor
    counts: Tensor

    def __init__(self, budgets: tuple[int, ...], **options: Any) -> None:
        super().__init__(**options)
        self.budgets = budgets
        zeros = torch.zeros(len(budgets), len(QUANTITIES), dtype=torch.float64)
        self.add_state("sums", zeros, dist_reduce_fx="sum")
        self.add_state("counts", torch.zeros(len(budgets), 1, dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, budget: int, losses: Losses, samples: int) -> None:
        row = self.budgets.index(budget)
        values = torch.stack([getattr(losses, name) for name in QUANTITIES])
        self.sums[row] += values.detach().to(self.sums.dtype) * samples
        self.counts[row] += samples

    def compute(self) -> dict[str, Tensor]:
        """Means by name: `b16/loss_dense`. Empty without samples, as on a rank that had none."""
        if not bool((self.counts > 0).all()):
            return {}
        means = (self.sums / self.counts).float()
        return {
            f"b{budget}/{name}": means[row, column]
            for row, budget in enumerate(self.budgets)
            for column, name in enumerate(QUANTITIES)
        }


class ConstantBaseline(Metric):
    """Losses of the constant predictor, from one pass.

    With c the mean target of a position, the cosine loss is 1 − ĉ·mean(t̂) and the squared error is
    mean(t²) − c², so sums of t, t̂ and t² suffice.
    """

    count: Tensor
    square: Tensor
    cls_sum: Tensor
    cls_unit: Tensor
    patch_sum: Tensor
    patch_unit: Tensor

    def __init__(self, *, width: int, num_patches: int, dense_weight: float, mse_weight: float) -> None:
        super().__init__()
        self.dense_weight, self.mse_weight = dense_weight, mse_weight
        shapes = {"count": (), "square": (), "cls_sum": (width,), "cls_unit": (width,)}
        shapes |= {"patch_sum": (num_patches, width), "patch_unit": (num_patches, width)}
        for name, shape in shapes.items():
            self.add_state(name, torch.zeros(shape), dist_reduce_fx="sum")

    def update(self, targets: Targets) -> None:
        cls, patches = targets.cls.float(), targets.patches.float()
        self.count += len(cls)
        self.cls_sum += cls.sum(0)
        self.cls_unit += _unit(cls).sum(0)
        self.patch_sum += patches.sum(0)
        self.patch_unit += _unit(patches).sum(0)
        self.square += patches.square().mean((1, 2)).sum()

    def compute(self) -> dict[str, Tensor]:
        if not bool(self.count > 0):
            return {}
        loss_cls = 1 - (_unit(self.cls_sum) * self.cls_unit / self.count).sum()
        cosine = 1 - (_unit(self.patch_sum) * self.patch_unit / self.count).sum(-1).mean()
        mse = self.square / self.count - (self.patch_sum / self.count).square().mean()
        loss_dense = cosine + self.mse_weight * mse
        loss = loss_cls + self.dense_weight * loss_dense
        return {"constant/loss": loss, "constant/loss_cls": loss_cls, "constant/loss_dense": loss_dense}


def _unit(vectors: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    return vectors / norm.clamp_min(NORM_EPS)
