"""Who stands where: the camera, the room and the bodies of one scene, and what each pixel sees.

The world is in metres: x right, y up, z away from the camera; the floor is y = 0, the wall a vertical plane.
The main body carries the scene's label: it is the largest in the picture and hardly hidden by others. The
others are tried one by one and kept if that stays true, if they touch nobody and if they can be seen.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from veca_data.scenes.march import ball_span, first_hit
from veca_data.scenes.shapes import CLASSES, Distance, Floats, uniform

_MAX_BODIES = 6
_TRIES = 24
_MAIN_VISIBLE = 0.8  # of the main body's pixels
_OTHER_VISIBLE = 0.35  # of each other body's pixels
_OTHER_LARGEST = 0.6  # of the main body's visible pixels
_OTHER_SMALLEST = 0.006  # of the picture


class Camera(NamedTuple):
    """A pinhole. The rays' t is the depth along the optical axis, because `forward` has unit length."""

    origin: Floats  # (3, 1)
    axes: Floats  # (3, 3): rows right, up, forward
    focal: float  # pixels
    centre: tuple[float, float]  # where the optical axis meets the picture: column, row
    size: int
    rays: Floats  # (3, size * size), row-major


class Body(NamedTuple):
    """A shape placed in the world: world point = centre + scale * turn @ local point."""

    class_name: str
    distance: Distance  # in local units
    turn: Floats  # (3, 3)
    centre: Floats  # (3, 1)
    scale: float

    def to_local(self, points: Floats) -> Floats:
        return rotate(self.turn.T, points - self.centre) / self.scale


class Wall(NamedTuple):
    """The points p with normal · p = offset; the normal looks back into the room."""

    normal: Floats  # (3,)
    offset: float


class Layout(NamedTuple):
    """A scene before light and colour; instance i is bodies[i - 1], 0 the room; pixels are row-major."""

    camera: Camera
    wall: Wall
    bodies: list[Body]  # the main one first
    depth: Floats  # (size * size,) metres along the optical axis
    instance: NDArray[np.uint8]  # (size * size,)


def draw_layout(rng: Generator, *, label: str, size: int) -> Layout:
    while True:
        layout = _try_layout(rng, label=label, size=size)
        if len(layout.bodies) > 1:  # in about one scene of a hundred there is no room beside the main body
            return layout


def _try_layout(rng: Generator, *, label: str, size: int) -> Layout:
    main = draw_body(rng, class_name=label, scale=uniform(rng, 0.28, 0.42), x=0.0, z=0.0)
    camera = draw_camera(rng, main, size=size)
    wall = _draw_wall(rng)
    depth = see_room(camera, wall)
    instance = np.zeros(size * size, dtype=np.uint8)
    bodies, areas = [main], [_add(camera, main, depth, instance, number=1)]
    wanted = int(rng.integers(2, _MAX_BODIES + 1))
    for _ in range(_TRIES):
        body = _draw_other(rng, camera, wall, bodies)
        if body is None:
            continue
        new_depth, new_instance = depth.copy(), instance.copy()
        area = _add(camera, body, new_depth, new_instance, number=len(bodies) + 1)
        if _acceptable(new_instance, [*areas, area]):
            depth, instance = new_depth, new_instance
            bodies, areas = [*bodies, body], [*areas, area]
        if len(bodies) == wanted:
            break
    return Layout(camera, wall, bodies, depth, instance)


def rotate(matrix: Floats, points: Floats) -> Floats:
    """matrix @ points for (3, 3) and (3, n), without BLAS: the same bits whatever the number of threads."""
    return np.asarray(
        matrix[:, :1] * points[0] + matrix[:, 1:2] * points[1] + matrix[:, 2:] * points[2], dtype=np.float32
    )


