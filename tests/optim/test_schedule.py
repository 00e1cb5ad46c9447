"""The learning rate against the formula, alone and through LambdaLR."""

import numpy as np
import pytest
import torch

from veca.optim import make_optimizer, warmup_cosine, warmup_cosine_factor

STAGE_1 = {"lr": 4e-4, "min_lr": 5e-5, "warmup_steps": 20, "max_steps": 120}
POINTS = (0, 1, 10, 19, 20, 21, 45, 70, 119, 120)


def expected(step, *, lr, min_lr, warmup_steps, max_steps):
    """The curve drawn once, all steps at a time."""
    warmup = np.linspace(min_lr, lr, warmup_steps + 1)[:-1]
    angles = np.linspace(0, np.pi, max_steps - warmup_steps + 1)
    return np.concatenate([warmup, min_lr + (lr - min_lr) * np.cos(angles / 2) ** 2])[step]


@pytest.mark.parametrize("step", POINTS)
def test_curve(step):
    assert warmup_cosine(step, **STAGE_1) == pytest.approx(expected(step, **STAGE_1), rel=1e-12)


def test_landmarks():
    assert warmup_cosine(0, **STAGE_1) == 5e-5
    assert warmup_cosine(20, **STAGE_1) == 4e-4
    assert warmup_cosine(120, **STAGE_1) == pytest.approx(5e-5)
    assert warmup_cosine(10_000, **STAGE_1) == pytest.approx(5e-5)
    assert warmup_cosine(0, **STAGE_1 | {"warmup_steps": 0}) == 4e-4


def test_a_late_decay_leaves_the_steps_before_it_as_they_are():
    late = STAGE_1 | {"decay_steps": 40}
    assert [warmup_cosine(step, **late) for step in (0, 20, 60, 80)] == [5e-5, 4e-4, 4e-4, 4e-4]
    assert warmup_cosine(100, **late) == pytest.approx((4e-4 + 5e-5) / 2)
    assert warmup_cosine(120, **late) == pytest.approx(5e-5)
    longer = [warmup_cosine(step, **late | {"max_steps": 500}) for step in range(81)]
    assert longer == [warmup_cosine(step, **late) for step in range(81)]
    whole = STAGE_1 | {"decay_steps": 1000}  # longer than the run: all of it after the warmup
    assert [warmup_cosine(step, **whole) for step in POINTS] == [warmup_cosine(s, **STAGE_1) for s in POINTS]


def test_both_groups_follow_the_curve(make_split):
    optimizer = make_optimizer(make_split(), lr=STAGE_1["lr"], weight_decay=0.015, backend="veca")
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, warmup_cosine_factor(**STAGE_1))
    for step in range(121):
        if step in POINTS:
            rates = [group["lr"] for group in optimizer.param_groups]
            assert rates == pytest.approx([expected(step, **STAGE_1)] * 2, rel=1e-12)
        optimizer.step()
        scheduler.step()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lr": 0.0, "min_lr": 0.0}, r"lr must be positive and finite; got 0.0"),
        ({"lr": float("nan")}, r"lr must be positive and finite; got nan"),
        ({"min_lr": 5e-4}, r"min_lr must lie between 0 and lr \(0.0004\); got 0.0005"),
        ({"min_lr": -1.0}, r"min_lr must .* got -1.0"),
        ({"warmup_steps": 120}, r"warmup_steps must .* less than max_steps \(120\); got 120. Try 12"),
        ({"warmup_steps": -1}, r"warmup_steps must .* got -1"),
        ({"decay_steps": 0}, r"decay_steps must be at least 1, or null.* got 0"),
        ({"max_steps": 0, "warmup_steps": 0}, r"max_steps must be at least 1; got 0"),
    ],
)
def test_bad_numbers(change, message):
    with pytest.raises(ValueError, match=message):
        warmup_cosine(0, **STAGE_1 | change)
    with pytest.raises(ValueError, match=message):
        warmup_cosine_factor(**STAGE_1 | change)


def test_all_bad_numbers_are_reported_at_once():
    with pytest.raises(ValueError, match=r"(?s)lr must be.*max_steps must be.*warmup_steps must be"):
        warmup_cosine_factor(lr=-1.0, min_lr=0.0, warmup_steps=-5, max_steps=-3)
