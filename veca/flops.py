"""What one image costs: FLOPs counted on the meta device, bytes saved for the backward pass.

Nothing is computed and no weights are loaded: models are built without storage, and torch's own counter
sees the shapes of every product (FLOPs = 2 · multiply-adds; element-wise work and norms do not count).
"""

from typing import Any, NamedTuple

import torch
import transformers
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from veca.model import Size, Veca, create_model
from veca.optim.combined import split_parameters
from veca.optim.normuon import POLAR_COEFFICIENTS, owners
from veca.teachers.dinov3 import dinov3_config


class SavedBytes(NamedTuple):
    """What the forward pass keeps for the backward pass, under bf16 autocast."""

    fixed: int  # bf16 copies of the weights
    per_image: int


def meta_student(size: str, overrides: dict[str, Any], *, teacher_width: int) -> Veca:
    """The student of a recipe without storage, with an output projection when the widths differ."""
    with torch.device("meta"):
        student = create_model(size, **overrides)
        if student.size.width != teacher_width:
            student = create_model(size, **{**overrides, "out_width": teacher_width})
    return student


def meta_teacher(size: Size, *, gated: bool) -> nn.Module:
    """DINOv3 without storage."""
    with torch.device("meta"):
        model: nn.Module = transformers.DINOv3ViTModel(dinov3_config(size, gated=gated))
    return model.eval()


def student_flops(student: Veca, *, resolution: int, budget: int) -> int:
    """FLOPs of one image's forward pass."""
    return _count(student, resolution=resolution, budget=budget).get_total_flops()


def teacher_flops(teacher: nn.Module, *, resolution: int) -> int:
    """FLOPs of one image's forward pass."""
    return _count(teacher, resolution=resolution).get_total_flops()


def attention_flops(model: nn.Module, *, resolution: int, **options: int) -> int:
    """FLOPs of one layer's projection–attention–projection path for one image, of student or teacher."""
    counts = _count(model, resolution=resolution, **options).get_flop_counts()
    # The first of the layers is as good as any; "attn" in a Veca, "attention" in a DINOv3.
    path = next(name for name in counts if name.rpartition(".")[2] in ("attn", "attention"))
    return sum(counts[path].values())


def polar_flops(rows: int, cols: int) -> int:
    """Polar Express of one matrix: XXᵀ, A² and the product with X, in every iteration."""
    short, long = sorted((rows, cols))
    return len(POLAR_COEFFICIENTS) * (4 * short * short * long + 2 * short**3)


def polar_flops_per_rank(student: nn.Module, *, num_ranks: int) -> int:
    """Polar Express on the rank that has the most to do: the others wait for it."""
    shapes = [matrix.shape for _, matrix in split_parameters(student).matrices]
    loads = [0] * num_ranks
    for shape, owner in zip(shapes, owners(shapes, num_ranks=num_ranks), strict=True):
        loads[owner] += polar_flops(*shape)
    return max(loads)


def saved_bytes(size: Size, *, resolution: int, checkpointing: bool) -> SavedBytes:
    """What a student keeps at its full budget; the loss in float32 is part of it."""
    # Two batch sizes tell what grows with the batch. Not 1, where an expanded tensor is no copy.
    two, three = (_saved(size, resolution, batch, checkpointing) for batch in (2, 3))
    return SavedBytes(fixed=max(0, 3 * two - 2 * three), per_image=three - two)


def _saved(size: Size, resolution: int, batch: int, checkpointing: bool) -> int:
    with torch.device("meta"):
        student = Veca(**size.as_dict())
    student.activation_checkpointing = checkpointing
    with FakeTensorMode(allow_non_fake_inputs=True):
        # The meta device has no autocast. A CPU's has the same dtypes as a GPU's for all that happens here.
        student.to_empty(device="cpu")
        own = {parameter.untyped_storage()._cdata for parameter in student.parameters()}
        kept: dict[int, Tensor] = {}

        def keep(tensor: Tensor) -> Tensor:
            kept[tensor.untyped_storage()._cdata] = tensor  # views of one tensor count once
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                features = student(torch.empty(batch, 3, resolution, resolution))
            targets = torch.empty_like(features.patches, dtype=torch.float32)
            loss = nn.functional.mse_loss(features.patches.float(), targets)
        assert loss.requires_grad  # the graph, and so every saved tensor, is alive here
        return sum(tensor.untyped_storage().nbytes() for key, tensor in kept.items() if key not in own)


def _count(model: nn.Module, *, resolution: int, **options: int) -> FlopCounterMode:
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), counter:
        model(torch.empty(1, 3, resolution, resolution, device="meta"), **options)
    return counter


def mean_over_budgets(flops: dict[int, int], weights: dict[int, float]) -> float:
    return sum(weight * flops[budget] for budget, weight in weights.items()) / sum(weights.values())
