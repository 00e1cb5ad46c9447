"""The object classes, ten solids as signed distance functions, and how rays meet them (Hart 1996).

A builder draws the proportions of one object and returns its distance function: points (3, n) → (n,). Each is
1-Lipschitz, vanishes exactly on the surface and fits into the unit ball, so a ray may safely advance by it.
`_smooth_max` keeps this property, because its gradient is a convex combination of those of its arguments; it
also rounds the edges. Up is y. Star and torus have z as their axis, so that they face a viewer.

Rays are origin (3, 1) or (3, n) plus t times direction (3, n); directions need not have unit length.
Everything is element-wise float32 without BLAS: the same bits whatever the number of threads.
"""

import math
from collections.abc import Callable

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Distance = Callable[[Floats], Floats]

# In units of the bounding ball:
_ROUNDING = 0.05  # radius of edges
_TOLERANCE = 2e-3  # a hit
_GRAZE = 0.02  # a hit for a ray that has used up its steps: one that creeps along an edge
_ROUNDS = 12
_STEPS = 4  # per round; finished rays leave between rounds, since leaving costs about as much as a step


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


def _tapered(reach: Callable[[Floats], Floats], *, half_width: float, base: float) -> Distance:
    """From a base at y = -base to a point at y = 1; `reach` measures how far a point is from the axis."""
    slope = math.hypot(1 + base, half_width)
    across, along = (1 + base) / slope, half_width / slope
    return lambda p: _smooth_max(across * reach(p) + along * (p[1] - 1), -base - p[1])


def _cone(rng: Generator) -> Distance:
    return _tapered(lambda p: length(p[::2]), half_width=uniform(rng, 0.55, 0.8), base=0.6)


def _pyramid(rng: Generator) -> Distance:
    def reach(p: Floats) -> Floats:
        return _smooth_max(np.abs(p[0]), np.abs(p[2]))

    return _tapered(reach, half_width=uniform(rng, 0.46, 0.56), base=0.6)


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
    "cone": _cone,
    "cross": _cross,
    "cylinder": _cylinder,
    "pyramid": _pyramid,
    "sphere": lambda rng: lambda p: length(p) - 1,  # the one shape without proportions
    "star": _star,
    "torus": _torus,
}
