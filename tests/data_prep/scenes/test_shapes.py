import numpy as np
import pytest

from veca_data.scenes.shapes import CLASSES, length


def _points(rng: np.random.Generator, count: int, *, reach: float) -> np.ndarray:
    return rng.uniform(-reach, reach, (3, count)).astype(np.float32)


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_distance_never_changes_faster_than_the_point_moves(name: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    distance = CLASSES[name](rng)
    start = _points(rng, 20_000, reach=1.5)
    for step in (0.01, 0.3):
        end = start + step * rng.standard_normal(start.shape).astype(np.float32)
        moved = length(end - start)
        assert (np.abs(distance(end) - distance(start)) <= moved * 1.001 + 1e-5).all()


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_shape_fits_into_the_unit_ball_and_uses_it(name: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    distance = CLASSES[name](rng)
    points = _points(rng, 60_000, reach=1.2)
    inside = distance(points) < 0
    assert distance(points).dtype == np.float32
    assert inside.mean() > 0.01
    assert length(points)[inside].max() <= 1.0
    assert length(points)[inside].max() > 0.85, "a smaller shape would make the main object too small"


def test_proportions_vary_within_a_class() -> None:
    points = _points(np.random.default_rng(0), 2000, reach=1)
    for name, build in CLASSES.items():
        same = np.array_equal(*(build(np.random.default_rng(seed))(points) for seed in (1, 2)))
        assert same == (name == "sphere")


def test_class_ids_follow_the_order_of_sorted_folders() -> None:
    assert list(CLASSES) == sorted(CLASSES)


def test_star_has_five_equal_arms() -> None:
    distance = CLASSES["star"](np.random.default_rng(0))
    turn = 2 * np.pi / 5
    points = _points(np.random.default_rng(1), 5000, reach=1)
    turned = np.stack(
        [
            np.cos(turn) * points[0] - np.sin(turn) * points[1],
            np.sin(turn) * points[0] + np.cos(turn) * points[1],
            points[2],
        ]
    ).astype(np.float32)
    np.testing.assert_allclose(distance(turned), distance(points), atol=1e-5)
    angles = np.linspace(0, 2 * np.pi, 720, endpoint=False, dtype=np.float32)
    circle = 0.7 * np.stack([np.sin(angles), np.cos(angles), np.zeros_like(angles)])
    inside = distance(circle) < 0
    assert (inside != np.roll(inside, 1)).sum() == 10
