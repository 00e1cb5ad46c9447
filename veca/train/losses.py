"""The distillation objective: student features and teacher targets come in, scalars come out.

Pure functions of the paper's objective: `loss = loss_cls + dense_weight · loss_dense`. All of it is computed
in float32 at least, whatever precision the student ran in: a bf16 cosine has three digits.

Shapes: B batch, N patches, D width.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from veca.types import Features, Targets

NORM_EPS = 1e-6  # a norm below this counts as this, so that a zero vector has cosine 0 and a finite gradient


class Losses(NamedTuple):
    """Scalars of one batch; `loss` is the one to minimise, the others say where it comes from."""

    loss: Tensor
    loss_cls: Tensor  # 1 − cosine of the global features
    loss_dense: Tensor  # loss_dense_cosine + mse_weight · loss_dense_mse
    loss_dense_cosine: Tensor  # 1 − cosine, mean over patches
    loss_dense_mse: Tensor  # mean over patches and channels


def distillation_loss(
    features: Features, targets: Targets, *, dense_weight: float = 1.0, mse_weight: float = 1.0
) -> Losses:
    """Compare what the student gives with what the teacher gives; `dense_weight` is λ, `mse_weight` is μ."""
    _check_shapes(features, targets)
    loss_cls = cosine_distance(features.cls, targets.cls)
    cosine = cosine_distance(features.patches, targets.patches)
    mse = F.mse_loss(*_at_least_float32(features.patches, targets.patches))
    loss_dense = cosine + mse_weight * mse
    return Losses(loss_cls + dense_weight * loss_dense, loss_cls, loss_dense, cosine, mse)


def cosine_distance(student: Tensor, teacher: Tensor) -> Tensor:
    """Mean of 1 − cosine over all vectors along the last axis."""
    student, teacher = _at_least_float32(student, teacher)
    # Dividing the dot product, not the vectors, keeps one full-size temporary instead of three.
    dot = (student * teacher).sum(-1)
    norms: list[Tensor] = [torch.linalg.vector_norm(each, dim=-1) for each in (student, teacher)]
    return (1 - dot / (norms[0].clamp_min(NORM_EPS) * norms[1].clamp_min(NORM_EPS))).mean()


def _at_least_float32(student: Tensor, teacher: Tensor) -> tuple[Tensor, Tensor]:
    dtype = torch.promote_types(torch.promote_types(student.dtype, teacher.dtype), torch.float32)
    return student.to(dtype), teacher.to(dtype)


def _check_shapes(features: Features, targets: Targets) -> None:
    """Report every mismatch at once; broadcasting would hide them in a plausible loss."""
    problems = []
    for name, student, teacher, axes in (
        ("cls", features.cls, targets.cls, ("batch", "width")),
        ("patches", features.patches, targets.patches, ("batch", "number of patches", "width")),
    ):
        if student.ndim != len(axes) or teacher.ndim != len(axes):
            problems.append(
                f"{name} must have the axes ({', '.join(axes)}); got shapes {tuple(student.shape)} from the "
                f"student and {tuple(teacher.shape)} from the teacher."
            )
            continue
        problems += [
            f"{name}: the {axis} must agree; got {ours} from the student and {theirs} from the teacher."
            for axis, ours, theirs in zip(axes, student.shape, teacher.shape, strict=True)
            if ours != theirs
        ]
    if problems:
        way_out = "Give the student out_width equal to the teacher's width, and feed both the same images."
        raise ValueError("\n".join([*problems, way_out]))
