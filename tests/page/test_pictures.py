import numpy as np
from PIL import Image

from veca.page.pictures import core_colour, draw_paths, mark_patch, mosaic, show_heat

GREY = Image.new("RGB", (60, 40), (128, 128, 128))


def test_heat_is_brightest_where_the_map_is_largest() -> None:
    values = np.array([0, 0, 0, 0, 0, 1], dtype=np.float32)
    picture = np.asarray(show_heat(GREY, values, grid=(2, 3))).sum(-1)
    assert picture[30, 50] > 1.5 * picture[10, 10]


def test_the_frame_is_around_the_patch() -> None:
    changed = np.asarray(mark_patch(GREY, 4, grid=(2, 3))) != np.asarray(GREY)
    rows, cols = np.nonzero(changed.any(-1))
    assert (rows.min(), rows.max(), cols.min(), cols.max()) == (20, 39, 20, 39)


def test_paths_go_where_they_lead() -> None:
    paths = np.array([[[5, 5], [30, 5]], [[50, 35], [50, 35]]], dtype=np.float32)
    picture = np.asarray(draw_paths(GREY, paths))
    assert tuple(picture[5, 15]) == core_colour(0, 2)
    assert tuple(picture[35, 50]) == core_colour(1, 2)
    assert tuple(np.asarray(draw_paths(GREY, paths, chosen=1))[5, 15]) == (205, 205, 205)


def test_a_mosaic_holds_its_tiles_in_order() -> None:
    tiles = [Image.new("RGB", (4, 4), (number, 0, 0)) for number in range(5)]
    sheet = np.asarray(mosaic(tiles, columns=3, gap=2))
    assert sheet.shape == (10, 16, 3)
    assert [int(sheet[row, col, 0]) for row, col in [(0, 0), (0, 6), (0, 12), (6, 0), (6, 6)]] == [
        0,
        1,
        2,
        3,
        4,
    ]
