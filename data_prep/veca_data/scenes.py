"""Procedural scenes: solids on a floor, with the class, instance, depth and colour of every pixel.

draw_layout (who stands where) → _shade (textures, one light with shadows) → render_scene (pixels)

The world is in metres: x right, y up, z away from the camera; the floor is y = 0, the wall a vertical plane.
The main body carries the scene's label: it is the largest in the picture and hardly hidden by others. The
others are tried one by one and kept if that stays true, if they touch nobody and if they can be seen.
A scene is a pure function of (seed, index, label, size).

The object classes are ten solids as signed distance functions (Hart 1996). A builder draws the proportions of
one object and returns its distance function: points (3, n) → (n,). Each is 1-Lipschitz, vanishes exactly on
the surface and fits into the unit ball, so a ray may safely advance by it. `_smooth_max` keeps this property,
because its gradient is a convex combination of those of its arguments; it also rounds the edges. Up is y.
Star and torus have z as their axis, so that they face a viewer.

Rays are origin (3, 1) or (3, n) plus t times direction (3, n); directions need not have unit length.
Everything is element-wise float32 without BLAS: the same bits whatever the number of threads.
"""

import colorsys
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Distance = Callable[[Floats], Floats]

_MAX_BODIES = 6
_TRIES = 24
_MAIN_VISIBLE = 0.8  # of the main body's pixels
_OTHER_VISIBLE = 0.35  # of each other body's pixels
_OTHER_LARGEST = 0.6  # of the main body's visible pixels
_OTHER_SMALLEST = 0.006  # of the picture

# In units of the bounding ball:
_ROUNDING = 0.05  # radius of edges
_TOLERANCE = 2e-3  # a hit
_GRAZE = 0.02  # a hit for a ray that has used up its steps: one that creeps along an edge
_ROUNDS = 12
_STEPS = 4  # per round; finished rays leave between rounds, since leaving costs about as much as a step


class Scene(NamedTuple):
    """One sample: all arrays are size × size."""

    image: NDArray[np.uint8]  # (size, size, 3) sRGB
    semantic: NDArray[np.uint8]  # 0 background, else 1 + position of the class in CLASSES
    instance: NDArray[np.uint8]  # 0 background, 1 the main object
    depth: NDArray[np.uint16]  # millimetres along the optical axis


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


class SceneLayout(NamedTuple):
    """A scene before light and colour; instance i is bodies[i - 1], 0 the room; pixels are row-major."""

    camera: Camera
    wall: Wall
    bodies: list[Body]  # the main one first
    depth: Floats  # (size * size,) metres along the optical axis
    instance: NDArray[np.uint8]  # (size * size,)


def render_scene(*, seed: int, index: int, label: str, size: int) -> Scene:
    rng = np.random.default_rng([seed, index])
    layout = draw_layout(rng, label=label, size=size)
    colour = _shade(rng, layout)
    colour *= uniform(rng, 0.24, 0.42) / max(float(np.median(colour[1])), 0.02)
    picture = np.sqrt(colour / (1 + 0.35 * colour))  # soft highlights, gamma
    picture += uniform(rng, 0.002, 0.015) * rng.standard_normal(picture.shape, dtype=np.float32)
    image = (np.clip(picture, 0, 1) * 255 + 0.5).astype(np.uint8).T.reshape(size, size, 3)
    names = [body.class_name for body in layout.bodies]
    class_ids = np.array([0, *(1 + list(CLASSES).index(name) for name in names)], dtype=np.uint8)
    millimetres = np.clip(np.rint(layout.depth * 1000), 1, 65535).astype(np.uint16)
    instance = layout.instance.reshape(size, size)
    return Scene(np.ascontiguousarray(image), class_ids[instance], instance, millimetres.reshape(size, size))


def draw_layout(rng: Generator, *, label: str, size: int) -> SceneLayout:
    main = draw_body(rng, class_name=label, scale=uniform(rng, 0.28, 0.42), x=0.0, z=0.0)
    camera = draw_camera(rng, main, size=size)
    angle = uniform(rng, -0.5, 0.5)
    normal = np.array([math.sin(angle), 0, -math.cos(angle)], dtype=np.float32)
    wall = Wall(normal, -uniform(rng, 0.9, 3.0))
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
    if len(bodies) == 1:  # in about one scene of a hundred there is no room beside the main body
        return draw_layout(rng, label=label, size=size)
    return SceneLayout(camera, wall, bodies, depth, instance)


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
    floor = -camera.origin[1] / np.minimum(camera.rays[1], -1e-6)
    side, start = dot(wall.normal, camera.rays), dot(wall.normal, camera.origin)
    return np.asarray(np.minimum(floor, (wall.offset - start) / np.minimum(side, -1e-6)))


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
    spans = ((column - reach, column + reach), (row - reach, row + reach))
    columns, rows = (
        np.arange(max(0, math.floor(low)), min(camera.size, math.ceil(high) + 1)) for low, high in spans
    )
    return (rows[:, None] * camera.size + columns).ravel()


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


