"""The objective against a slow loop and torch's own cosine."""

import math

import pytest
import torch
import torch.nn.functional as F

from veca.train.losses import cosine_distance, distillation_loss
from veca.types import Features, Targets


def make_pair(*, batch=3, patches=6, width=5, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    features = Features(
        cls=draw(batch, width),
        patches=draw(batch, patches, width),
        cores=draw(batch, 8, width),
        grid=(2, patches // 2),
    )
    return features, Targets(cls=draw(batch, width), patches=draw(batch, patches, width))


def slow_cosine(a, b):
    dot = sum(x * y for x, y in zip(a, b, strict=True))
    norm_a = max(math.sqrt(sum(x * x for x in a)), 1e-6)
    norm_b = max(math.sqrt(sum(y * y for y in b)), 1e-6)
    return dot / (norm_a * norm_b)


def slow_losses(features, targets, *, dense_weight, mse_weight):
    batch, num_patches, width = features.patches.shape
    cls = cosine = mse = 0.0
    for b in range(batch):
        cls += (1 - slow_cosine(features.cls[b].tolist(), targets.cls[b].tolist())) / batch
        for n in range(num_patches):
            student, teacher = features.patches[b, n].tolist(), targets.patches[b, n].tolist()
            cosine += (1 - slow_cosine(student, teacher)) / (batch * num_patches)
            squares = sum((x - y) ** 2 for x, y in zip(student, teacher, strict=True))
            mse += squares / (batch * num_patches * width)
    dense = cosine + mse_weight * mse
    return cls + dense_weight * dense, cls, dense, cosine, mse


@pytest.mark.parametrize(("dense_weight", "mse_weight"), [(1.0, 1.0), (0.5, 2.0), (0.0, 1.0), (1.0, 0.0)])
def test_equals_a_slow_loop(dense_weight, mse_weight):
    features, targets = make_pair()
    losses = distillation_loss(features, targets, dense_weight=dense_weight, mse_weight=mse_weight)
    expected = slow_losses(features, targets, dense_weight=dense_weight, mse_weight=mse_weight)
    assert [value.item() for value in losses] == pytest.approx(expected, rel=1e-12)
    assert all(value.dtype == torch.float64 for value in losses)


def test_defaults_weigh_all_three_parts_alike():
    losses = distillation_loss(*make_pair())
    torch.testing.assert_close(
        losses.loss, losses.loss_cls + losses.loss_dense_cosine + losses.loss_dense_mse
    )


def test_cosine_and_its_gradient_equal_torch():
    features, targets = make_pair()
    ours = features.patches.clone().requires_grad_()
    theirs = features.patches.clone().requires_grad_()
    distance = cosine_distance(ours, targets.patches)
    expected = (1 - F.cosine_similarity(theirs, targets.patches, dim=-1, eps=1e-6)).mean()
    torch.testing.assert_close(distance, expected, rtol=1e-12, atol=0)
    distance.backward()
    expected.backward()
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(dtype):
    features, targets = make_pair(dtype=dtype, width=64)
    widened = Features(*(tensor.float() for tensor in features[:3]), grid=features.grid)
    expected = distillation_loss(widened, Targets(*(tensor.float() for tensor in targets)))
    for losses in (distillation_loss(features, targets), autocast_loss(features, targets)):
        assert all(torch.equal(value, other) for value, other in zip(losses, expected, strict=True))
        assert losses.loss.dtype == torch.float32


def autocast_loss(features, targets):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return distillation_loss(features, targets)


def test_perfect_and_opposite_students():
    _, targets = make_pair()

    def student(sign):
        return Features(sign * targets.cls, sign * targets.patches, targets.patches[:, :1], (2, 3))

    perfect, opposite = distillation_loss(student(1), targets), distillation_loss(student(-1), targets)
    torch.testing.assert_close(perfect.loss, torch.zeros_like(perfect.loss), rtol=0, atol=1e-12)
    torch.testing.assert_close(opposite.loss_cls, torch.full_like(opposite.loss_cls, 2.0))


def test_a_zero_vector_has_cosine_zero_and_a_finite_gradient():
    student = torch.zeros(2, 4, requires_grad=True)
    distance = cosine_distance(student, torch.ones(2, 4))
    distance.backward()
    assert distance.item() == 1.0
    assert torch.isfinite(student.grad).all()


@pytest.mark.parametrize(
    ("size", "message"),
    [
        ({"width": 7}, r"patches: the width must agree; got 5 from the student and 7 from the teacher"),
        ({"patches": 8}, r"patches: the number of patches must agree; got 6 .* and 8"),
        ({"batch": 1}, r"cls: the batch must agree; got 3 .* and 1"),
    ],
)
def test_mismatch_is_an_error_and_never_broadcast(size, message):
    features, _ = make_pair()
    _, targets = make_pair(**size)
    with pytest.raises(ValueError, match=message):
        distillation_loss(features, targets)


def test_all_mismatches_are_reported_at_once_with_a_way_out():
    features, _ = make_pair()
    _, targets = make_pair(width=7, patches=8)
    with pytest.raises(ValueError, match=r"(?s)cls: the width.*the number of.*patches: the width.*out_width"):
        distillation_loss(features, targets)


def test_a_missing_axis_is_an_error():
    features, targets = make_pair()
    with pytest.raises(ValueError, match=r"cls must have the axes \(batch, width\)"):
        distillation_loss(features, targets._replace(cls=targets.patches))
