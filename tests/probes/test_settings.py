"""Budgets and resolutions from lists and from the command line."""

import pytest

from veca.model import SIZES
from veca.probes.settings import Numbers, choose_grid

SIZE = SIZES["tiny"]


@pytest.mark.parametrize(
    ("given", "numbers"),
    [([8, 64], [8, 64]), ("8,64", [8, 64]), (" 8, 64 ", [8, 64]), ("[64,8,64]", [64, 8]), ("16", [16])],
)
def test_numbers(given: Numbers, numbers: list[int]) -> None:
    assert choose_grid(SIZE, budgets=given, resolutions=None).budgets == numbers


def test_defaults() -> None:
    assert choose_grid(SIZE, budgets=None, resolutions=None) == ([8, 64], [256])


@pytest.mark.parametrize("given", ["8;64", "", "8,", "small", []])
def test_not_numbers(given: Numbers) -> None:
    with pytest.raises(
        ValueError, match="budgets must be whole numbers with commas between them, as in 8,64"
    ):
        choose_grid(SIZE, budgets=given, resolutions=None)


def test_all_problems_at_once() -> None:
    with pytest.raises(ValueError) as error:
        choose_grid(SIZE, budgets="8,12", resolutions="250,256,-1")
    assert str(error.value).splitlines() == [
        "budgets: 12 is not a budget of this model; its budgets are 8, 16, 24, 32, 40, 48, 56, 64.",
        "resolutions: 250 is not a multiple of 16. Try 256.",
        "resolutions: -1 is not a multiple of 16. Try 16.",
    ]
