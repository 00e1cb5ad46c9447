"""What a recipe says of optimization: the learning rate against its formula, and numbers out of place."""

import numpy as np
import pytest

from veca import create_model
from veca.optim.settings import Optimization

STAGE_1 = {"lr": 4e-4, "min_lr": 5e-5, "warmup_steps": 20, "max_steps": 120}
POINTS = (0, 1, 10, 19, 20, 21, 45, 70, 119, 120)


def warmup_cosine(step, *, warmup_steps, max_steps, **rates):
    return optimization(**rates).rate(step, warmup=warmup_steps, max_steps=max_steps)


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


def optimization(**changes):
    given = {"lr": 4e-4, "min_lr": 5e-5, "weight_decay": 0.015, "warmup_steps": 20, "backend": "veca"}
    return Optimization(**given | changes)


def test_both_groups_follow_the_curve():
    student = create_model("tiny")
    optimizer, scheduler = optimization().make(student, max_steps=120, steps_per_epoch=1)
    for step in range(121):
        if step in POINTS:
            rates = [group["lr"] for group in optimizer.param_groups]
            assert rates == pytest.approx([expected(step, **STAGE_1)] * 2, rel=1e-12)
        optimizer.step()
        scheduler.step()


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"lr": 0.0}, "lr = 0.0: must be above 0."),
        ({"lr": float("nan")}, "lr = nan: must be above 0."),
        ({"min_lr": 5e-4}, "min_lr = 0.0005: must lie between 0 and lr = 0.0004."),
        ({"min_lr": -1.0}, "min_lr = -1.0: must lie between 0 and lr = 0.0004."),
        ({"weight_decay": -1.0}, "weight_decay = -1.0: must be a number ≥ 0."),
        ({"decay_steps": 0}, "decay_steps = 0: must be at least 1, or null."),
        ({"momentum": 1.0}, "momentum = 1.0: must be at least 0 and less than 1. Try 0.95."),
        ({"betas": (0.9, 2.0)}, "betas[1] = 2.0: must be at least 0 and less than 1. Try 0.95."),
    ],
)
def test_bad_numbers(change, problem):
    assert optimization(**change).problems() == [problem]


def test_all_bad_numbers_are_reported_at_once():
    assert optimization().problems() == []
    assert len(optimization(lr=-1.0, momentum=-1.0, beta2=2.0, warmup_epochs=1.0).problems()) == 4


@pytest.mark.parametrize(("steps", "hint"), [(120, "got 120. Try 12"), (-1, "got -1")])
def test_a_warmup_must_fit_the_run(steps, hint):
    with pytest.raises(ValueError, match=rf"warmup_steps must .* of the run \(120\); {hint}"):
        optimization(warmup_steps=steps).make(create_model("tiny"), max_steps=120, steps_per_epoch=1)
