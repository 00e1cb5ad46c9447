import numpy as np
import pytest

from veca_data.scenes.march import ball_span, first_hit, normals, sunlight
from veca_data.scenes.shapes import CLASSES, Distance, Floats, length


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


def test_sunlight_is_none_behind_a_ball_full_beside_it_and_soft_between() -> None:
    heights = np.linspace(0, 1.6, 33, dtype=np.float32)
    origin = np.stack([np.full_like(heights, -3), heights, np.zeros_like(heights)])
    towards = np.array([[1], [0], [0]], dtype=np.float32)
    start = np.full_like(heights, 1.5)
    share = sunlight(CLASSES["sphere"](np.random.default_rng(0)), origin, towards, near=start, far=start + 3)
    assert share[heights < 0.9].max() == 0
    assert share[heights > 1.5].min() == 1
    assert (np.diff(share) >= -1e-6).all()
    assert ((share > 0.1) & (share < 0.9)).any()
