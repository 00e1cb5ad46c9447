"""Scenes: geometry against rays without shortcuts, pictures, and the patterns on them."""

import numpy as np
import pytest

from veca_data.scenes import (
    PATTERNS,
    Body,
    Camera,
    Layout,
    Scene,
    _draw_texture,
    _shade,
    draw_body,
    draw_layout,
    noise,
    render_scene,
    see_body,
    see_room,
)
from veca_data.solids import CLASSES, Floats, ball_span, first_hit, rotate

SIZE = 64


@pytest.fixture(scope="module")
def layouts() -> list[Layout]:
    names = list(CLASSES)
    return [draw_layout(np.random.default_rng([3, i]), label=names[i % 10], size=SIZE) for i in range(30)]


def _depth_everywhere(camera: Camera, body: Body) -> Floats:
    """A body's depth in all pixels, without the window that see_body looks at."""
    direction = rotate(body.turn.T, camera.rays) / np.float32(body.scale)
    origin = body.to_local(camera.origin)
    near, far = ball_span(origin, direction)
    return np.where(near < far, first_hit(body.distance, origin, direction, near=near, far=far), np.inf)


def test_every_pixel_shows_the_nearest_surface(layouts: list[Layout]) -> None:
    overlaps = 0
    for layout in layouts:
        stack = [see_room(layout.camera, layout.wall)]
        stack += [_depth_everywhere(layout.camera, body) for body in layout.bodies]
        depths = np.stack(stack)
        assert np.array_equal(depths.argmin(axis=0), layout.instance)
        assert np.array_equal(depths.min(axis=0), layout.depth)
        overlaps += (np.isfinite(depths[1:]).sum(axis=0) > 1).sum()
    assert overlaps > 100, "no body hides another, so the test could not fail"


def test_pixels_lie_on_the_surface_they_name(layouts: list[Layout]) -> None:
    for layout in layouts:
        camera = layout.camera
        points = camera.origin + layout.depth * camera.rays
        for number, body in enumerate(layout.bodies, start=1):
            gap = body.distance(body.to_local(points[:, layout.instance == number]))
            assert np.abs(gap).max() < 0.03
        room = points[:, layout.instance == 0]
        from_wall = layout.wall.normal @ room - layout.wall.offset
        assert np.minimum(np.abs(room[1]), np.abs(from_wall)).max() < 1e-4
        assert min(room[1].min(), from_wall.min()) > -1e-4


def test_depth_is_measured_along_the_optical_axis(layouts: list[Layout]) -> None:
    for layout in layouts:
        forward = layout.camera.axes[2]
        np.testing.assert_allclose(forward @ layout.camera.rays, 1, atol=1e-5)
        assert layout.depth.dtype == np.float32
        assert 0.2 < layout.depth.min() < layout.depth.max() < 20


def test_main_body_is_the_largest_and_others_can_be_seen(layouts: list[Layout]) -> None:
    for number, layout in enumerate(layouts):
        assert layout.bodies[0].class_name == list(CLASSES)[number % 10]
        assert 2 <= len(layout.bodies) <= 6
        seen = np.bincount(layout.instance, minlength=len(layout.bodies) + 1)[1:]
        assert seen[1:].max() < seen[0]
        assert seen.min() > 0
        assert seen[0] >= 0.8 * len(see_body(layout.camera, layout.bodies[0])[0])


def test_bodies_touch_neither_each_other_nor_the_wall(layouts: list[Layout]) -> None:
    for layout in layouts:
        for number, body in enumerate(layout.bodies):
            assert layout.wall.normal @ body.centre[:, 0] - layout.wall.offset > 0.99 * body.scale
            for other in layout.bodies[:number]:
                between = np.linalg.norm((body.centre - other.centre)[[0, 2]])
                assert between > 0.99 * (body.scale + other.scale)


@pytest.mark.parametrize("name", CLASSES)
def test_bodies_stand_on_the_floor(name: str) -> None:
    rng = np.random.default_rng(5)
    points = rng.uniform(-1, 1, (3, 200_000)).astype(np.float32)
    for _ in range(5):
        body = draw_body(rng, class_name=name, scale=0.4, x=0.3, z=0.2)
        world = body.centre + body.scale * rotate(body.turn, points)
        lowest = world[1][body.distance(points) < 0].min()
        assert abs(lowest) < 0.04 * body.scale + 0.01