def draw_body(rng: Generator, *, class_name: str, scale: float, x: float, z: float) -> Body:
    """A body of random proportions and pose that rests on the floor at (x, z)."""
    distance = CLASSES[class_name](rng)
    turn = _draw_turn(rng)
    height = -scale * _lowest_point(distance, turn)
    centre = np.array([[x], [height], [z]], dtype=np.float32)
    return Body(class_name, distance, turn, centre, scale)


def draw_camera(rng: Generator, main: Body, *, size: int) -> Camera:
    """Look at the main body so that its bounding ball covers a chosen share of the picture."""
    tangent = math.tan(uniform(rng, 0.33, 0.47))  # of half the field of view
    share = uniform(rng, 0.27, 0.38)  # of the picture's width, the ball's radius
    away = main.scale / (2 * share * tangent)
    pitch, roll = uniform(rng, 0.22, 0.75), uniform(rng, -0.06, 0.06)
    backward = np.array([[0], [math.sin(pitch)], [-math.cos(pitch)]], dtype=np.float32)
    axes = np.array(_axis_turn(2, roll) @ _axis_turn(0, -pitch), dtype=np.float32)
    focal = size / (2 * tangent)
    centre = (size * (0.5 + uniform(rng, -0.1, 0.1)), size * (0.5 + uniform(rng, -0.1, 0.1)))
    pixels = np.arange(size, dtype=np.float32) + 0.5
    across, down = (pixels - centre[0]) / focal, (pixels - centre[1]) / focal
    plane = np.stack([np.tile(across, size), -np.repeat(down, size), np.ones(size * size, dtype=np.float32)])
    rays = rotate(axes.T, plane)
    return Camera(main.centre + away * backward, axes, focal, centre, size, rays)


def see_room(camera: Camera, wall: Wall) -> Floats:
    """Depth of the floor or the wall, whichever is nearer: (n,)."""
    falling = np.minimum(camera.rays[1], -1e-6)
    floor = -camera.origin[1] / falling
    side = wall.normal[0] * camera.rays[0] + wall.normal[2] * camera.rays[2]
    start = wall.normal[0] * camera.origin[0] + wall.normal[2] * camera.origin[2]
    back = (wall.offset - start) / np.minimum(side, -1e-6)
    depth: Floats = np.minimum(floor, back)
    return depth


def see_body(camera: Camera, body: Body) -> tuple[NDArray[np.intp], Floats]:
    """The pixels that a body covers when it is alone, and its depth there."""
    pixels = _window(camera, body)
    direction = rotate(body.turn.T, camera.rays.take(pixels, axis=1)) / body.scale
    origin = body.to_local(camera.origin)
    near, far = ball_span(origin, direction)
    ahead = np.flatnonzero(near < far)
    aimed = direction.take(ahead, axis=1)
    depth = first_hit(body.distance, origin, aimed, near=near[ahead], far=far[ahead])
    met = np.flatnonzero(np.isfinite(depth))
    return pixels[ahead[met]], depth[met]


def _window(camera: Camera, body: Body) -> NDArray[np.intp]:
    """The pixels of a square around the bounding ball, which must lie ahead of the camera."""
    x, y, z = (float(value) for value in rotate(camera.axes, body.centre - camera.origin)[:, 0])
    x, y = camera.focal * x / z, camera.focal * y / z
    reach = body.scale * math.hypot(camera.focal, x, y) / (z - body.scale)
    column, row = camera.centre[0] + x, camera.centre[1] - y
    columns = _clipped_range(column - reach, column + reach, camera.size)
    rows = _clipped_range(row - reach, row + reach, camera.size)
    return (rows[:, None] * camera.size + columns).ravel()


def _clipped_range(low: float, high: float, size: int) -> NDArray[np.intp]:
    return np.arange(max(0, math.floor(low)), min(size, math.ceil(high) + 1))


def _add(camera: Camera, body: Body, depth: Floats, instance: NDArray[np.uint8], *, number: int) -> int:
    """Draw a body into depth and instance where it is nearest; return how many pixels it covers alone."""
    pixels, own_depth = see_body(camera, body)
    front = own_depth < depth[pixels]
    depth[pixels[front]] = own_depth[front]
    instance[pixels[front]] = number
    return len(pixels)


