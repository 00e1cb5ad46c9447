"""Rays against signed distances: first hit, surface normal, soft shadow (sphere tracing, Hart 1996).

Rays are origin (3, 1) or (3, n) plus t times direction (3, n). Directions need not have unit length:
layout.py scales them so that t is the depth along the optical axis.
"""

import numpy as np

from veca_data.scenes.shapes import Distance, Floats, length

_TOLERANCE = 2e-3  # a hit, in units of the bounding ball
_GRAZE = 0.02  # a hit for a ray that has used up its steps: one that creeps along an edge
_ROUNDS = 12
_STEPS = 4  # per round; finished rays leave between rounds, since leaving costs about as much as a step
_SHADOW_STEPS = 14
_SHADOW_SHARPNESS = 7.0  # one over the angular radius of the light


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
    norm: Floats = np.maximum(length(total), 1e-6)
    return total / norm


def ball_span(origin: Floats, direction: Floats) -> tuple[Floats, Floats]:
    """Where each ray enters and leaves the unit ball; equal where it misses."""
    squared = direction[0] ** 2 + direction[1] ** 2 + direction[2] ** 2
    middle = -(origin[0] * direction[0] + origin[1] * direction[1] + origin[2] * direction[2]) / squared
    closest = origin + middle * direction
    beside = 1 - (closest[0] ** 2 + closest[1] ** 2 + closest[2] ** 2)
    half = np.sqrt(np.maximum(beside, 0) / squared)
    return middle - half, middle + half


def sunlight(distance: Distance, origin: Floats, direction: Floats, *, near: Floats, far: Floats) -> Floats:
    """The share of a distant round light that each ray of unit length sees: (n,) in [0, 1]."""
    share = np.ones_like(near)
    t = near.copy()
    for _ in range(_SHADOW_STEPS):
        gap = distance(origin + t * direction)
        gap += 1e3 * (t > far)  # past the ball: no longer in the way
        np.minimum(share, _SHADOW_SHARPNESS * gap / t, out=share)
        t += np.maximum(gap, 0.06)
    share = np.clip(share, 0, 1)
    return share * share * (3 - 2 * share)
