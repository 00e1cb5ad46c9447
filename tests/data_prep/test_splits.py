"""Splits by folder and by share."""

import numpy as np
import pytest

from veca_data.listing import ranks
from veca_data.splits import NO_SPLIT, TEST, TRAIN, VAL, folder_splits, split_orders


def test_folders_tell_the_split():
    names = [b"train/a.jpg", b"images/train/b.jpg", b"val/images/v1/c.jpg", b"test/d.jpg", b"e/train/f.jpg"]
    assert list(folder_splits(names)) == [TRAIN, TRAIN, VAL, TEST, NO_SPLIT]


@pytest.mark.parametrize("names", [["a.jpg"], ["train/a.jpg", "b.jpg"], ["training/a.jpg", "val.jpg"], []])
def test_other_folders_tell_no_split(names):
    assert folder_splits(name.encode() for name in names) is None


def test_a_share_without_a_minimum_is_right_on_average():
    """Thousands of small archives, each deciding for itself, still give the wanted share together."""
    rank = ranks(np.arange(50_000, dtype=np.uint64), seed=3)
    pieces = [
        split_orders(piece, np.ones(10, dtype=bool), codes=None, val_share=0.02, at_least_one=False)
        for piece in rank.reshape(-1, 10)
    ]
    assert 800 < sum(len(piece.get("val", [])) for piece in pieces) < 1200
    assert all(len(piece.get("val", [])) + len(piece["train"]) == 10 for piece in pieces)
