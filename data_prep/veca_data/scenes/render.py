"""From a layout to a picture: textures, light with soft shadows, and the small faults of a camera.

Pixel arrays are flat (n,), vectors (3, n), colours linear until `_expose`.
"""

import math
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from veca_data.scenes.layout import Body, Layout, draw_layout, rotate
from veca_data.scenes.march import ball_span, normals, sunlight
from veca_data.scenes.shapes import CLASSES, Floats, length, uniform
from veca_data.scenes.textures import Texture, draw_colour, draw_object_texture, draw_plane_texture


class Scene(NamedTuple):
    """One sample: all arrays are size × size."""

    image: NDArray[np.uint8]  # (size, size, 3) sRGB
    semantic: NDArray[np.uint8]  # 0 background, else 1 + position of the class in CLASSES
    instance: NDArray[np.uint8]  # 0 background, 1 the main object
    depth: NDArray[np.uint16]  # millimetres along the optical axis


class Light(NamedTuple):
    """A distant key light and the glow of sky and floor."""

    towards: Floats  # (3, 1) unit
    key: Floats  # (3, 1)
    sky: Floats  # (3, 1)
    bounce: Floats  # (3, 1)


class Surface(NamedTuple):
    """What the camera sees, with the pixels sorted by part: floor, wall, then the bodies.

    Each part is one slice of every array: gathers and scatters would otherwise take half the time.
    """

    part: NDArray[np.uint8]  # (n,) row-major, as in the picture
    order: NDArray[np.intp]  # (n,) the pixel of each entry of the arrays below
    parts: list[slice]
    rays: Floats  # (3, n)
    points: Floats  # (3, n)
    footprint: Floats  # (n,) width of a pixel there, in metres
    normals: Floats  # (3, n)
    albedo: Floats  # (3, n)
    gloss: Floats  # (n,)


def render_scene(*, seed: int, index: int, label: str, size: int) -> Scene:
    rng = np.random.default_rng([seed, index])
    layout = draw_layout(rng, label=label, size=size)
    surface = _draw_surface(rng, layout)
    colour = np.empty_like(surface.points)
    for row, shaded in zip(colour, _shade(layout, surface, _draw_light(rng)), strict=True):
        row[surface.order] = shaded
    image = _expose(rng, colour.reshape(3, size, size), surface.part.reshape(size, size))
    names = [body.class_name for body in layout.bodies]
    class_ids = np.array([0, *(1 + list(CLASSES).index(name) for name in names)], dtype=np.uint8)
    millimetres = np.clip(np.rint(layout.depth * 1000), 1, 65535).astype(np.uint16)
    instance = layout.instance.reshape(size, size)
    return Scene(image, class_ids[instance], instance, millimetres.reshape(size, size))


def _draw_surface(rng: Generator, layout: Layout) -> Surface:
    surface = _sort_by_part(layout)
    angle = uniform(rng, 0, math.pi)
    cosine, sine, (x, _, z) = math.cos(angle), math.sin(angle), layout.wall.normal
    floor, wall = [[cosine, 0, sine], [-sine, 0, cosine], [0, 1, 0]], [[-z, 0, x], [0, 1, 0], [x, 0, z]]
    for part, axes in zip(surface.parts, (floor, wall), strict=False):
        _paint_plane(surface, part, np.array(axes, dtype=np.float32), draw_plane_texture(rng))
    for part, body in zip(surface.parts[2:], layout.bodies, strict=True):
        local, footprint = body.to_local(surface.points[:, part]), surface.footprint[part]
        surface.albedo[:, part] = draw_object_texture(rng).albedo(local, footprint / body.scale)
        surface.normals[:, part] = rotate(body.turn, normals(body.distance, local))
        surface.gloss[part] = uniform(rng, 0.02, 0.5)
    return surface


def _sort_by_part(layout: Layout) -> Surface:
    """A surface without colours and normals."""
    camera = layout.camera
    height = camera.origin[1] + layout.depth * camera.rays[1]
    part = layout.instance + np.uint8(1)
    part[(layout.instance == 0) & (height < 1e-3)] = 0
    ends = [0, *(int(end) for end in np.cumsum(np.bincount(part, minlength=2 + len(layout.bodies))))]
    order = np.argsort(part, kind="stable")
    rays, depth = camera.rays.take(order, axis=1), layout.depth[order]
    return Surface(
        part=part,
        order=order,
        parts=[slice(start, end) for start, end in pairwise(ends)],
        rays=rays,
        points=camera.origin + depth * rays,
        footprint=depth / camera.focal,
        normals=np.empty_like(rays),
        albedo=np.empty_like(rays),
        gloss=np.zeros_like(depth),
    )


def _paint_plane(surface: Surface, part: slice, axes: Floats, texture: Texture) -> None:
    """Colour floor or wall; the rows of `axes` are two directions in the plane and its normal."""
    points, rays = rotate(axes, surface.points[:, part]), surface.rays[:, part]
    points[2] = 0
    normal = axes[2][:, None]
    facing: Floats = np.maximum(np.abs(_dot(normal, rays)) / length(rays), 0.05)
    surface.albedo[:, part] = texture.albedo(points, surface.footprint[part] / facing)
    surface.normals[:, part] = normal


