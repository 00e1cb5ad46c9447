"""Budgets and resolutions from lists and from the command line."""

import pytest

from tests.probes.fakes import FakeModel, planted
from veca.backbones import Grid, Numbers, Task, choose_grid, fitting_grid, split_names

MODEL = FakeModel("m", planted, 16, tuple(range(8, 65, 8)))
FIXED = FakeModel("peer", planted, 14)


@pytest.mark.parametrize(
    ("given", "numbers"),
    [([8, 64], [8, 64]), ("8,64", [8, 64]), (" 8, 64 ", [8, 64]), ("[64,8,64]", [64, 8]), ("16", [16])],
)
def test_numbers(given: Numbers, numbers: list[int]) -> None:
    assert choose_grid(MODEL, task="classify", budgets=given, resolutions=None).budgets == numbers


def test_defaults() -> None:
    assert choose_grid(MODEL, task="classify", budgets=None, resolutions=None) == ([8, 64], [16])


@pytest.mark.parametrize("given", ["8;64", "", "8,", "small", []])
def test_not_numbers(given: Numbers) -> None:
    with pytest.raises(
        ValueError, match="budgets must be whole numbers with commas between them, as in 8,64"
    ):
        choose_grid(MODEL, task="classify", budgets=given, resolutions=None)


def test_all_problems_at_once() -> None:
    with pytest.raises(ValueError) as error:
        choose_grid(MODEL, task="classify", budgets="8,12", resolutions="250,256,-1")
    assert str(error.value).splitlines() == [
        "budgets: 12 is not a budget of m; its budgets are 8, 16, 24, 32, 40, 48, 56, 64.",
        "resolutions: 250 is not a multiple of 16. Try 256.",
        "resolutions: -1 is not a multiple of 16. Try 16.",
    ]


def test_dense_probes_take_any_multiple_of_the_patch() -> None:
    tasks: tuple[Task, ...] = ("segment", "depth")
    for task in tasks:
        assert choose_grid(FIXED, task=task, budgets=None, resolutions="518") == ([None], [518])
    with pytest.raises(ValueError, match=r"resolutions: 518 is not a multiple of 56\. Try 504"):
        choose_grid(FIXED, task="classify", budgets=None, resolutions="518")
    with pytest.raises(
        ValueError, match="8 is not a budget of peer; its budgets are none: its compute is fixed"
    ):
        choose_grid(FIXED, task="segment", budgets="8", resolutions=None)


def test_another_model_runs_what_it_can() -> None:
    assert fitting_grid(FIXED, Grid([8, 64], [512, 518]), task="depth") == ([None], [518])
    assert fitting_grid(FIXED, Grid([8, 64], [512]), task="depth") == ([None], [16])
    assert fitting_grid(MODEL, Grid([8, 12], [512]), task="depth") == ([8], [512])


def test_names() -> None:
    assert split_names("a, b,a,") == ["a", "b"]
    assert split_names(["x:1", "y"]) == ["x:1", "y"]
    assert split_names(None) == []
