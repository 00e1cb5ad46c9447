import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from veca.utils.files import atomic_path, in_bytes, write_text_atomic


def test_a_failed_write_keeps_the_old_file_and_leaves_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "data.json"
    write_text_atomic(target, "old")

    def fail() -> None:
        with atomic_path(target) as path:
            path.write_text("half")
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        fail()
    assert target.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["data.json"]


def test_a_file_appears_only_when_complete(tmp_path: Path) -> None:
    with atomic_path(tmp_path / "x") as path:
        path.write_text("content")
        assert not (tmp_path / "x").exists()
    assert (tmp_path / "x").read_text() == "content"


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o002, 0o664), (0o077, 0o600)])
def test_a_file_is_for_those_whom_the_umask_names(tmp_path: Path, umask: int, mode: int) -> None:
    before = os.umask(umask)
    try:
        write_text_atomic(tmp_path / "text", "")
        with atomic_path(tmp_path / "tensors") as path:
            save_file({"x": torch.zeros(1)}, path)  # makes its own file, for its owner only
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {mode}


def test_a_writer_finds_no_file_and_has_to_make_one(tmp_path: Path) -> None:
    with atomic_path(tmp_path / "new") as path, path.open("xb") as file:
        file.write(b"content")
    assert (tmp_path / "new").read_bytes() == b"content"
    with pytest.raises(FileNotFoundError), atomic_path(tmp_path / "none"):
        pass


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (512, "512 B"),
        (999.6, "1 kB"),
        (76_723, "76.7 kB"),
        (3.4e6, "3.4 MB"),
        (999_499_999, "999 MB"),
        (367.2e9, "367 GB"),
        (81.2e12, "81,200 GB"),
    ],
)
def test_bytes_are_told_in_the_unit_that_fits(size: float, text: str) -> None:
    assert in_bytes(size) == text