def _shade(rng: Generator, layout: SceneLayout) -> Floats:
    """The linear colour of every pixel: (3, size * size)."""
    camera, room = layout.camera, layout.instance == 0
    points = camera.origin + layout.depth * camera.rays
    albedo: Floats = np.empty_like(points)
    outward: Floats = np.empty_like(points)
    on_floor = points[1] < 1e-3
    up = np.array([[0], [1], [0]], dtype=np.float32)
    for pixels, normal in ((room & on_floor, up), (room & ~on_floor, layout.wall.normal[:, None])):
        # Solid textures are flat where y = 0, so the floor shows them from another side.
        albedo[:, pixels] = _draw_texture(rng, vivid=False)(points[:, pixels][[0, 2, 1]])
        outward[:, pixels] = normal
    for number, body in enumerate(layout.bodies, start=1):
        pixels = layout.instance == number
        local = body.to_local(points[:, pixels])
        albedo[:, pixels] = _draw_texture(rng, vivid=True)(local)
        outward[:, pixels] = rotate(body.turn, normals(body.distance, local))
    azimuth, elevation = uniform(rng, -2.0, 2.0), uniform(rng, 0.6, 1.2)
    flat = math.cos(elevation)
    towards = np.array(
        [[flat * math.sin(azimuth)], [math.sin(elevation)], [-flat * math.cos(azimuth)]], dtype=np.float32
    )
    sun = np.maximum(dot(outward, towards), 0)
    for body in layout.bodies:
        offset = points - body.centre
        along = dot(offset, towards)
        within = (dot(offset, offset) - along * along < body.scale**2) & (along < body.scale)
        pixels = np.flatnonzero(within)
        # A start above the surface keeps the body from shading the very point the ray leaves.
        local = body.to_local((points + 0.015 * outward).take(pixels, axis=1))
        direction = rotate(body.turn.T, towards)
        near, far = ball_span(local, direction)
        direction = np.repeat(direction, len(pixels), axis=1)
        hit = first_hit(body.distance, local, direction, near=np.maximum(near, 0.04), far=far)
        sun[pixels[np.isfinite(hit)]] *= 0.15
    return np.asarray(albedo * (uniform(rng, 0.85, 1.25) * sun + 0.25 + 0.1 * outward[1]))


def _draw_texture(rng: Generator, *, vivid: bool) -> Callable[[Floats], Floats]:
    """A pattern in two linear colours, points (3, n) → (3, n). It depends on no class, so it tells none."""
    pattern = PATTERNS[rng.integers(len(PATTERNS))](rng)
    saturation, darkest = (0.8, 0.15) if vivid else (0.4, 0.3)
    rgb = [
        colorsys.hsv_to_rgb(uniform(rng, 0, 1), uniform(rng, 0, saturation), uniform(rng, low, 1))
        for low in (0.5, darkest)
    ]
    first, second = np.array(rgb, dtype=np.float32)[:, :, None] ** 2  # undone by the gamma
    scale = uniform(rng, 0.7, 1.2) if vivid else uniform(rng, 0.3, 0.9)
    return lambda points: np.asarray(first + (second - first) * pattern(points / scale))


def noise(rng: Generator, *, waves: int = 5) -> Callable[[Floats], Floats]:
    """Smooth noise of about unit period and range [-1, 1]: random plane waves, the finer the weaker."""
    frequencies = 2.0 * 1.45 ** np.arange(waves)
    directions = rng.standard_normal((waves, 3))
    directions *= (frequencies / np.sqrt((directions**2).sum(axis=1)))[:, None]
    phases = rng.uniform(0, 2 * math.pi, waves)
    columns = (*directions.T.tolist(), phases.tolist(), (1 / frequencies).tolist())
    terms = list(zip(*columns, strict=True))

    def value(p: Floats) -> Floats:
        total: Floats = np.zeros_like(p[0])
        for x, y, z, phase, weight in terms:
            total += weight * np.sin(x * p[0] + y * p[1] + z * p[2] + phase)
        return total

    return value


