"""What the page shows of a look: images and a small table."""

from typing import NamedTuple

from PIL import Image

from veca.page.looking import Cost, Look
from veca.utils.drawing import draw_paths, mark_patch, mosaic, show_colours, show_heat
from veca.utils.maps import core_maps, core_paths, patch_at, pca_colours, similarity_map

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


def draw_sides(view: Image.Image, looks: list[Look], choice: Choice, *, num_cores: int) -> list[Pictures]:
    """The pictures of all sides; colours are common to them, so that they can be compared."""
    base = view.resize(SHOWN, Image.Resampling.BICUBIC)
    colours = pca_colours([look.patches for look in looks])
    return [
        Pictures(
            colours=_marked(show_colours(rgb, grid=look.grid, size=SHOWN), look, choice),
            similarity=_similarity(base, look, choice),
            cores=_core_sheet(view, look, choice, num_cores=num_cores),
            path=_core_path(base, look, choice),
        )
        for look, rgb in zip(looks, colours, strict=True)
    ]


def core_at(x: float, y: float, *, num_cores: int) -> int | None:
    """The core whose tile of the sheet lies under a pixel; None past the last."""
    col, row = int(x // (TILE[0] + GAP)), int(y // (TILE[1] + GAP))
    core = row * COLUMNS + min(col, COLUMNS - 1)
    return core if 0 <= core < num_cores else None


def cost_table(cost: Cost, look: Look, *, budget: int) -> str:
    """FLOPs, time and attention pairs, with full attention beside them."""
    share = cost.interactions / cost.full_interactions
    rows = (
        ("compute", f"{cost.flops / 1e9:.2f} GFLOP"),
        ("time here", f"{look.milliseconds:.0f} ms"),
        ("attention pairs per layer", f"{cost.interactions:,}"),
        ("with full attention", f"{cost.full_interactions:,}"),
    )
    cells = "".join(f"<tr><td>{name}</td><td>{value}</td></tr>" for name, value in rows)
    return (
        f'<div class="cost"><div class="share"><b>{share:.1%}</b> of full attention’s pairs '
        f'with {budget} cores</div><div class="bar"><div style="width:{min(100.0, 100 * share):.1f}%"></div>'
        f"</div><table>{cells}</table></div>"
    )


def _patch(look: Look, choice: Choice) -> int:
    return patch_at(choice.x, choice.y, size=(1, 1), grid=look.grid)


def _marked(image: Image.Image, look: Look, choice: Choice) -> Image.Image:
    return mark_patch(image, _patch(look, choice), grid=look.grid)


def _similarity(base: Image.Image, look: Look, choice: Choice) -> Image.Image:
    """Cosine to the chosen patch, its range stretched over the colours: what counts is the order."""
    values = similarity_map(look.patches, _patch(look, choice))
    low, high = float(values.min()), float(values.max())
    return _marked(show_heat(base, (values - low) / max(high - low, 1e-6), grid=look.grid), look, choice)


def _core_sheet(view: Image.Image, look: Look, choice: Choice, *, num_cores: int) -> Image.Image:
    """A tile for every core of the bank; the ones that are not active are blank."""
    small = view.resize(TILE, Image.Resampling.BICUBIC)
    maps = core_maps(look.contributions[choice.layer])
    tiles = [show_heat(small, values, grid=look.grid) for values in maps]
    if choice.core < len(tiles):
        tiles[choice.core] = mark_patch(tiles[choice.core], 0, grid=(1, 1))
    tiles += [Image.new("RGB", TILE, BLANK)] * (num_cores - len(tiles))
    return mosaic(tiles, columns=COLUMNS, gap=GAP)


def _core_path(base: Image.Image, look: Look, choice: Choice) -> Image.Image:
    """What the chosen core attends to, and where all cores went; one that is not active here has no map."""
    paths = core_paths(look.places, size=SHOWN)
    if choice.core >= len(paths):
        return draw_paths(base, paths)
    heat = show_heat(base, core_maps(look.contributions[choice.layer])[choice.core], grid=look.grid)
    return draw_paths(heat, paths, chosen=choice.core)
