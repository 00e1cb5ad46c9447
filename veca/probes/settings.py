"""The budgets and resolutions a probe runs: given as lists from Python, as `8,64` on the command line."""

import math
from typing import NamedTuple

from veca.model import Size

Numbers = list[int] | str | None
DEFAULT_RESOLUTION = 256
_RESIZE_STEP = 8  # the validation view resizes to 9/8 of the resolution


class Grid(NamedTuple):
    """Every budget is run at every resolution."""

    budgets: list[int]
    resolutions: list[int]


def choose_grid(size: Size, *, budgets: Numbers, resolutions: Numbers) -> Grid:
    """The grid asked for, or smallest and full budget at 256 pixels; every problem is reported at once."""
    problems: list[str] = []
    chosen = Grid(
        _numbers("budgets", budgets, problems) or sorted({size.budgets[0], size.budgets[-1]}),
        _numbers("resolutions", resolutions, problems) or [DEFAULT_RESOLUTION],
    )
    known = ", ".join(map(str, size.budgets))
    problems += [
        f"budgets: {budget} is not a budget of this model; its budgets are {known}."
        for budget in chosen.budgets
        if budget not in size.budgets
    ]
    step = math.lcm(size.patch_size, _RESIZE_STEP)
    problems += [
        f"resolutions: {side} is not a multiple of {step}. Try {max(step, round(side / step) * step)}."
        for side in chosen.resolutions
        if side < 1 or side % step
    ]
    if problems:
        raise ValueError("\n".join(problems))
    return chosen


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
