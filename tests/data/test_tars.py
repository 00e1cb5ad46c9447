"""The reader of tars against Python's own, and what it refuses in bounded time and memory."""

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.data import hostile
from veca.data.tars import BrokenArchive, DamagedTar, TarStream, list_members, open_archive, read_member

MEMBERS = {"a.jpg": b"abc", f"{'deep/' * 40}ünï.png": b"x" * 1000, "empty": b"", "n" * 120: b"y" * 512}


@pytest.fixture(autouse=True)
def _bounds() -> Iterator[None]:
    with hostile.bounds():
        yield


@pytest.mark.parametrize("tar_format", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_members_are_those_of_tarfile(tmp_path: Path, tar_format: int) -> None:
    data = hostile.plain_tar(MEMBERS, tar_format=tar_format)
    path = tmp_path / "x.tar"
    path.write_bytes(data)
    with open_archive(path) as file:
        listed = list(list_members(path, file))
        assert {header.name: read_member(path, file, header) for header in listed} == MEMBERS
    stream = TarStream(io.BytesIO(data), length=None)
    assert {header.name: stream.read(header) for header in stream} == MEMBERS
    with tarfile.open(path) as tar:
        wanted = [(info.name, info.offset_data) for info in tar]
    assert [(header.name, header.place) for header in listed] == wanted


def test_folders_links_and_sparse_files_are_told_apart() -> None:
    kinds = {
        "d/": b"5",
        "link": b"2",
        "hard": b"1",
        "pipe": b"6",
        "old/": b"\0",
        "sparse": b"S",
        "file": b"7",
    }
    data = b"".join(hostile.tar_header(name, 0, kind=kind) for name, kind in kinds.items())
    pax = hostile.pax(GNU__sparse__major="1", GNU__sparse__name="s") + hostile.tar_file(
        "GNUSparseFile/s", b"1"
    )
    headers = list(TarStream(io.BytesIO(data + pax + hostile.END), length=None))
    assert {h.name for h in headers if h.is_folder} == {"d", "old"}
    assert {h.name for h in headers if h.is_link} == {"link", "hard"}
    assert {h.name for h in headers if h.is_regular} == {"file"}
    assert headers[-1].name == "s"


@pytest.mark.parametrize("kind", hostile.TARS)
def test_damage_is_named(tmp_path: Path, kind: str) -> None:
    data = hostile.hostile_tar(kind, b"\xff\xd8\xff")
    path = tmp_path / "x.tar"
    path.write_bytes(data)
    with open_archive(path) as file, pytest.raises(BrokenArchive, match=r"x\.tar: damaged archive \("):
        list(list_members(path, file))
    with pytest.raises(DamagedTar):
        list(TarStream(io.BytesIO(data), length=None))


def test_many_headers_about_one_file_are_refused() -> None:
    """Each is small; together they would fill the memory."""
    headers = (hostile.pax(**{f"key{number}": "v" * 2**19}) for number in range(4))
    with pytest.raises(DamagedTar, match="headers have"):
        list(TarStream(io.BytesIO(b"".join(headers) + hostile.tar_file("a", b"") + hostile.END), length=None))