def _edge(signed: Floats) -> Floats:
    """A step at zero, about as wide as a pixel."""
    return np.asarray(np.clip(0.5 + 8 * signed, 0, 1))


def _clouds(rng: Generator) -> Distance:
    cloud = noise(rng)
    return lambda p: np.clip(0.4 + 0.4 * cloud(p), 0, 1)


def _stripes(rng: Generator) -> Distance:
    angle, rise, duty = uniform(rng, 0, math.pi), uniform(rng, -5, 5), uniform(rng, -0.4, 0.4)
    x, y = math.cos(angle) * 6, math.sin(angle) * 6
    return lambda p: _edge(np.sin(x * p[0] + y * p[1] + rise * p[2]) - duty)


def _checks(rng: Generator) -> Distance:
    frequency = uniform(rng, 4.5, 6.5)
    return lambda p: _edge(np.prod(np.sin(frequency * p + np.array([[0], [0], [1.6]], np.float32)), axis=0))


def _dots(rng: Generator) -> Distance:
    frequency, radius = uniform(rng, 1.6, 2.4), uniform(rng, 0.28, 0.38)
    return lambda p: _edge(radius - length(p * frequency - np.rint(p * frequency)))


def _marble(rng: Generator) -> Distance:
    cloud, turbulence = noise(rng), uniform(rng, 1.5, 3.5)
    return lambda p: np.asarray(1 - np.sqrt(np.abs(np.sin(2.5 * p.sum(axis=0) + turbulence * cloud(p)))))


PATTERNS = (_clouds, _stripes, _checks, _dots, _marble)  # points (3, n) → weights (n,) in [0, 1]


def uniform(rng: Generator, low: float, high: float) -> float:
    """One draw as a Python float: a numpy float64 scalar would turn float32 arrays into float64."""
    return float(rng.uniform(low, high))


def length(points: Floats) -> Floats:
    """Euclidean norm over the first axis."""
    return np.asarray(np.sqrt(sum(row * row for row in points)))


def dot(first: Floats, second: Floats) -> Floats:
    return np.asarray(first[0] * second[0] + first[1] * second[1] + first[2] * second[2])


def rotate(matrix: Floats, points: Floats) -> Floats:
    """matrix @ points for (3, 3) and (3, n)."""
    return np.asarray(
        matrix[:, :1] * points[0] + matrix[:, 1:2] * points[1] + matrix[:, 2:] * points[2], dtype=np.float32
    )


def first_hit(distance: Distance, origin: Floats, direction: Floats, *, near: Floats, far: Floats) -> Floats:
    """The smallest t in [near, far] on the surface, infinity where the ray misses: (n,)."""
    hits = np.full(direction.shape[1], np.inf, dtype=np.float32)
    rays = np.arange(direction.shape[1])
    t, inverse_speed = near.copy(), 1 / length(direction)
    for round_number in range(_ROUNDS):
        for _ in range(_STEPS):
            gap = distance(origin + t * direction)
            t += gap * inverse_speed
        met = gap < (_TOLERANCE if round_number < _ROUNDS - 1 else _GRAZE)
        hits[rays.compress(met)] = t.compress(met)
        going = np.flatnonzero(~met & (t < far))
        if not going.size:
            break
        rays, t, far, inverse_speed = rays[going], t[going], far[going], inverse_speed[going]
        direction = direction.take(going, axis=1)
        origin = origin if origin.shape[1] == 1 else origin.take(going, axis=1)
    return hits


def normals(distance: Distance, points: Floats) -> Floats:
    """Outward unit normals (3, n), from differences along the corners of a tetrahedron."""
    total = np.zeros_like(points)
    for corner in ((1, -1, -1), (-1, -1, 1), (-1, 1, -1), (1, 1, 1)):
        offset = np.array(corner, dtype=np.float32)[:, None]
        total += offset * distance(points + 0.01 * offset)
    return np.asarray(total / np.maximum(length(total), 1e-6))


def ball_span(origin: Floats, direction: Floats) -> tuple[Floats, Floats]:
    """Where each ray enters and leaves the unit ball; equal where it misses."""
    squared = dot(direction, direction)
    middle = -dot(origin, direction) / squared
    closest = origin + middle * direction
    half = np.sqrt(np.maximum(1 - dot(closest, closest), 0) / squared)
    return middle - half, middle + half


def _smooth_max(first: Floats, second: Floats) -> Floats:
    overlap = np.maximum(_ROUNDING - np.abs(first - second), 0)
    return np.asarray(np.maximum(first, second) + overlap * overlap * (0.25 / _ROUNDING))


