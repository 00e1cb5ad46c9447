"""Arrays of maps.py on top of an image: colours, heat, markers and paths, with Pillow alone."""

import colorsys

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from veca.utils.maps import Array

Grid = tuple[int, int]

# A perceptually even ramp, dark to light; in between, colours are interpolated.
_RAMP = np.array(
    [
        (12, 8, 38),
        (74, 12, 107),
        (140, 41, 99),
        (203, 71, 72),
        (243, 120, 25),
        (252, 193, 47),
        (252, 255, 164),
    ],
    dtype=np.float32,
)


def show_colours(colours: Array, *, grid: Grid, size: tuple[int, int]) -> Image.Image:
    """RGB per patch (N, 3) in [0, 1] as a picture of (width, height)."""
    pixels = (colours.reshape(*grid, 3) * 255).round().astype(np.uint8)
    return Image.fromarray(pixels).resize(size, Image.Resampling.NEAREST)


def show_heat(image: Image.Image, values: Array, *, grid: Grid, strength: float = 0.75) -> Image.Image:
    """A map (N,) in [0, 1] over a greyed image."""
    heat = Image.fromarray(values.reshape(grid)).resize(image.size, Image.Resampling.BICUBIC)
    level = np.clip(np.asarray(heat), 0, 1)
    base = np.asarray(image.convert("L").convert("RGB"), dtype=np.float32)
    mixed = (1 - strength) * base + strength * _ramp(level)
    return Image.fromarray(mixed.round().clip(0, 255).astype(np.uint8))


def mark_patch(image: Image.Image, patch: int, *, grid: Grid) -> Image.Image:
    """The same image with a frame around one patch."""
    rows, cols = grid
    row, col = divmod(patch, cols)
    width, height = image.size[0] / cols, image.size[1] / rows
    marked = image.copy()
    box = (col * width, row * height, (col + 1) * width - 1, (row + 1) * height - 1)
    draw = ImageDraw.Draw(marked)
    draw.rectangle(tuple(round(edge) for edge in box), outline="white", width=2)
    return marked


def draw_paths(image: Image.Image, paths: Array, *, chosen: int | None = None) -> Image.Image:
    """Paths (C, L, 2) in pixels of `image`, faint at the first layer's end and dotted at the last.

    With a `chosen` core the others are thin and grey.
    """
    drawn = image.copy()
    draw = ImageDraw.Draw(drawn)
    order = [core for core in range(len(paths)) if core != chosen] + ([] if chosen is None else [chosen])
    for core in order:
        points = [(float(x), float(y)) for x, y in paths[core]]
        loud = chosen is None or core == chosen
        colour = core_colour(core, len(paths)) if loud else (205, 205, 205)
        if core == chosen:
            draw.line(points, fill=(0, 0, 0), width=5)
        draw.line(points, fill=colour, width=3 if core == chosen else 1)
        _dot(draw, points[0], 1.5, colour)
        _dot(draw, points[-1], 5 if core == chosen else 3 if loud else 2, colour)
    return drawn


def mosaic(tiles: list[Image.Image], *, columns: int, gap: int = 3) -> Image.Image:
    """Equal tiles in rows of `columns`."""
    width, height = tiles[0].size
    rows = -(-len(tiles) // columns)
    size = (columns * (width + gap) - gap, rows * (height + gap) - gap)
    sheet = Image.new("RGB", size, (255, 255, 255))
    for number, tile in enumerate(tiles):
        row, col = divmod(number, columns)
        sheet.paste(tile, (col * (width + gap), row * (height + gap)))
    return sheet


def core_colour(core: int, count: int) -> tuple[int, int, int]:
    """A colour of its own for each core; neighbours in the bank lie far apart on the circle."""
    hue = (core * 0.618034) % 1.0
    red, green, blue = colorsys.hsv_to_rgb(hue, 0.75 if core % 2 else 0.95, 1.0 if core < count / 2 else 0.85)
    return round(255 * red), round(255 * green), round(255 * blue)


def _dot(
    draw: ImageDraw.ImageDraw, place: tuple[float, float], radius: float, colour: tuple[int, int, int]
) -> None:
    x, y = place
    draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=colour, outline=(0, 0, 0))


def _ramp(level: NDArray[np.float32]) -> NDArray[np.float32]:
    """Levels (H, W) in [0, 1] → RGB (H, W, 3) in [0, 255]."""
    stops = np.linspace(0, 1, len(_RAMP))
    channels = [np.interp(level, stops, _RAMP[:, channel]) for channel in range(3)]
    return np.stack(channels, axis=-1).astype(np.float32)
