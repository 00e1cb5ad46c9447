import numpy as np
import pytest

from veca_data.scenes.layout import Body, Camera, Layout, draw_body, draw_layout, rotate, see_body, see_room
from veca_data.scenes.march import ball_span, first_hit
from veca_data.scenes.shapes import CLASSES, Floats

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