@pytest.fixture(scope="module")
def scenes() -> dict[str, Scene]:
    return {
        name: render_scene(seed=1, index=index, label=name, size=96) for index, name in enumerate(CLASSES)
    }


def test_same_arguments_give_the_same_scene_and_others_another(scenes: dict[str, Scene]) -> None:
    again = render_scene(seed=1, index=4, label="cross", size=96)
    assert all(np.array_equal(a, b) for a, b in zip(again, scenes["cross"], strict=True))
    for seed, index in ((2, 4), (1, 5)):
        other = render_scene(seed=seed, index=index, label="cross", size=96)
        assert not np.array_equal(other.image, scenes["cross"].image)


def test_arrays_have_the_promised_types(scenes: dict[str, Scene]) -> None:
    for scene in scenes.values():
        assert scene.image.shape == (96, 96, 3)
        assert scene.semantic.shape == scene.instance.shape == scene.depth.shape == (96, 96)
        assert [array.dtype for array in scene] == [np.uint8, np.uint8, np.uint8, np.uint16]
        assert scene.depth.min() > 0


def test_every_instance_has_one_class_and_the_label_is_the_largest(scenes: dict[str, Scene]) -> None:
    for name, scene in scenes.items():
        assert np.array_equal(scene.semantic == 0, scene.instance == 0)
        numbers = np.arange(1, scene.instance.max() + 1)
        for number in numbers:
            assert len(np.unique(scene.semantic[scene.instance == number])) == 1
        largest = numbers[np.argmax([(scene.instance == number).sum() for number in numbers])]
        class_id = scene.semantic[scene.instance == largest][0]
        assert list(CLASSES)[class_id - 1] == name


def test_pictures_are_exposed_and_outlines_can_be_seen(scenes: dict[str, Scene]) -> None:
    for scene in scenes.values():
        image = scene.image.astype(np.float64)
        assert 60 < image.mean() < 210
        assert image.std() > 15
        assert (scene.image.min(axis=2) == 255).mean() < 0.35
        border = scene.instance[:, 1:] != scene.instance[:, :-1]
        steps = np.abs(np.diff(image, axis=1)).sum(axis=2)
        assert steps[border].mean() > 1.5 * steps[~border].mean()


@pytest.mark.parametrize("size", [32, 33])
def test_smallest_and_odd_sizes(size: int) -> None:
    assert render_scene(seed=0, index=0, label="bowl", size=size).image.shape == (size, size, 3)


@pytest.mark.parametrize("build", PATTERNS)
@pytest.mark.parametrize("plane", [False, True])
def test_patterns_mix_within_bounds_and_are_not_flat(build: object, plane: bool) -> None:
    rng = np.random.default_rng(0)
    points = rng.uniform(-2, 2, (3, 5000)).astype(np.float32)
    points[2] *= not plane
    weight = build(rng)(points)  # type: ignore[operator]  # a builder
    assert weight.dtype == np.float32
    assert 0 <= weight.min() < weight.max() <= 1
    assert weight.std() > 0.02


def test_noise_stays_near_the_unit_range() -> None:
    points = np.random.default_rng(0).uniform(-9, 9, (3, 20_000)).astype(np.float32)
    values = noise(np.random.default_rng(1))(points)
    assert 0.2 < values.std() < 0.7
    assert np.abs(values).max() < 1.8


@pytest.mark.parametrize("vivid", [False, True])
def test_textures_are_colours(vivid: bool) -> None:
    points = np.random.default_rng(0).uniform(-1, 1, (3, 200)).astype(np.float32)
    for seed in range(20):
        albedo = _draw_texture(np.random.default_rng(seed), vivid=vivid)(points)
        assert albedo.shape == (3, 200)
        assert albedo.dtype == np.float32
        assert 0 <= albedo.min() <= albedo.max() <= 1


def test_bodies_cast_shadows(layouts: list[Layout], monkeypatch: pytest.MonkeyPatch) -> None:
    lit = _shade(np.random.default_rng(0), layouts[0])
    monkeypatch.setattr("veca_data.scenes.first_hit", lambda *_, near, far: np.full_like(near, np.inf))
    unshaded = _shade(np.random.default_rng(0), layouts[0])
    darker = (lit < unshaded).all(axis=0)
    assert (lit <= unshaded).all()
    assert 0.02 < (darker & (layouts[0].instance == 0)).mean() < 0.5
