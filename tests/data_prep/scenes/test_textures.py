import numpy as np
import pytest

from veca_data.scenes import textures
from veca_data.scenes.textures import draw_object_texture, draw_plane_texture, noise

PATTERNS = sorted({*textures._SOLID, *textures._PLANE}, key=lambda build: build.__name__)


@pytest.mark.parametrize("build", PATTERNS)
@pytest.mark.parametrize("plane", [False, True])
def test_patterns_mix_within_bounds_and_are_not_flat(build: object, plane: bool) -> None:
    rng = np.random.default_rng(0)
    points = rng.uniform(-2, 2, (3, 5000)).astype(np.float32)
    points[2] *= not plane
    weight = build(rng)(points, np.full(5000, 0.005, dtype=np.float32))  # type: ignore[operator]  # a builder
    assert weight.dtype == np.float32
    assert 0 <= weight.min() < weight.max() <= 1
    assert weight.std() > 0.02


@pytest.mark.parametrize("name", ["_checks", "_dots", "_stripes", "_bricks", "_terrazzo"])
def test_patterns_fade_where_pixels_are_larger_than_they(name: str) -> None:
    points = np.random.default_rng(0).uniform(-20, 20, (3, 5000)).astype(np.float32)
    points[2] = 0
    pattern = getattr(textures, name)(np.random.default_rng(1))
    close, far = (pattern(points, np.full(5000, width, dtype=np.float32)).std() for width in (0.001, 3.0))
    assert far < 0.7 * close


def test_noise_stays_near_the_unit_range() -> None:
    points = np.random.default_rng(0).uniform(-9, 9, (3, 20_000)).astype(np.float32)
    values = noise(np.random.default_rng(1))(points)
    assert 0.2 < values.std() < 0.7
    assert np.abs(values).max() < 1.8


@pytest.mark.parametrize("draw", [draw_object_texture, draw_plane_texture])
def test_albedo_is_a_colour(draw: object) -> None:
    points = np.random.default_rng(0).uniform(-1, 1, (3, 200)).astype(np.float32)
    for seed in range(20):
        texture = draw(np.random.default_rng(seed))  # type: ignore[operator]  # one of two functions
        albedo = texture.albedo(points, np.full(200, 0.01, dtype=np.float32))
        assert albedo.shape == (3, 200)
        assert albedo.dtype == np.float32
        assert 0 <= albedo.min() <= albedo.max() <= 1