def _draw_light(rng: Generator) -> Light:
    azimuth, elevation = uniform(rng, -2.0, 2.0), uniform(rng, 0.6, 1.2)
    flat = math.cos(elevation)
    towards = np.array(
        [[flat * math.sin(azimuth)], [math.sin(elevation)], [-flat * math.cos(azimuth)]], dtype=np.float32
    )
    warmth = uniform(rng, -0.12, 0.12)
    key = uniform(rng, 0.85, 1.25) * np.array([[1 + warmth], [1], [1 - warmth]], dtype=np.float32)
    sky = 0.42 * draw_colour(rng, saturation=(0, 0.25), value=(0.75, 1))[:, None]
    return Light(towards, key, sky, sky * 0.6)


def _shade(layout: Layout, surface: Surface, light: Light) -> Floats:
    sun, open_sky = _visibility(layout, surface, light)
    sun *= _spot(layout, surface)
    upness = 0.5 + 0.5 * surface.normals[1]
    colour: Floats = (light.bounce + (light.sky - light.bounce) * upness) * open_sky
    colour += light.key * (np.maximum(_dot(surface.normals, light.towards), 0) * sun)
    colour *= surface.albedo
    bodies = slice(surface.parts[2].start, None)
    glint = _highlight(surface, bodies, light)
    colour[:, bodies] += light.key * (glint * sun[bodies] * surface.gloss[bodies])
    return colour


def _visibility(layout: Layout, surface: Surface, light: Light) -> tuple[Floats, Floats]:
    """Share of the key light and of the sky that reaches each pixel, past all bodies."""
    sun = np.ones_like(surface.gloss)
    # The floor itself hides half of the sky from what is close above it and does not look up.
    near_floor = np.clip(1 - surface.points[1] / 0.3, 0, 1) * np.clip(0.8 - surface.normals[1], 0, 1)
    open_sky = 1 - 0.5 * near_floor
    for part, body in zip(surface.parts[2:], layout.bodies, strict=True):
        offset = surface.points - body.centre
        along, squared = _dot(offset, light.towards), _dot(offset, offset)
        reach = 1.15 * body.scale  # of the penumbra, as far as it matters
        shaded = np.flatnonzero((squared - along * along < reach**2) & (along < reach))
        sun[shaded] *= _sun_past(body, surface, light, shaded)
        near = squared < (1.7 * body.scale) ** 2
        near[part] = False
        close = np.flatnonzero(near)
        gap = body.distance(body.to_local(surface.points.take(close, axis=1)))
        open_sky[close] *= 0.35 + 0.65 * np.clip(gap / 0.6, 0, 1)
    return sun, open_sky


def _sun_past(body: Body, surface: Surface, light: Light, pixels: NDArray[np.intp]) -> Floats:
    # A start above the surface keeps the body from shading the very point the ray leaves.
    points = surface.points.take(pixels, axis=1) + 0.015 * surface.normals.take(pixels, axis=1)
    local, towards = body.to_local(points), rotate(body.turn.T, light.towards)
    near, far = ball_span(local / 1.15, towards)
    start = np.maximum(near * 1.15, 0.04)
    return sunlight(body.distance, local, towards, near=start, far=far * 1.15)


def _spot(layout: Layout, surface: Surface) -> Floats:
    """The key light fades away from the main body, which gives the room depth."""
    offset = surface.points - layout.bodies[0].centre
    fading: Floats = 1 + 0.08 * _dot(offset, offset)
    return np.reciprocal(fading)


def _highlight(surface: Surface, part: slice, light: Light) -> Floats:
    """How closely each surface mirrors the light into the camera (Blinn's half vector)."""
    rays: Floats = surface.rays[:, part]
    half: Floats = light.towards - rays / length(rays)
    glint: Floats = np.maximum(_dot(surface.normals[:, part], half / length(half)), 0)
    for _ in range(5):  # to the power 32
        glint *= glint
    return glint


def _dot(first: Floats, second: Floats) -> Floats:
    return np.asarray(first[0] * second[0] + first[1] * second[1] + first[2] * second[2])


def _expose(rng: Generator, colour: Floats, part: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Soft highlights, gamma, antialiased outlines, vignette, noise, bytes."""
    # The median of some green values sets the exposure: one row in eight is enough.
    colour *= uniform(rng, 0.24, 0.42) / max(float(np.median(colour[1, ::8])), 0.02)
    picture = np.sqrt(colour / (1 + 0.35 * colour))
    picture = _soften(picture, part, blur=uniform(rng, 0, 0.35))
    ticks = np.linspace(-1, 1, part.shape[0], dtype=np.float32) ** 2
    picture *= 1 - uniform(rng, 0.02, 0.12) * (ticks[:, None] + ticks)
    picture += uniform(rng, 0.002, 0.015) * rng.standard_normal(picture.shape, dtype=np.float32)
    return np.ascontiguousarray((np.clip(picture, 0, 1) * 255 + 0.5).astype(np.uint8).transpose(1, 2, 0))


def _soften(picture: Floats, part: NDArray[np.uint8], *, blur: float) -> Floats:
    """A 3 × 3 tent filter: in full on outlines, which have one ray per pixel, and by `blur` elsewhere."""
    padded = np.pad(picture, ((0, 0), (1, 1), (1, 1)), mode="edge")
    rows = 0.25 * (padded[:, :-2] + padded[:, 2:]) + 0.5 * padded[:, 1:-1]
    soft = 0.25 * (rows[:, :, :-2] + rows[:, :, 2:]) + 0.5 * rows[:, :, 1:-1]
    share = np.full(part.shape, blur, dtype=np.float32)
    down, right = part[1:] != part[:-1], part[:, 1:] != part[:, :-1]
    share[1:][down] = share[:-1][down] = 1
    share[:, 1:][right] = share[:, :-1][right] = 1
    return np.asarray(picture + share * (soft - picture))