def _box(rng: Generator) -> Distance:
    sides = [uniform(rng, 0.7, 1) for _ in range(3)]
    x, y, z = (side / math.hypot(*sides) for side in sides)

    def distance(p: Floats) -> Floats:
        a = np.abs(p)
        return _smooth_max(_smooth_max(a[0] - x, a[1] - y), a[2] - z)

    return distance


def _cylinder(rng: Generator) -> Distance:
    angle = uniform(rng, 0.6, 1.0)
    radius, half_height = math.cos(angle), math.sin(angle)
    return lambda p: _smooth_max(length(p[::2]) - radius, np.abs(p[1]) - half_height)


def _tapered(reach: Callable[[Floats], Floats], half_width: float) -> Distance:
    """From a base below to a point at y = 1; `reach` measures how far a point is from the axis."""
    base = 0.6
    slope = math.hypot(1 + base, half_width)
    across, along = (1 + base) / slope, half_width / slope
    return lambda p: _smooth_max(across * reach(p) + along * (p[1] - 1), -base - p[1])


def _torus(rng: Generator) -> Distance:
    thickness = uniform(rng, 0.2, 0.33)

    def distance(p: Floats) -> Floats:
        ring = length(p[:2]) - (1 - thickness)
        return length(np.stack([ring, p[2]])) - thickness

    return distance


def _capsule(rng: Generator) -> Distance:
    radius = uniform(rng, 0.3, 0.45)

    def distance(p: Floats) -> Floats:
        beyond: Floats = np.maximum(np.abs(p[1]) - (1 - radius), 0)
        return length(np.stack([p[0], beyond, p[2]])) - radius

    return distance


def _star(rng: Generator) -> Distance:
    half_depth = uniform(rng, 0.2, 0.32)
    tip = math.sqrt(1 - half_depth**2)
    notch = tip * uniform(rng, 0.42, 0.52)
    # The edge from the tip, at (0, tip), to the notch beside it, and its outward normal.
    notch_x, notch_y = notch * math.sin(math.pi / 5), notch * math.cos(math.pi / 5)
    edge = math.hypot(notch_x, tip - notch_y)
    normal_x, normal_y = (tip - notch_y) / edge, notch_x / edge

    def distance(p: Floats) -> Floats:
        x, y = _fold_to_fifth(p[0], p[1])
        return _smooth_max(normal_x * x + normal_y * (y - tip), np.abs(p[2]) - half_depth)

    return distance


def _fold_to_fifth(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """Reflect the plane into the tenth beside the +y axis that all others repeat by symmetry."""
    x = np.abs(x)
    for turn in (2, 1):  # mirrors at 72° and 36° from the +y axis bring every angle below 36°
        mirror_x, mirror_y = math.cos(turn * math.pi / 5), -math.sin(turn * math.pi / 5)
        excess: Floats = 2 * np.maximum(mirror_x * x + mirror_y * y, 0)
        x, y = np.abs(x - excess * mirror_x), y - excess * mirror_y
    return x, y


def _cross(rng: Generator) -> Distance:
    half_width = uniform(rng, 0.2, 0.3)
    reach = math.sqrt(1 - 2 * half_width**2)

    def distance(p: Floats) -> Floats:
        a = np.abs(p)
        low, high = np.minimum(a[0], a[1]), np.maximum(a[0], a[1])
        middle = np.maximum(low, np.minimum(high, a[2]))  # of three bars, the nearest lies along the largest
        return _smooth_max(np.maximum(high, a[2]) - reach, middle - half_width)

    return distance


def _bowl(rng: Generator) -> Distance:
    half_wall = uniform(rng, 0.06, 0.1)
    rim = uniform(rng, -0.1, 0.2)

    def distance(p: Floats) -> Floats:
        shell = np.abs(length(p) - (1 - half_wall)) - half_wall
        return _smooth_max(shell, p[1] - rim)

    return distance


# Alphabetical, so that the ids equal those of a reader that sorts class folders.
CLASSES: dict[str, Callable[[Generator], Distance]] = {
    "bowl": _bowl,
    "box": _box,
    "capsule": _capsule,
    "cone": lambda rng: _tapered(lambda p: length(p[::2]), uniform(rng, 0.55, 0.8)),
    "cross": _cross,
    "cylinder": _cylinder,
    "pyramid": lambda rng: _tapered(
        lambda p: _smooth_max(np.abs(p[0]), np.abs(p[2])), uniform(rng, 0.46, 0.56)
    ),
    "sphere": lambda rng: lambda p: length(p) - 1,  # the one shape without proportions
    "star": _star,
    "torus": _torus,
}
