import errno
import os
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from veca.utils.files import atomic_path, in_bytes, reserve, write_text_atomic


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


class Killed(BaseException):
    """What ends a process in the middle of its work."""


@pytest.mark.parametrize("links", [True, False])
def test_the_former_file_is_kept_and_no_moment_is_without_a_whole_one(
    links: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, former = tmp_path / "last", tmp_path / "last-1"

    def write(text: str) -> None:
        with atomic_path(target, former=former) as path:
            path.write_text(text)

    def refuse(*arguments: object, **options: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    if not links:
        monkeypatch.setattr(os, "link", refuse)
    write("1")
    assert not former.exists()
    write("2")
    number = 2
    for kills_at in range(9):  # system calls of one write, more than there are
        calls = 0

        def count(real: Callable[..., object], dies: int = kills_at) -> Callable[..., object]:
            def call(*arguments: object, **options: object) -> object:
                nonlocal calls
                calls += 1
                if calls > dies:
                    raise Killed
                return real(*arguments, **options)

            return call

        with pytest.MonkeyPatch.context() as patch, suppress(Killed):
            for name in ("link", "replace", "rename", "unlink", "fsync"):
                patch.setattr(os, name, count(getattr(os, name)))
            write(str(number + 1))
        kept = {path.name: path.read_text() for path in tmp_path.glob("last*")}
        assert str(number) in kept.values() or str(number + 1) in kept.values(), (kills_at, kept)
        number += 1
        write(str(number))
        assert target.read_text() == str(number)
    write("last but one")
    write("newest")
    assert {path.name: path.read_text() for path in tmp_path.glob("*")} == {
        "last": "newest",
        "last-1": "last but one",
    }
    assert not links or target.stat().st_ino != former.stat().st_ino


def test_a_former_file_that_is_the_same_one_stays(tmp_path: Path) -> None:
    (tmp_path / "last").write_text("1")
    (tmp_path / "last-1").hardlink_to(tmp_path / "last")  # as a kill between link and rename leaves them
    with atomic_path(tmp_path / "last", former=tmp_path / "last-1") as path:
        path.write_text("2")
    assert [(tmp_path / name).read_text() for name in ("last", "last-1")] == ["2", "1"]
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize(("number", "lasts"), [(errno.EINVAL, True), (errno.EIO, False)])
def test_the_folder_is_synced_after_the_rename(
    number: int, lasts: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    real = os.fsync

    def sync(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        synced.append(f"{path.is_dir()} {(tmp_path / 'x').exists()}")
        if path.is_dir():
            raise OSError(number, os.strerror(number))  # EINVAL: a file system that syncs no folders
        real(descriptor)

    monkeypatch.setattr(os, "fsync", sync)
    with nullcontext() if lasts else pytest.raises(OSError, match=os.strerror(number)):
        write_text_atomic(tmp_path / "x", "content")
    assert synced == ["False False", "True True"]
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


def test_room_is_reserved_or_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reserve(tmp_path / "a", 5000)
    assert (tmp_path / "a").stat().st_size == 5000
    assert (tmp_path / "a").stat().st_blocks * 512 >= 5000

    def full(*args: int) -> None:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(ValueError, match=r"b needs 5 kB, .* has .*B. Take a folder with more room"):
        reserve(tmp_path / "b", 5000)
    assert not (tmp_path / "b").exists()
