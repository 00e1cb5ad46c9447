"""Each metric on planted cases whose answer is known beforehand."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from veca.data.decode import Pixels
from veca.data.views import View, centre_view, render_pixels
from veca.figures import metrics
from veca.figures.metrics import match_maps, match_places, resize_maps, way_back


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


WIDTH, HEIGHT, SIDE = 108, 72, 64  # resized to 9/8 of 64 already: nothing is interpolated


def position_image() -> Pixels:
    """Red is x + 1 and green is y + 1; blue tells the picture from black fill."""
    x, y = np.meshgrid(np.arange(WIDTH), np.arange(HEIGHT))
    rgb = np.stack((x + 1, y + 1, np.full_like(x, 255)), axis=-1).astype(np.uint8)
    return Pixels(rgb, (WIDTH, HEIGHT))


VIEWS = [
    View(SIDE, WIDTH, HEIGHT, 30, 2, False, "Identity", 0.0),
    View(SIDE, WIDTH, HEIGHT, 10, 8, True, "Identity", 0.0),
    View(SIDE, WIDTH, HEIGHT, 22, 4, True, "TranslateX", 9.0),
    View(SIDE, WIDTH, HEIGHT, 22, 4, False, "TranslateY", -7.0),
    View(SIDE, WIDTH, HEIGHT, 25, 1, True, "ShearX", 0.4),
    View(SIDE, WIDTH, HEIGHT, 25, 1, False, "ShearY", -0.3),
    View(SIDE, WIDTH, HEIGHT, 18, 3, True, "Rotate", 33.0),
    View(SIDE, WIDTH, HEIGHT, 18, 3, False, "Rotate", -101.0),
]


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: f"{view.op}{'-flip' * view.flip}")
def test_every_pixel_is_led_back(view: View) -> None:
    plain = centre_view(size=(WIDTH, HEIGHT), resolution=SIDE)
    pixels = render_pixels(position_image(), view).astype(np.float64)
    y, x = np.nonzero(pixels[2] == 255)
    assert len(x) > 0.3 * SIDE**2
    came_from = np.stack((pixels[0][y, x] - 0.5 - plain.left, pixels[1][y, x] - 0.5 - plain.top), axis=1)
    centres = torch.from_numpy(np.stack((x + 0.5, y + 0.5), axis=1) / SIDE * 2 - 1)
    back = (match_places(centres, way_back(view, plain), side=SIDE).numpy() + 1) / 2 * SIDE
    assert np.abs(back - came_from).max() < 0.51  # nearest interpolation


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: f"{view.op}{'-flip' * view.flip}")
def test_maps_of_the_picture_itself_agree(view: View) -> None:
    """A map that is linear in the position can be compared exactly, and black fill does not count."""
    plain = centre_view(size=(WIDTH, HEIGHT), resolution=SIDE)
    grid = (SIDE, SIDE)  # a patch is a pixel
    image, seen = (render_pixels(position_image(), v).astype(np.float64) for v in (plain, view))
    maps = torch.from_numpy(image[:2].reshape(2, -1))
    expected, valid = match_maps(maps, way_back(view, plain), view=view, grid=grid)
    filled = torch.from_numpy((seen[2] == 0).ravel())
    assert valid.sum() > 0.1 * SIDE**2
    assert (valid & filled).sum() <= 0.02 * SIDE**2  # rounding, along the edge of the fill
    valid = valid & ~filled
    assert (expected[:, valid] - torch.from_numpy(seen[:2].reshape(2, -1))[:, valid]).abs().max() < 1.01


def test_colours_move_nothing() -> None:
    plain = centre_view(size=(WIDTH, HEIGHT), resolution=SIDE)
    np.testing.assert_array_equal(way_back(plain._replace(op="Solarize", magnitude=99.0), plain), np.eye(3))


def test_only_views_of_one_size_match() -> None:
    plain = centre_view(size=(WIDTH, HEIGHT), resolution=SIDE)
    with pytest.raises(ValueError, match="one resolution"):
        way_back(plain._replace(width=200), plain)


def test_resizing_keeps_mass_in_its_place() -> None:
    maps = torch.rand(3, 8 * 8)
    small = resize_maps(maps, (8, 8), to=(4, 4))
    blocks = maps.reshape(3, 4, 2, 4, 2).mean((2, 4)).reshape(3, 16)
    torch.testing.assert_close(small, blocks)
    assert torch.equal(resize_maps(maps, (8, 8), to=(8, 8)), maps)
