"""Each metric on planted cases whose answer is known beforehand."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from veca.figures import metrics


def blob(*, sigma: tuple[float, float], side: int = 64, angle: float = 0.0, centre: float = 0.0) -> Tensor:
    """A Gaussian on a grid, turned by `angle`: (1, side²)."""
    axis = torch.arange(side).double() - (side - 1) / 2 - centre
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    u = x * math.cos(angle) + y * math.sin(angle)
    v = y * math.cos(angle) - x * math.sin(angle)
    return torch.exp(-((u / sigma[0]) ** 2 + (v / sigma[1]) ** 2) / 2).reshape(1, -1)


def test_rank_counts_directions() -> None:
    assert metrics.effective_rank(torch.ones(8, 5) * torch.arange(1, 9)[:, None]) == pytest.approx(1)
    assert metrics.effective_rank(3 * torch.eye(8)) == pytest.approx(8)
    assert metrics.effective_rank(torch.eye(4).repeat(2, 1)) == pytest.approx(4)  # each row twice
    # Two directions with singular values √3 and 1 (three rows and one): exp of their entropy.
    shares = np.array([3**0.5, 1]) / (3**0.5 + 1)
    rows = torch.eye(2)[[0, 0, 0, 1]]
    assert metrics.effective_rank(rows) == pytest.approx(np.exp(-(shares * np.log(shares)).sum()))


def test_pairwise_similarity_equals_a_loop() -> None:
    rows = torch.randn(7, 5, generator=torch.Generator().manual_seed(0))
    pairs = [torch.cosine_similarity(a, b, dim=0) for i, a in enumerate(rows) for b in rows[:i]]
    assert metrics.pairwise_similarity(rows) == pytest.approx(float(torch.stack(pairs).mean()), abs=1e-6)
    assert metrics.pairwise_similarity(torch.eye(6)) == pytest.approx(0, abs=1e-12)
    assert metrics.pairwise_similarity(torch.ones(6, 3)) == pytest.approx(1)
    assert metrics.pairwise_similarity(torch.ones(1, 3)) == 1


def test_agreement_is_the_correlation_where_it_counts() -> None:
    generator = torch.Generator().manual_seed(1)
    maps, others = torch.rand(3, 50, generator=generator), torch.rand(3, 50, generator=generator)
    valid = torch.arange(50) < 30
    expected = np.mean([np.corrcoef(a[:30], b[:30])[0, 1] for a, b in zip(maps, others, strict=True)])
    assert metrics.map_agreement(maps, others, valid) == pytest.approx(expected, abs=1e-6)
    assert metrics.map_agreement(maps, 5 * maps + 2) == pytest.approx(1)
    assert metrics.map_agreement(maps, 1 - maps) == pytest.approx(-1)
    assert metrics.map_agreement(torch.ones(3, 50), maps) == 0


def test_displacement_is_in_sides_of_the_image() -> None:
    places = torch.tensor([[-1.0, 0.0], [0.0, 0.0]])
    moved = torch.tensor([[1.0, 0.0], [0.3, 0.4]])  # a whole side, and a quarter
    assert metrics.displacement(places, moved) == pytest.approx((1 + 0.25) / 2)


@pytest.mark.parametrize("angle", [0.0, 0.4, math.pi / 4])
@pytest.mark.parametrize("ratio", [1.0, 0.5, 0.25])
def test_roundness_is_the_ratio_of_axes(ratio: float, angle: float) -> None:
    found = metrics.roundness(blob(sigma=(12, 12 * ratio), angle=angle), (64, 64))
    assert found == pytest.approx(ratio, abs=0.02)


def test_roundness_of_planted_regions() -> None:
    bar = torch.zeros(1, 12 * 20)
    bar.reshape(12, 20)[5, 3:13] = 1  # 1 × 10 patches
    assert metrics.roundness(bar, (12, 20)) == pytest.approx(0.1)
    dot = torch.zeros(1, 25)
    dot[0, 7] = 1
    assert metrics.roundness(dot, (5, 5)) == pytest.approx(1)
    assert metrics.roundness(torch.ones(1, 36), (6, 6)) == pytest.approx(1)  # ties stay together
    both = torch.cat((bar, torch.ones(1, 240)))
    assert metrics.roundness(both, (12, 20)) == pytest.approx((0.1 + 12 / 20) / 2)


def test_a_region_holds_half_of_the_mass() -> None:
    maps = torch.tensor([[0.3, 0.1, 0.25, 0.2, 0.15], [1.0, 1.0, 1.0, 1.0, 1.0]])
    assert metrics.regions(maps).tolist() == [[True, False, True, False, False], [True] * 5]


def test_extent_is_the_share_of_patches_in_use() -> None:
    maps = torch.zeros(2, 40)
    maps[0, :10] = 0.2
    maps[1] = 3
    assert metrics.extent(maps[:1]) == pytest.approx(0.25)
    assert metrics.extent(maps) == pytest.approx((0.25 + 1) / 2)


def test_a_patch_belongs_to_the_map_that_is_strongest_there() -> None:
    strong, weak = torch.tensor([8.0, 8.0, 4.0]), torch.tensor([0.1, 0.1, 0.3])
    assert metrics.assign(torch.stack((strong, weak))).tolist() == [0, 0, 1]


def test_information_of_planted_tables() -> None:
    perfect = np.array([[10, 0, 0], [0, 5, 0], [0, 0, 20], [0, 0, 5]])
    assert metrics.explained(perfect) == pytest.approx(1)
    assert metrics.purity(perfect) == 1
    unrelated = np.outer([1, 2, 3], [10, 30])
    assert metrics.explained(unrelated) == pytest.approx(0, abs=1e-12)
    assert metrics.purity(unrelated) == pytest.approx(0.75)
    # Core 0 says "a or b", core 1 says "c or d": one of two bits.
    assert metrics.explained(np.array([[7, 7, 0, 0], [0, 0, 7, 7]])) == pytest.approx(0.5)
    assert metrics.explained(np.array([[4, 0], [2, 0]])) == 1  # nothing to tell


def test_a_contingency_counts_pairs() -> None:
    table = metrics.contingency(np.array([0, 2, 2, 2]), np.array([1, 0, 1, 1]), shape=(3, 2))
    assert table.tolist() == [[0, 1], [0, 0], [1, 2]]


def test_errors_are_those_of_the_mean() -> None:
    assert metrics.mean_and_error([1.0, 2.0, 3.0]) == (2.0, pytest.approx(1 / 3**0.5))
    assert metrics.mean_and_error([4.0]) == (4.0, None)
    rng = np.random.default_rng(0)
    values = rng.normal(10, 2, size=(200, 1))
    tables = np.concatenate((1000 * values, np.full((200, 1), 1000)), axis=1).astype(np.int64)
    found = metrics.bootstrap(tables, lambda t: float(t[0] / t[1]), seed=0, resamples=500)
    assert found.value == pytest.approx(values.mean(), abs=1e-3)
    assert found.error == pytest.approx(values.std() / 200**0.5, rel=0.15)
