"""The behaviour all teachers share, on a network simple enough to compute by hand."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from veca.data.views import MEAN, STD
from veca.teachers import Teacher
from veca.teachers.base import (
    IMAGENET,
    Encoding,
    MicroBatch,
    Normalisation,
    resample,
)


class MeanTeacher(Teacher):
    """Its features are the mean of each cell of `cell` pixels; counts its passes."""

    def __init__(self, *, cell: int = 16, micro_batch: MicroBatch = None) -> None:
        super().__init__(
            nn.Conv2d(3, 4, cell, cell), width=4, normalisation=IMAGENET, micro_batch=micro_batch
        )
        self.cell = cell
        self.passes: list[int] = []

    def input_size(self, height: int, width: int) -> tuple[int, int]:
        return height // 16 * 16, width // 16 * 16

    def encode(self, pixels: Tensor) -> Encoding:
        self.passes.append(len(pixels))
        patches = self.model(pixels)
        return Encoding(patches.mean(dim=(2, 3)), patches)

    def _identity(self) -> dict[str, Any]:
        return {"model_type": "mean", "cell": self.cell}


def test_forward_when_called_then_targets_lie_row_major_on_the_student_grid(images: Tensor) -> None:
    teacher = MeanTeacher()
    targets = teacher(images)
    assert targets.cls.shape == (3, 4)
    assert targets.patches.shape == (3, 15, 4)
    # Row 2, column 3 of the 3×5 grid, one convolution written out.
    cell = images[:, :, 32:48, 48:64].double()
    mean, std = (torch.tensor(v, dtype=torch.float64).view(3, 1, 1) for v in (MEAN, STD))
    weight, bias = teacher.model.weight.double(), teacher.model.bias.double()
    by_hand = torch.einsum("bchw,dchw->bd", (cell / 255 - mean) / std, weight) + bias
    torch.testing.assert_close(targets.patches[:, 2 * 5 + 3].double(), by_hand, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("cell", [8, 24])
def test_forward_when_the_network_has_another_grid_then_targets_have_the_students(cell: int) -> None:
    images = torch.randint(0, 256, (1, 3, 96, 48), dtype=torch.uint8)
    assert MeanTeacher(cell=cell)(images).patches.shape == (1, 18, 4)


def test_resample_when_the_grid_halves_then_a_linear_ramp_stays_one() -> None:
    ramp = torch.arange(16.0).expand(1, 1, 16, 16)
    half = resample(ramp, (8, 8))
    torch.testing.assert_close(half[0, 0, 0, 1:-1], torch.arange(2.5, 14, 2.0))
    assert resample(ramp, (16, 16)) is ramp


def test_forward_when_micro_batched_then_targets_are_equal(images: Tensor) -> None:
    whole, parts = MeanTeacher(), MeanTeacher(micro_batch=2)
    parts.load_state_dict(whole.state_dict())
    torch.testing.assert_close(parts(images), whole(images))
    assert whole.passes == [3]
    assert parts.passes == [2, 1]


@pytest.mark.parametrize(
    ("height", "width", "expected"),
    [
        (16, 16, [5]),  # far below the smallest entry
        (32, 32, [5]),
        (16, 64, [5]),  # the same pixels in another shape
        (32, 48, [4, 1]),
        (64, 64, [4, 1]),
        (128, 64, [2, 2, 1]),  # past the largest entry: half, for twice the area
        (256, 256, [1] * 5),  # and never less than one
    ],
)
def test_forward_when_micro_batch_is_per_resolution_then_area_decides(
    height: int, width: int, expected: list[int]
) -> None:
    teacher = MeanTeacher(micro_batch={64: 4, 32: 5})
    teacher(torch.zeros(5, 3, height, width, dtype=torch.uint8))
    assert teacher.passes == expected


@pytest.mark.parametrize("micro_batch", [0, -1, {}, {256: 0}, {0: 4}])
def test_init_when_micro_batch_is_not_positive_then_says_so(micro_batch: MicroBatch) -> None:
    with pytest.raises(ValueError, match="micro_batch must be a positive number"):
        MeanTeacher(micro_batch=micro_batch)


def test_teacher_when_trained_then_stays_frozen_and_in_eval_mode(images: Tensor) -> None:
    teacher = MeanTeacher()
    holder = nn.Sequential(teacher).train()
    assert not any(module.training for module in teacher.modules())
    assert not any(parameter.requires_grad for parameter in holder.parameters())
    assert not teacher(images).patches.requires_grad


def test_targets_when_used_in_a_loss_then_backward_reaches_the_student_only(images: Tensor) -> None:
    teacher = MeanTeacher()
    student = nn.Linear(4, 4)
    targets = teacher(images)
    (student(targets.patches) * targets.patches).sum().backward()  # saves the targets for backward
    assert student.weight.grad is not None
    assert all(parameter.grad is None for parameter in teacher.parameters())


def test_forward_when_autocast_then_answers_in_float32_close_to_full_precision(images: Tensor) -> None:
    teacher = MeanTeacher()
    full = teacher(images)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = teacher(images)
    assert mixed.cls.dtype == mixed.patches.dtype == torch.float32
    assert not torch.equal(mixed.patches, full.patches)
    torch.testing.assert_close(mixed, full, rtol=0.05, atol=0.05)


def test_state_dict_when_saved_then_holds_the_weights_alone() -> None:
    assert set(MeanTeacher().state_dict()) == {"model.weight", "model.bias"}


def test_fingerprint_when_anything_that_decides_targets_changes_then_changes() -> None:
    first, second = MeanTeacher(), MeanTeacher()
    second.load_state_dict(first.state_dict())
    assert first.fingerprint() == second.fingerprint()
    assert len(first.fingerprint()) == 16

    seen = {first.fingerprint()}
    second.model.weight[0, 0, 0, 0] += 1e-6
    seen.add(second.fingerprint())
    second.load_state_dict(first.state_dict())
    second.normalisation = Normalisation((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
    seen.add(second.fingerprint())
    second.normalisation, second.cell = IMAGENET, 17
    seen.add(second.fingerprint())
    seen.add(first.to(torch.bfloat16).fingerprint())
    assert len(seen) == 5


def test_fingerprint_when_micro_batch_differs_then_does_not_change() -> None:
    first, second = MeanTeacher(), MeanTeacher(micro_batch=1)
    second.load_state_dict(first.state_dict())
    assert first.fingerprint() == second.fingerprint()


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.zeros(1, 3, 32, 32), "takes uint8 images"),
        (torch.zeros(3, 32, 32, dtype=torch.uint8), r"shape \(B, 3, H, W\)"),
        (torch.zeros(1, 1, 32, 32, dtype=torch.uint8), r"shape \(B, 3, H, W\)"),
        (torch.zeros(0, 3, 32, 32, dtype=torch.uint8), "none of them 0"),
        (torch.zeros(1, 3, 40, 30, dtype=torch.uint8), "multiples of 16; got 40×30. Resize to 32×32"),
    ],
)
def test_forward_when_images_are_wrong_then_says_what_to_do(images: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MeanTeacher()(images)


def test_patch_projection_when_a_teacher_has_none_then_none() -> None:
    assert MeanTeacher().patch_projection() is None
