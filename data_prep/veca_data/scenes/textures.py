"""Solid textures: a pattern gives each point of space a mix of two colours.

A pattern maps points (3, n) and the pixel's footprint (n,), both in the pattern's unit, to a weight in
[0, 1]. Edges are as wide as the footprint and patterns finer than it fade, so nothing flickers far away.
Planes pass (u, v, 0): every pattern must also work on that slice.
"""

import colorsys
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.random import Generator

from veca_data.scenes.shapes import Floats, length, uniform

Pattern = Callable[[Floats, Floats], Floats]


class Texture(NamedTuple):
    """Two linear RGB colours and the pattern that mixes them; `scale` is the size of the pattern's unit."""

    pattern: Pattern
    colours: Floats  # (2, 3)
    scale: float

    def albedo(self, points: Floats, footprint: Floats) -> Floats:
        weight = self.pattern(points / self.scale, footprint / self.scale)
        first, second = self.colours[:, :, None]
        return np.asarray(first + (second - first) * weight)


def draw_colour(
    rng: Generator,
    *,
    saturation: tuple[float, float],
    value: tuple[float, float],
    hue: tuple[float, float] = (0, 1),
) -> Floats:
    """A linear RGB colour; the square undoes the square root that render.py ends with."""
    rgb = colorsys.hsv_to_rgb(uniform(rng, *hue), uniform(rng, *saturation), uniform(rng, *value))
    return np.array(rgb, dtype=np.float32) ** 2


def noise(rng: Generator, *, waves: int = 7) -> Callable[[Floats], Floats]:
    """Smooth noise of about unit period and range [-1, 1]: random plane waves, the finer the weaker."""
    frequencies = 2.0 * 1.45 ** np.arange(waves)
    directions = rng.standard_normal((waves, 3))
    directions *= (frequencies / np.sqrt((directions**2).sum(axis=1)))[:, None]
    phases = rng.uniform(0, 2 * math.pi, waves)
    terms = [
        (*map(float, d), float(phase), float(1 / f))
        for d, phase, f in zip(directions, phases, frequencies, strict=True)
    ]

    def value(p: Floats) -> Floats:
        total: Floats = np.zeros_like(p[0])
        for x, y, z, phase, weight in terms:
            total += weight * np.sin(x * p[0] + y * p[1] + z * p[2] + phase)
        return total

    return value


def _edge(signed: Floats, width: Floats) -> Floats:
    """A step at zero, `width` wide."""
    return np.clip(0.5 + signed / np.maximum(width, 0.02), 0, 1)


def _cell_tone(*cells: Floats) -> Floats:
    """A fixed pseudo-random number in [0, 1) for each integer cell."""
    mixed = np.zeros(cells[0].shape, dtype=np.uint32)
    for cell in cells:
        mixed = (mixed ^ cell.astype(np.int32).view(np.uint32)) * np.uint32(0x9E3779B1)
        mixed ^= mixed >> np.uint32(15)
    return (mixed >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)


def _plain(rng: Generator) -> Pattern:
    cloud = noise(rng)
    return lambda p, footprint: np.clip(0.25 + 0.25 * cloud(p), 0, 1)


def _stripes(rng: Generator) -> Pattern:
    angle, rise = uniform(rng, 0, math.pi), uniform(rng, -0.8, 0.8)
    wobble, cloud, duty = uniform(rng, 0, 0.5), noise(rng, waves=3), uniform(rng, -0.4, 0.4)
    x, y = math.cos(angle) * 6, math.sin(angle) * 6

    def pattern(p: Floats, footprint: Floats) -> Floats:
        phase = x * p[0] + y * p[1] + rise * 6 * p[2] + wobble * cloud(p)
        return _edge(np.sin(phase) - duty, 9 * footprint)

    return pattern


def _checks(rng: Generator) -> Pattern:
    frequency = uniform(rng, 4.5, 6.5)

    def pattern(p: Floats, footprint: Floats) -> Floats:
        product = np.sin(frequency * p[0]) * np.sin(frequency * p[1]) * np.cos(frequency * p[2])
        return _edge(product, 1.5 * frequency * footprint)

    return pattern


def _dots(rng: Generator) -> Pattern:
    frequency, radius = uniform(rng, 1.6, 2.4), uniform(rng, 0.28, 0.38)

    def pattern(p: Floats, footprint: Floats) -> Floats:
        q = p * frequency
        return _edge(radius - length(q - np.rint(q)), 1.5 * frequency * footprint)

    return pattern


