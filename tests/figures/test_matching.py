"""Pixels that carry their own position say whether a view is led back to where it came from."""

import numpy as np
import pytest
import torch

from veca.data.augment import View, centre_view, render_pixels
from veca.data.decode import Pixels
from veca.figures.matching import match_maps, match_places, resize_maps, way_back

WIDTH, HEIGHT, SIDE = 108, 72, 64  # resized to 9/8 of 64 already: nothing is interpolated


def position_image() -> Pixels:
    """Red is x + 1 and green is y + 1; blue tells the picture from black fill."""
    x, y = np.meshgrid(np.arange(WIDTH), np.arange(HEIGHT))
    rgb = np.stack((x + 1, y + 1, np.full_like(x, 255)), axis=-1).astype(np.uint8)
    return Pixels(rgb, (WIDTH, HEIGHT))


VIEWS = [
    View(SIDE, WIDTH, HEIGHT, 30, 2, False, "Identity", 0.0),
    View(SIDE, WIDTH, HEIGHT, 10, 8, True, "Identity", 0.0),
    View(SIDE, WIDTH, HEIGHT, 22, 4, True, "TranslateX", 9.0),
    View(SIDE, WIDTH, HEIGHT, 22, 4, False, "TranslateY", -7.0),
    View(SIDE, WIDTH, HEIGHT, 25, 1, True, "ShearX", 0.4),
    View(SIDE, WIDTH, HEIGHT, 25, 1, False, "ShearY", -0.3),
    View(SIDE, WIDTH, HEIGHT, 18, 3, True, "Rotate", 33.0),
    View(SIDE, WIDTH, HEIGHT, 18, 3, False, "Rotate", -101.0),
]


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: f"{view.op}{'-flip' * view.flip}")
def test_every_pixel_is_led_back(view: View) -> None:
    plain = centre_view(size=(WIDTH, HEIGHT), resolution=SIDE)
    pixels = render_pixels(position_image(), view).astype(np.float64)
    y, x = np.nonzero(pixels[2] == 255)
    assert len(x) > 0.3 * SIDE**2
    came_from = np.stack((pixels[0][y, x] - 0.5 - plain.left, pixels[1][y, x] - 0.5 - plain.top), axis=1)
    centres = torch.from_numpy(np.stack((x + 0.5, y + 0.5), axis=1) / SIDE * 2 - 1)
    back = (match_places(centres, way_back(view, plain), side=SIDE).numpy() + 1) / 2 * SIDE
    assert np.abs(back - came_from).max() < 0.51  # nearest interpolation


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: f"{view.op}{'-flip' * view.flip}")
def test_maps_of_the_picture_itself_agree(view: View) -> None:
    """A map that is linear in the position can be compared exactly, and black fill does not count."""
    plain = centre_view(size=(WIDTH, HEIGHT), resolution=SIDE)
    grid = (SIDE, SIDE)  # a patch is a pixel
    image, seen = (render_pixels(position_image(), v).astype(np.float64) for v in (plain, view))
    maps = torch.from_numpy(image[:2].reshape(2, -1))
    expected, valid = match_maps(maps, way_back(view, plain), view=view, grid=grid)
    filled = torch.from_numpy((seen[2] == 0).ravel())
    assert valid.sum() > 0.1 * SIDE**2
    assert (valid & filled).sum() <= 0.02 * SIDE**2  # rounding, along the edge of the fill
    valid = valid & ~filled
    assert (expected[:, valid] - torch.from_numpy(seen[:2].reshape(2, -1))[:, valid]).abs().max() < 1.01


def test_colours_move_nothing() -> None:
    plain = centre_view(size=(WIDTH, HEIGHT), resolution=SIDE)
    np.testing.assert_array_equal(way_back(plain._replace(op="Solarize", magnitude=99.0), plain), np.eye(3))


def test_only_views_of_one_size_match() -> None:
    plain = centre_view(size=(WIDTH, HEIGHT), resolution=SIDE)
    with pytest.raises(ValueError, match="one resolution"):
        way_back(plain._replace(width=200), plain)


def test_resizing_keeps_mass_in_its_place() -> None:
    maps = torch.rand(3, 8 * 8)
    small = resize_maps(maps, (8, 8), to=(4, 4))
    blocks = maps.reshape(3, 4, 2, 4, 2).mean((2, 4)).reshape(3, 16)
    torch.testing.assert_close(small, blocks)
    assert torch.equal(resize_maps(maps, (8, 8), to=(8, 8)), maps)
