"""What of folders and files is read: regular files, once, and in bounded time."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.data import hostile
from veca.data import folders
from veca.data.decode import BadImage
from veca.data.folders import CYCLE, MAX_FILE_BYTES, check_regular, read_file, read_named, walk
from veca.data.views import preprocess


@pytest.fixture(autouse=True)
def _bounds() -> Iterator[None]:
    with hostile.bounds():
        yield


@pytest.mark.parametrize("kind", hostile.SPECIAL)
def test_only_regular_files_are_read(tmp_path: Path, kind: str) -> None:
    what, make = hostile.SPECIAL[kind]
    path = tmp_path / "a.jpg"
    make(path)
    with pytest.raises(BadImage, match=f"not-a-file: it is {what}"):
        read_file(path)
    for read in (read_named, preprocess, check_regular):
        with pytest.raises(ValueError, match=rf"{re.escape(str(path))}.* is {what}"):
            read(path)


def test_a_pipe_that_takes_the_place_of_a_file_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.jpg"
    path.touch()
    status = path.stat()
    path.unlink()
    os.mkfifo(path)
    monkeypatch.setattr(folders.os, "stat", lambda _: status)
    with pytest.raises(BadImage, match="a named pipe"):
        read_file(path)


def test_large_files_are_refused_before_they_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    path.touch()
    os.truncate(path, MAX_FILE_BYTES + 1)
    with pytest.raises(ValueError, match=r"a\.jpg: too-large: 536,870,913 bytes; the limit is 536,870,912"):
        read_named(path)


def test_a_tangle_of_links_is_walked_once(tmp_path: Path) -> None:
    """Every folder links to every other and to their parent: as a tree, this has no end."""
    root = tmp_path / "root"
    for name in "abcdefgh":
        (root / name).mkdir(parents=True)
        (root / name / "x.jpg").touch()
        for other in "abcdefgh":
            (root / name / f"to_{other}").symlink_to(root / other)
        (root / name / "up").symlink_to("..")
        (root / name / "file.jpg").symlink_to(root / "a" / "x.jpg")
    found = list(walk(root, lambda name: name.endswith(".jpg")))
    assert sorted(each.name for each in found if each.problem is None) == [
        f"{name}/x.jpg" for name in "abcdefgh"
    ]
    assert {each.name for each in found if each.problem == CYCLE} == {
        f"{name}/{end}" for name in "abcdefgh" for end in ("up", f"to_{name}")
    }
