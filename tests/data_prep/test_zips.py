"""Zip archives, against Python's own writer and reader."""

import zipfile
from pathlib import Path

import pytest

from veca.data.decode import BadImage
from veca_data.zips import list_zip, read_zip_member


def _write(path: Path, method: int, **members: bytes) -> None:
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.mkdir("folder")
        for name, data in members.items():
            archive.writestr(f"folder/{name}", data)


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_members_read_back(tmp_path, method):
    members = {"a.jpg": b"abc" * 1000, "ünï.png": b"", "c": bytes(range(256))}
    _write(tmp_path / "x.zip", method, **members)
    found = {
        member.name: read_zip_member(tmp_path / "x.zip", place)
        for member, place in list_zip(tmp_path / "x.zip")
    }
    assert found == {f"folder/{name}": data for name, data in members.items()}


def test_a_streamed_zip_reads_back(tmp_path):
    """Written to a pipe, local headers carry no sizes; only the directory does."""
    with (tmp_path / "x.zip").open("wb") as file:

        class Pipe:
            def write(self, data):
                return file.write(data)

            def flush(self):
                file.flush()

        with (
            zipfile.ZipFile(Pipe(), "w", zipfile.ZIP_DEFLATED) as archive,
            archive.open("a.jpg", "w") as member,
        ):
            member.write(b"q" * 5000)
    [(member, place)] = list_zip(tmp_path / "x.zip")
    assert member.size == 5000
    assert read_zip_member(tmp_path / "x.zip", place) == b"q" * 5000


def test_zip64_reads_back(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        with archive.open(zipfile.ZipInfo("big.jpg"), "w", force_zip64=True) as member:
            member.write(b"w" * 100)
        for i in range(65_600):  # more members than the plain directory can count
            archive.writestr(zipfile.ZipInfo(f"{i}"), b"")
    members = list(list_zip(tmp_path / "x.zip"))
    assert len(members) == 65_601
    assert read_zip_member(tmp_path / "x.zip", members[0][1]) == b"w" * 100


def test_damage_is_named(tmp_path):
    path = tmp_path / "x.zip"
    _write(path, zipfile.ZIP_STORED, a=b"abcdefgh" * 100)
    whole = path.read_bytes()
    [(_, place)] = list_zip(path)
    path.write_bytes(whole.replace(b"abcdefgh", b"abcdefgX", 1))
    with pytest.raises(BadImage, match="checksum"):
        read_zip_member(path, place)
    for length in (0, 10, len(whole) // 2, len(whole) - 5):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"x\.zip: damaged archive \("):
            list(list_zip(path))


def test_unknown_compression_and_passwords_are_named(tmp_path):
    path = tmp_path / "x.zip"
    _write(path, zipfile.ZIP_LZMA, a=b"abc")
    [(_, place)] = list_zip(path)
    with pytest.raises(BadImage, match="method 14"):
        read_zip_member(path, place)
    data = bytearray(path.read_bytes())
    data[place + 8] |= 1
    path.write_bytes(data)
    with pytest.raises(BadImage, match="password"):
        read_zip_member(path, place)
