"""A few parameters for each algorithm, and gradients that depend on the step alone."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from veca.optim.combined import ParameterSplit

MATRIX_SHAPES = ((6, 10), (10, 6), (6, 10), (8, 8))
REST_SHAPES = ((6,), (1, 8, 5), (3, 2, 4, 4))


def random_split(seed: int = 0, dtype: torch.dtype = torch.float32) -> ParameterSplit:
    generator = torch.Generator().manual_seed(seed)

    def draw(shapes):
        return [
            (f"{i}", nn.Parameter(torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)))
            for i, shape in enumerate(shapes)
        ]

    return ParameterSplit(matrices=draw(MATRIX_SHAPES), rest=draw(REST_SHAPES))


def set_grads(split: ParameterSplit, step: int, *, without: tuple[int, ...] = ()) -> None:
    """Parameters whose position is listed in `without` get None; matrices come first."""
    generator = torch.Generator().manual_seed(100 + step)
    for index, (_, parameter) in enumerate([*split.matrices, *split.rest]):
        grad = torch.randn(parameter.shape, generator=generator, dtype=torch.float64).to(parameter.dtype)
        parameter.grad = None if index in without else grad


@pytest.fixture
def make_split() -> Callable[..., ParameterSplit]:
    return random_split


@pytest.fixture
def draw_grads() -> Callable[..., None]:
    return set_grads
