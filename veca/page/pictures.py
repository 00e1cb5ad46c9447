"""What the page shows of a core trace: images, drawn with Pillow alone, and a small table."""

import colorsys
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from veca.page.traces import CoreTrace, Cost
from veca.utils.maps import Array, core_maps, core_paths, cosine_map, joint_colours, patch_at

SHOWN = (384, 384)
TILE = (44, 44)
COLUMNS = 8
GAP = 3
BLANK = (240, 240, 243)


class Choice(NamedTuple):
    """What the visitor has picked: a place on the image as shares of its sides, a core, a layer from 0."""

    x: float = 0.5
    y: float = 0.5
    core: int = 0
    layer: int = 0


class Pictures(NamedTuple):
    """One side of the page."""

    colours: Image.Image
    similarity: Image.Image
    cores: Image.Image
    path: Image.Image


def draw_sides(
    view: Image.Image, traces: list[CoreTrace], choice: Choice, *, num_cores: int
) -> list[Pictures]:
    """The pictures of all sides; colours are common to them, so that they can be compared."""
    base = view.resize(SHOWN, Image.Resampling.BICUBIC)
    colours = joint_colours([trace.patches for trace in traces], method="pca")
    return [
        Pictures(
            colours=_marked(show_colours(rgb, grid=trace.grid, size=SHOWN), trace, choice),
            similarity=_similarity(base, trace, choice),
            cores=_core_sheet(view, trace, choice, num_cores=num_cores),
            path=_core_path(base, trace, choice),
        )
        for trace, rgb in zip(traces, colours, strict=True)
    ]


def core_at(x: float, y: float, *, num_cores: int) -> int | None:
    """The core whose tile of the sheet lies under a pixel; None past the last."""
    col, row = int(x // (TILE[0] + GAP)), int(y // (TILE[1] + GAP))
    core = row * COLUMNS + min(col, COLUMNS - 1)
    return core if 0 <= core < num_cores else None


def cost_table(cost: Cost, trace: CoreTrace, *, budget: int) -> str:
    """FLOPs, time and attention pairs, with full attention beside them."""
    share = cost.interactions / cost.full_interactions
    rows = (
        ("compute", f"{cost.flops / 1e9:.2f} GFLOP"),
        ("time here", f"{trace.milliseconds:.0f} ms"),
        ("attention pairs per layer", f"{cost.interactions:,}"),
        ("with full attention", f"{cost.full_interactions:,}"),
    )
    cells = "".join(f"<tr><td>{name}</td><td>{value}</td></tr>" for name, value in rows)
    return (
        f'<div class="cost"><div class="share"><b>{share:.1%}</b> of full attention’s pairs '
        f'with {budget} cores</div><div class="bar"><div style="width:{min(100.0, 100 * share):.1f}%"></div>'
        f"</div><table>{cells}</table></div>"
    )


def _patch(trace: CoreTrace, choice: Choice) -> int:
    return patch_at(choice.x, choice.y, size=(1, 1), grid=trace.grid)


def _marked(image: Image.Image, trace: CoreTrace, choice: Choice) -> Image.Image:
    return mark_patch(image, _patch(trace, choice), grid=trace.grid)


def _similarity(base: Image.Image, trace: CoreTrace, choice: Choice) -> Image.Image:
    """Cosine to the chosen patch, its range stretched over the colours: what counts is the order."""
    values = cosine_map(trace.patches, trace.patches[_patch(trace, choice)])
    low, high = float(values.min()), float(values.max())
    return _marked(show_heat(base, (values - low) / max(high - low, 1e-6), grid=trace.grid), trace, choice)


def _core_sheet(view: Image.Image, trace: CoreTrace, choice: Choice, *, num_cores: int) -> Image.Image:
    """A tile for every core of the bank; the ones that are not active are blank."""
    small = view.resize(TILE, Image.Resampling.BICUBIC)
    maps = core_maps(trace.contributions[choice.layer])
    tiles = [show_heat(small, values, grid=trace.grid) for values in maps]
    if choice.core < len(tiles):
        tiles[choice.core] = mark_patch(tiles[choice.core], 0, grid=(1, 1))
    tiles += [Image.new("RGB", TILE, BLANK)] * (num_cores - len(tiles))
    return mosaic(tiles, columns=COLUMNS, gap=GAP)


def _core_path(base: Image.Image, trace: CoreTrace, choice: Choice) -> Image.Image:
    """What the chosen core attends to, and where all cores went; one that is not active here has no map."""
    paths = core_paths(trace.places, size=SHOWN)
    if choice.core >= len(paths):
        return draw_paths(base, paths)
    heat = show_heat(base, core_maps(trace.contributions[choice.layer])[choice.core], grid=trace.grid)
    return draw_paths(heat, paths, chosen=choice.core)


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
