"""What a probe runs, from Python lists or from the command line: budgets, resolutions, names."""

import math
from typing import NamedTuple

from veca.backbones import DENSE_TASKS, Task
from veca.backbones.models import ProbedModel

Numbers = list[int] | str | None
Names = list[str] | str | None
_RESIZE_STEP = 8  # the view of a classification probe resizes to 9/8 of the resolution


class Grid(NamedTuple):
    """Every budget is run at every resolution; the budget of a model without budgets is None."""

    budgets: list[int | None]
    resolutions: list[int]


def choose_grid(model: ProbedModel, *, task: Task, budgets: Numbers, resolutions: Numbers) -> Grid:
    """The grid asked for, or smallest and full budget at the model's resolution; all problems at once."""
    problems: list[str] = []
    asked = _numbers("budgets", budgets, problems)
    sides = _numbers("resolutions", resolutions, problems) or [model.default_resolution(task)]
    known = ", ".join(map(str, model.budgets)) or "none: its compute is fixed"
    problems += [
        f"budgets: {budget} is not a budget of {model.name}; its budgets are {known}."
        for budget in asked
        if budget not in model.budgets
    ]
    step = side_step(model, task=task)
    problems += [
        f"resolutions: {side} is not a multiple of {step}. Try {max(step, round(side / step) * step)}."
        for side in sides
        if side < 1 or side % step
    ]
    if problems:
        raise ValueError("\n".join(problems))
    ends = sorted({model.budgets[0], model.budgets[-1]}) if model.budgets else [None]
    return Grid([*asked] or [*ends], sides)


def fitting_grid(model: ProbedModel, asked: Grid, *, task: Task) -> Grid:
    """The part of a grid that another model can run: its own budgets, and resolutions its patches divide."""
    step = side_step(model, task=task)
    budgets = [budget for budget in asked.budgets if budget in model.budgets]
    full = model.budgets[-1] if model.budgets else None
    sides = [side for side in asked.resolutions if side % step == 0]
    return Grid([*budgets] or [full], sides or [model.default_resolution(task)])


def side_step(model: ProbedModel, *, task: Task) -> int:
    """Resolutions are multiples of this."""
    return model.patch_size if task in DENSE_TASKS else math.lcm(model.patch_size, _RESIZE_STEP)


def split_names(value: Names) -> list[str]:
    """`a,b` or a list, each name once and in order."""
    words = value.split(",") if isinstance(value, str) else value or []
    return list(dict.fromkeys(word.strip() for word in words if word.strip()))


def _numbers(key: str, value: Numbers, problems: list[str]) -> list[int]:
    """The numbers, each once and in order; empty for None or when `problems` got a line."""
    if value is None:
        return []
    words = value.strip("[] ").split(",") if isinstance(value, str) else value
    try:
        numbers = [int(word) for word in words]
    except ValueError:
        numbers = []
    if not numbers:
        problems.append(f"{key} must be whole numbers with commas between them, as in 8,64; got {value!r}.")
    return list(dict.fromkeys(numbers))
