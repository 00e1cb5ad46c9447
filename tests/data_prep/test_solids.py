"""Shapes against what a distance function must hold; rays against a dense search."""

import numpy as np
import pytest

from veca_data.solids import CLASSES, Distance, Floats, ball_span, first_hit, length, normals


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


def _rays(rng: np.random.Generator, count: int) -> tuple[Floats, Floats]:
    """From points on a sphere of radius 3 towards points in the unit ball, at varied speeds."""
    origin = rng.standard_normal((3, count))
    origin *= 3 / np.linalg.norm(origin, axis=0)
    direction = (rng.uniform(-0.7, 0.7, (3, count)) - origin) * rng.uniform(0.2, 2, count)
    return origin.astype(np.float32), direction.astype(np.float32)


def _dense_first_hit(distance: Distance, origin: Floats, direction: Floats, *, far: float) -> Floats:
    """Look at every one of 6000 places along each ray."""
    steps = np.linspace(0, far, 6000, dtype=np.float32)
    found = np.full(direction.shape[1], np.inf, dtype=np.float32)
    for ray in range(direction.shape[1]):
        inside = distance(origin[:, ray : ray + 1] + steps * direction[:, ray : ray + 1]) < 0
        if inside.any():
            found[ray] = steps[inside.argmax()]
    return found


@pytest.mark.parametrize("name", CLASSES)
def test_first_hit_equals_a_dense_search(name: str) -> None:
    rng = np.random.default_rng(7)
    distance = CLASSES[name](rng)
    origin, direction = _rays(rng, 300)
    speed = length(direction)
    near, far = ball_span(origin, direction)
    fast = first_hit(distance, origin, direction, near=near, far=far) * speed
    slow = _dense_first_hit(distance, origin, direction / speed, far=5.0)
    both = np.isfinite(fast) & np.isfinite(slow)
    assert both.sum() > 50
    # A ray that only touches an edge may count either way.
    assert (np.isfinite(fast) != np.isfinite(slow)).mean() < 0.03
    assert (fast[both] - slow[both]).max() < 0.003, "a ray went through the surface"
    # The hit's tolerance, measured along a ray that meets the surface at a small angle, is a longer way.
    assert np.quantile(slow[both] - fast[both], 0.9) < 0.01


def test_one_origin_for_all_rays_equals_one_origin_each() -> None:
    rng = np.random.default_rng(0)
    distance = CLASSES["torus"](rng)
    origin, direction = _rays(rng, 200)
    origin = origin[:, :1]
    near, far = ball_span(origin, direction)
    shared = first_hit(distance, origin, direction, near=near, far=far)
    each = first_hit(distance, np.repeat(origin, 200, axis=1), direction, near=near, far=far)
    assert np.array_equal(shared, each)


def test_ball_span_solves_the_quadratic() -> None:
    origin, direction = _rays(np.random.default_rng(1), 500)
    near, far = ball_span(origin, direction)
    o, d = origin.astype(np.float64), direction.astype(np.float64)
    for ray in range(500):
        roots = np.roots([d[:, ray] @ d[:, ray], 2 * o[:, ray] @ d[:, ray], o[:, ray] @ o[:, ray] - 1])
        if np.isreal(roots).all():
            np.testing.assert_allclose([near[ray], far[ray]], sorted(roots.real), rtol=2e-3)
        else:
            assert near[ray] == far[ray]


def test_normals_of_sphere_and_box() -> None:
    rng = np.random.default_rng(0)
    points = rng.standard_normal((3, 100)).astype(np.float32)
    points /= length(points)
    np.testing.assert_allclose(normals(CLASSES["sphere"](rng), points), points, atol=0.01)
    above = np.array([[0.1], [0.7], [0.1]], dtype=np.float32)
    np.testing.assert_allclose(normals(CLASSES["box"](rng), above), [[0], [1], [0]], atol=1e-3)
