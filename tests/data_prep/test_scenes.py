"""Scenes: geometry against rays without shortcuts, pictures, and the patterns on them.

Shapes against what a distance function must hold; rays against a dense search.
"""

import numpy as np
import pytest

from veca_data.scenes import (
    CLASSES,
    PATTERNS,
    Body,
    Camera,
    Distance,
    Floats,
    Scene,
    SceneLayout,
    _draw_texture,
    _shade,
    ball_span,
    draw_body,
    draw_layout,
    first_hit,
    length,
    noise,
    normals,
    render_scene,
    rotate,
    see_body,
    see_room,
)

SIZE = 64


@pytest.fixture(scope="module")
def layouts() -> list[SceneLayout]:
    names = list(CLASSES)
    return [draw_layout(np.random.default_rng([3, i]), label=names[i % 10], size=SIZE) for i in range(30)]


def _depth_everywhere(camera: Camera, body: Body) -> Floats:
    """A body's depth in all pixels, without the window that see_body looks at."""
    direction = rotate(body.turn.T, camera.rays) / np.float32(body.scale)
    origin = body.to_local(camera.origin)
    near, far = ball_span(origin, direction)
    return np.where(near < far, first_hit(body.distance, origin, direction, near=near, far=far), np.inf)


def test_every_pixel_shows_the_nearest_surface(layouts: list[SceneLayout]) -> None:
    overlaps = 0
    for layout in layouts:
        stack = [see_room(layout.camera, layout.wall)]
        stack += [_depth_everywhere(layout.camera, body) for body in layout.bodies]
        depths = np.stack(stack)
        assert np.array_equal(depths.argmin(axis=0), layout.instance)
        assert np.array_equal(depths.min(axis=0), layout.depth)
        overlaps += (np.isfinite(depths[1:]).sum(axis=0) > 1).sum()
    assert overlaps > 100, "no body hides another, so the test could not fail"


def test_pixels_lie_on_the_surface_they_name(layouts: list[SceneLayout]) -> None:
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


def test_depth_is_measured_along_the_optical_axis(layouts: list[SceneLayout]) -> None:
    for layout in layouts:
        forward = layout.camera.axes[2]
        np.testing.assert_allclose(forward @ layout.camera.rays, 1, atol=1e-5)
        assert layout.depth.dtype == np.float32
        assert 0.2 < layout.depth.min() < layout.depth.max() < 20


def test_main_body_is_the_largest_and_others_can_be_seen(layouts: list[SceneLayout]) -> None:
    for number, layout in enumerate(layouts):
        assert layout.bodies[0].class_name == list(CLASSES)[number % 10]
        assert 2 <= len(layout.bodies) <= 6
        seen = np.bincount(layout.instance, minlength=len(layout.bodies) + 1)[1:]
        assert seen[1:].max() < seen[0]
        assert seen.min() > 0
        assert seen[0] >= 0.8 * len(see_body(layout.camera, layout.bodies[0])[0])


def test_bodies_touch_neither_each_other_nor_the_wall(layouts: list[SceneLayout]) -> None:
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


def test_bodies_cast_shadows(layouts: list[SceneLayout], monkeypatch: pytest.MonkeyPatch) -> None:
    lit = _shade(np.random.default_rng(0), layouts[0])
    monkeypatch.setattr("veca_data.scenes.first_hit", lambda *_, near, far: np.full_like(near, np.inf))
    unshaded = _shade(np.random.default_rng(0), layouts[0])
    darker = (lit < unshaded).all(axis=0)
    assert (lit <= unshaded).all()
    assert 0.02 < (darker & (layouts[0].instance == 0)).mean() < 0.5


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
