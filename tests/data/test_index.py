"""What the user names → checked shards; all that is wrong is said at once."""

import os
from pathlib import Path

import numpy as np
import pytest

from tests.data.conftest import MakeShards
from veca.data.index import check_shards, fingerprint, open_sources


def test_every_broken_shard_is_listed_at_once(make_shards: MakeShards) -> None:
    folder = make_shards([3] * 6)
    shards = open_sources(str(folder))[0].shards("train")
    check_shards(shards)
    (folder / "train-000000.tar").unlink()
    os.truncate(folder / "train-000001.tar", 1000)
    (folder / "train-000002.offsets.npy").unlink()
    np.save(folder / "train-000003.offsets.npy", np.array([0, 1, 2, 10**6], np.uint64))
    (folder / "train-000004.offsets.npy").write_bytes(b"\x93NUMPY")
    with pytest.raises(FileNotFoundError, match="5 problems with 6 shards") as error:
        check_shards(shards)
    for part in (
        "train-000000.tar: missing",
        "train-000001.tar: 1000 bytes, but the index says",
        "train-000002.offsets.npy: ",
        "train-000003.offsets.npy: ends at byte 1000000 of a tar of",
        "train-000004.offsets.npy: ",
    ):
        assert part in str(error.value)
    assert "train-000005" not in str(error.value)


def test_long_lists_are_cut(make_shards: MakeShards) -> None:
    folder = make_shards([1] * 30)
    for path in folder.glob("*.tar"):
        path.unlink()
    with pytest.raises(FileNotFoundError, match="… and 10 more"):
        check_shards(open_sources(str(folder))[0].shards("train"))


def test_a_missing_index_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="make shards"):
        open_sources(str(tmp_path))


def test_the_fingerprint_follows_the_data_and_not_the_folder(make_shards: MakeShards) -> None:
    first = make_shards([3, 2], folder="a")
    moved = make_shards([3, 2], folder="b")
    other = make_shards([3, 2], folder="c", name="t")
    assert fingerprint(open_sources(str(first)), "train") == fingerprint(open_sources(f"{moved}/"), "train")
    different = [
        str(other),
        {str(first): 2.0},
        {str(first): 1.0, str(other): 1.0},
        {str(other): 1.0, str(first): 1.0},
    ]
    prints = {fingerprint(open_sources(sources), "train") for sources in [str(first), *different]}
    assert len(prints) == 5
