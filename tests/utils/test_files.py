from pathlib import Path

import pytest

from veca.utils.files import atomic_path, write_text_atomic


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
