"""Windows cover the image; labels lie where the pixels do."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from tests.probes.fakes import coloured
from veca import preprocess
from veca.data.decode import decode
from veca.data.views import normalise
from veca.probes.datasets.splits import Item
from veca.probes.features import CentreView, Window, Windows, cover, sample_target


@pytest.mark.parametrize("size", [(64, 64), (100, 64), (64, 131), (640, 20), (17, 500)])
def test_windows_cover_the_image_and_overlap(size: tuple[int, int]) -> None:
    windows = cover(size, 48, patch_size=16, whole=False)
    width, height = windows[0].width, windows[0].height
    assert min(width, height) == 48
    assert width / height == pytest.approx(size[0] / size[1], rel=0.02)
    seen = np.zeros((height, width), dtype=int)
    for window in windows:
        assert (window.rows, window.columns) == (48, 48)
        part = seen[window.top : window.top + 48, window.left : window.left + 48]
        assert part.shape == (48, 48)
        part += 1
    assert seen.min() == 1
    starts = sorted(window.left + window.top for window in windows)
    assert all(later - earlier <= 33 for earlier, later in pairwise(starts))


def test_a_whole_image_is_a_multiple_of_the_patch() -> None:
    assert cover((100, 64), 56, patch_size=14, whole=True) == [Window(84, 56, 0, 0, 84, 56)]
    assert cover((64, 100), 48, patch_size=16, whole=True) == [Window(48, 80, 0, 0, 48, 80)]


def test_labels_equal_a_slow_lookup() -> None:
    target = np.random.default_rng(0).integers(0, 200, (37, 53)).astype(np.uint8)
    for window in cover((53, 37), 32, patch_size=8, whole=False):
        found = sample_target(target, window, grid=(16, 16))
        for row in range(16):
            for column in range(16):
                y = (window.top + (row + 0.5) * 2) * 37 / window.height
                x = (window.left + (column + 0.5) * 2) * 53 / window.width
                assert found[row, column] == target[int(y), int(x)]


def test_labels_and_pixels_agree() -> None:
    """The colour under each label is the label's, away from the edges that a resize blurs."""
    answers = np.repeat(np.repeat(np.arange(6, dtype=np.uint8).reshape(2, 3), 16, 0), 16, 1)
    item = Item("x", coloured(answers, seed=0), answers)
    views = Windows(32, 8, labelled=True).views(item)
    assert len(views) == 2
    for view in views:
        assert view.target is not None
        red = view.pixels[0].reshape(16, 2, 16, 2).mean(axis=(1, 3)) / 20
        agree = np.abs(red - view.target) < 0.3
        assert agree.mean() > 0.8


def test_centre_view_is_that_of_preprocess() -> None:
    item = Item("x", coloured(np.arange(12 * 50).reshape(12, 50) % 10, seed=1), 0)
    (view,) = CentreView(32).views(item)
    expected = preprocess(decode(item.image), resolution=32)
    torch.testing.assert_close(normalise(torch.from_numpy(view.pixels)[None]), expected)


def test_a_bad_image_is_named() -> None:
    with pytest.raises(ValueError, match=r"broken\.jpg: not-an-image"):
        CentreView(32).views(Item("broken.jpg", b"nothing", 0))