def _acceptable(instance: NDArray[np.uint8], areas: list[int]) -> bool:
    """Whether the main body still dominates and all can be seen; `areas` are their pixels when alone."""
    seen = np.bincount(instance, minlength=len(areas) + 1)[1:]
    main, others = seen[0], seen[1:]
    hidden = others < _OTHER_VISIBLE * np.array(areas[1:])
    return bool(
        main >= _MAIN_VISIBLE * areas[0]
        and not hidden.any()
        and others.max() <= _OTHER_LARGEST * main
        and others.min() >= _OTHER_SMALLEST * instance.size
    )


def _draw_wall(rng: Generator) -> Wall:
    angle = uniform(rng, -0.5, 0.5)
    normal = np.array([math.sin(angle), 0, -math.cos(angle)], dtype=np.float32)
    return Wall(normal, -uniform(rng, 0.9, 3.0))


def _draw_other(rng: Generator, camera: Camera, wall: Wall, bodies: list[Body]) -> Body | None:
    """A body of any class somewhere in front of the camera, or None if that place is taken."""
    scale = uniform(rng, 0.18, 0.4)
    away = -float(camera.origin[2, 0])
    z = away * uniform(rng, -0.35, 1.6)
    x = (away + z) * camera.size / camera.focal * uniform(rng, -0.6, 0.6)
    class_name = list(CLASSES)[rng.integers(len(CLASSES))]
    from_wall = wall.normal[0] * x + wall.normal[2] * z - wall.offset
    apart = [math.hypot(x - b.centre[0, 0], z - b.centre[2, 0]) - scale - b.scale for b in bodies]
    ahead = float(rotate(camera.axes, np.array([[x], [scale], [z]], dtype=np.float32) - camera.origin)[2, 0])
    if from_wall < scale or min(apart) < 0 or ahead < 1.5 * scale:
        return None
    return draw_body(rng, class_name=class_name, scale=scale, x=x, z=z)


def _draw_turn(rng: Generator) -> Floats:
    """Upright, leaning, on its side or with its top towards the camera; always turned about the vertical."""
    yaw, lean, spin = uniform(rng, -1, 1), 0.0, 0.0
    pose = uniform(rng, 0, 1)
    if 0.45 < pose < 0.65:
        lean, spin = uniform(rng, -0.5, 0.5), uniform(rng, -0.5, 0.5)
    elif 0.65 < pose < 0.85:
        spin = math.pi / 2
    elif pose > 0.85:
        lean = -math.pi / 2
    return np.array(_axis_turn(1, yaw) @ _axis_turn(0, lean) @ _axis_turn(2, spin), dtype=np.float32)


def _axis_turn(axis: int, angle: float) -> NDArray[np.float64]:
    """Rotation about x, y or z."""
    turn = np.eye(3)
    first, second = (axis + 1) % 3, (axis + 2) % 3
    turn[[first, second], [first, second]] = math.cos(angle)
    turn[first, second], turn[second, first] = -math.sin(angle), math.sin(angle)
    return turn


def _lowest_point(distance: Distance, turn: Floats) -> float:
    """The lowest height of a turned shape: rays rise from below until the one that lags behind has met it."""
    ticks = np.linspace(-0.98, 0.98, 27, dtype=np.float32)
    x, z = (grid.ravel() for grid in np.meshgrid(ticks, ticks))
    below = rotate(turn.T, np.stack([x, np.full_like(x, -1), z]).compress(x * x + z * z < 1, axis=1))
    up = rotate(turn.T, np.array([[0], [1], [0]], dtype=np.float32))
    rise = np.zeros(below.shape[1], dtype=np.float32)
    for _ in range(60):
        gap = distance(below + rise * up)
        rise += gap
        last = rise.argmin()
        if gap[last] < 1e-3:
            break
    return float(rise[last]) - 1
