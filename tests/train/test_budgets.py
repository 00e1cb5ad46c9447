import math
from collections import Counter

import pytest
import torch
from lightning.pytorch.strategies import FSDPStrategy, SingleDeviceStrategy

from veca import Veca
from veca.train.budgets import BLOCK, BudgetSchedule, StepPlan
from veca.train.ddp import BroadcastBudgetStrategy, core_parameters, share_by

WEIGHTS = {8: 1.0, 16: 1.0, 24: 2.0, 32: 2.0, 40: 3.0, 48: 3.0, 56: 4.0, 64: 4.0}


def plan_over(schedule: BudgetSchedule, log: list[torch.Tensor]) -> StepPlan:
    def share(values: torch.Tensor) -> torch.Tensor:
        log.append(values)
        return values

    return StepPlan(budget=schedule.budget, resolution=lambda step: 256 + step % 2, share=share)


def test_the_histogram_matches_its_weights() -> None:
    schedule, draws = BudgetSchedule(WEIGHTS), 8000
    counts = Counter(schedule.budget(step) for step in range(draws))
    expected = {budget: draws * weight / 20 for budget, weight in WEIGHTS.items()}
    chi2 = sum((counts[budget] - mean) ** 2 / mean for budget, mean in expected.items())
    assert chi2 < 24.3  # 99.9 % quantile at 7 degrees of freedom


def test_a_draw_is_a_function_of_seed_and_step() -> None:
    one, two = BudgetSchedule(WEIGHTS, seed=1), BudgetSchedule(WEIGHTS, seed=2)
    forward = [one.budget(step) for step in range(50)]
    assert [one.budget(step) for step in reversed(range(50))] == forward[::-1]
    assert forward != [two.budget(step) for step in range(50)]


def test_a_weight_of_zero_is_never_drawn() -> None:
    schedule = BudgetSchedule({8: 0.0, 64: 1.0})
    assert {schedule.budget(step) for step in range(200)} == {64}


def test_every_problem_is_named_at_once() -> None:
    problems = BudgetSchedule({12: 1.0, 8: -1.0, 16: math.nan}).problems((8, 16, 24))
    assert problems == [
        "weights: budget 12 is not one of 8, 16, 24.",
        "weights[8] = -1.0: must be a number ≥ 0.",
        "weights[16] = nan: must be a number ≥ 0.",
    ]
    assert "at least one must be above 0" in BudgetSchedule({8: 0.0}).problems((8,))[0]


def test_the_plan_is_shared_in_blocks_ahead_of_need() -> None:
    log: list[torch.Tensor] = []
    schedule = BudgetSchedule(WEIGHTS)
    plan = plan_over(schedule, log)
    for step in range(2 * BLOCK + 10):
        plan.reach(step)
        shared = len(log)
        # What a loader prefetches is known already: no collective outside `reach`.
        assert plan.budget(step + BLOCK) == schedule.budget(step + BLOCK)
        assert plan.resolution(step + 17) == 256 + (step + 17) % 2
        assert len(log) == shared
    assert len(log) == 4
    assert all(block.shape == (2, BLOCK) for block in log)


def test_the_plan_of_the_main_process_wins() -> None:
    plan = StepPlan(budget=lambda step: 8, resolution=lambda step: 256, share=lambda values: values * 2)
    assert (plan.budget(3), plan.resolution(3)) == (16, 512)


def test_a_resumed_plan_starts_at_its_step() -> None:
    log: list[torch.Tensor] = []
    schedule = BudgetSchedule(WEIGHTS)
    plan = plan_over(schedule, log)
    step = 5 * BLOCK + 3
    assert plan.budget(step) == schedule.budget(step)
    assert len(log) == 2


def test_other_strategies_are_refused_with_a_way_out() -> None:
    with pytest.raises(ValueError, match=r"veca_ddp .* got FSDPStrategy.*--trainer.strategy veca_ddp"):
        share_by(FSDPStrategy())
    values = torch.arange(3)
    assert torch.equal(share_by(SingleDeviceStrategy())(values), values)
    assert torch.equal(share_by(BroadcastBudgetStrategy())(values), values)


def test_core_parameters_are_found_by_name(tiny_student: Veca) -> None:
    names = core_parameters(torch.nn.ModuleDict({"student": tiny_student}))
    expected = [f"student.cores.{part}.{n}" for part in ("tokens", "coordinates") for n in range(4)]
    assert list(names) == expected
