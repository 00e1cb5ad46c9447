"""What the page shows of a core trace: images, drawn with Pillow, and a small table."""

from typing import NamedTuple

import numpy as np
from matplotlib import colormaps
from PIL import Image, ImageColor, ImageDraw

from veca.page.traces import CoreTrace, Cost
from veca.utils.maps import Array, as_pixels, core_maps, core_paths, cosine_map, joint_colours, patch_at

SHOWN = (384, 384)
TILE = (44, 44)
COLUMNS = 8
GAP = 3
BLANK = (240, 240, 243)
_DARKEST = 0.07  # where the colour map begins: its own end is black
HEAT = 0.75  # share of a map's colour, over what is left of the picture

Grid = tuple[int, int]


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
    sides, maps = [], joint_colours([trace.patches for trace in traces], method="pca")
    for trace, rgb in zip(traces, maps, strict=True):
        patch = patch_at(choice.x, choice.y, size=(1, 1), grid=trace.grid)
        values = cosine_map(trace.patches, trace.patches[patch])
        low, high = float(values.min()), float(values.max())
        heat = show_heat(base, (values - low) / max(high - low, 1e-6), grid=trace.grid)  # only order counts
        colours = Image.fromarray(as_pixels(rgb, trace.grid)).resize(SHOWN, Image.Resampling.NEAREST)
        marked, similar = (mark_patch(picture, patch, grid=trace.grid) for picture in (colours, heat))
        sheet = _core_sheet(view, trace, choice, num_cores=num_cores)
        sides.append(Pictures(marked, similar, sheet, _core_path(base, trace, choice)))
    return sides


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


def show_heat(image: Image.Image, values: Array, *, grid: Grid) -> Image.Image:
    """A map (N,) in [0, 1] over a greyed image."""
    heat = Image.fromarray(values.reshape(grid)).resize(image.size, Image.Resampling.BICUBIC)
    levels = _DARKEST + (1 - _DARKEST) * np.asarray(heat)
    colours = Image.fromarray(colormaps["inferno"](levels, bytes=True)[..., :3])
    return Image.blend(image.convert("L").convert("RGB"), colours, HEAT)


def mark_patch(image: Image.Image, patch: int, *, grid: Grid) -> Image.Image:
    """The same image with a frame around one patch."""
    rows, cols = grid
    row, col = divmod(patch, cols)
    width, height = image.size[0] / cols, image.size[1] / rows
    marked = image.copy()
    box = (col * width, row * height, (col + 1) * width - 1, (row + 1) * height - 1)
    ImageDraw.Draw(marked).rectangle(tuple(round(edge) for edge in box), outline="white", width=2)
    return marked


def draw_paths(image: Image.Image, paths: Array, *, chosen: int | None = None) -> Image.Image:
    """Paths (C, L, 2) in pixels of `image`, faint at the first layer's end and dotted at the last.

    With a `chosen` core the others are thin and grey.
    """
    drawn = image.copy()
    draw = ImageDraw.Draw(drawn)
    for core in sorted(range(len(paths)), key=lambda core: core == chosen):  # the chosen one on top
        points = [(float(x), float(y)) for x, y in paths[core]]
        loud = chosen is None or core == chosen
        colour = core_colour(core, len(paths)) if loud else (205, 205, 205)
        if core == chosen:
            draw.line(points, fill=(0, 0, 0), width=5)
        draw.line(points, fill=colour, width=3 if core == chosen else 1)
        draw.circle(points[0], 1.5, fill=colour, outline=(0, 0, 0))
        draw.circle(points[-1], 5 if core == chosen else 3 if loud else 2, fill=colour, outline=(0, 0, 0))
    return drawn


def mosaic(tiles: list[Image.Image], *, columns: int, gap: int) -> Image.Image:
    """Equal tiles in rows of `columns`."""
    width, height = tiles[0].size[0] + gap, tiles[0].size[1] + gap
    rows = -(-len(tiles) // columns)
    sheet = Image.new("RGB", (columns * width - gap, rows * height - gap), (255, 255, 255))
    for number, tile in enumerate(tiles):
        row, col = divmod(number, columns)
        sheet.paste(tile, (col * width, row * height))
    return sheet


def core_colour(core: int, count: int) -> tuple[int, ...]:
    """A colour of its own for each core; neighbours in the bank lie far apart on the circle."""
    hue = core * 222.5 % 360  # the golden angle
    return ImageColor.getrgb(f"hsv({hue}, {75 if core % 2 else 95}%, {100 if core < count / 2 else 85}%)")