def _marble(rng: Generator) -> Pattern:
    cloud, turbulence = noise(rng), uniform(rng, 1.5, 3.5)

    def pattern(p: Floats, footprint: Floats) -> Floats:
        vein: Floats = 1 - np.abs(np.sin(2.5 * (p[0] + p[1] + p[2]) + turbulence * cloud(p)))
        return vein * vein

    return pattern


def _wood(rng: Generator) -> Pattern:
    cloud, rings, off = noise(rng, waves=4), uniform(rng, 5, 8), uniform(rng, 0.2, 0.8)
    squeeze = np.array([[0.2], [1], [1]], dtype=np.float32)  # the grain runs along x

    def pattern(p: Floats, footprint: Floats) -> Floats:
        q = p * squeeze
        ring = rings * length(np.stack([q[1] - off, q[2] + off])) + 0.9 * cloud(q)
        late: Floats = ring - np.floor(ring)  # wood darkens through the season
        return late * late * (1 - _edge(late - 0.9, rings * footprint))

    return pattern


def _blobs(rng: Generator) -> Pattern:
    cloud, level = noise(rng), uniform(rng, -0.2, 0.3)
    return lambda p, footprint: _edge(cloud(p) - level, 0.1 + 6 * footprint)


def _terrazzo(rng: Generator) -> Pattern:
    cloud = noise(rng, waves=3)
    grains = uniform(rng, 7, 11)

    def pattern(p: Floats, footprint: Floats) -> Floats:
        q = np.floor(p * grains + 0.6 * cloud(p * (grains / 3)))
        tone = _cell_tone(q[0], q[1], q[2]) - 0.5
        tone /= 1 + grains * footprint
        return tone + 0.5

    return pattern


def _bricks(rng: Generator) -> Pattern:
    """Bricks, tiles or planks with joints: for planes only."""
    long, joint = uniform(rng, 1, 4), uniform(rng, 0.02, 0.05)
    shift = uniform(rng, 0.3, 0.7) if long > 1.4 else 0.0
    cloud, grain = noise(rng, waves=4), np.array([[0.8], [5], [1]], dtype=np.float32)

    def pattern(p: Floats, footprint: Floats) -> Floats:
        row = np.floor(p[1] * 2)
        u, v = p[0] * (2 / long) + shift * row, p[1] * 2
        column = np.floor(u)
        inside = np.minimum(np.minimum(u - column, column + 1 - u) * long, np.minimum(v - row, row + 1 - v))
        tone = 0.1 + 0.45 * _cell_tone(column, row) + 0.12 * cloud(p * grain)
        body = 1 - _edge(inside - joint, 3 * footprint) / (1 + 2 * footprint)
        weight: Floats = np.clip(np.maximum(tone, body), 0, 1)
        return weight

    return pattern


_SOLID = (_plain, _stripes, _checks, _dots, _marble, _wood, _blobs, _terrazzo)
_PLANE = (*_SOLID, _plain, _bricks, _bricks, _bricks)


def draw_object_texture(rng: Generator) -> Texture:
    """Any pattern in any two colours: independent of the object's class, so that colour tells nothing."""
    pattern = _SOLID[rng.integers(len(_SOLID))](rng)
    first = draw_colour(rng, saturation=(0.3, 0.9), value=(0.5, 1))
    neutral = uniform(rng, 0, 1) < 0.5
    second = draw_colour(rng, saturation=(0, 0.2) if neutral else (0.3, 0.9), value=(0.15, 1))
    return Texture(pattern, np.stack([first, second]), uniform(rng, 0.7, 1.2))


def draw_plane_texture(rng: Generator) -> Texture:
    """Floors and walls: mostly earth colours and greys, the second colour a variation of the first."""
    pattern = _PLANE[rng.integers(len(_PLANE))](rng)
    earthy = uniform(rng, 0, 1) < 0.5
    hue, saturation = ((0.02, 0.14), (0.1, 0.6)) if earthy else ((0.0, 1.0), (0.0, 0.4))
    first = draw_colour(rng, hue=hue, saturation=saturation, value=(0.45, 0.95))
    second = draw_colour(rng, hue=hue, saturation=saturation, value=(0.2, 0.95))
    share = uniform(rng, 0.25, 0.8)
    return Texture(pattern, np.stack([first, first + (second - first) * share]), uniform(rng, 0.3, 0.9))
