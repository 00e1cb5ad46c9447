"""Archives, plain and compressed, whole and broken."""

import gzip
import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from veca.data.decode import BadImage
from veca.data.tars import BrokenArchive
from veca_data.archives import hides, is_image_name, list_archive, read_at, stream_tar
from veca_data.pack import _spill

MEMBERS = {f"patch0/img_{i}.jpg": bytes([i]) * (100 + 400 * i) for i in range(5)}


def _tar(path: Path, mode: str, tar_format: int = tarfile.PAX_FORMAT) -> Path:
    with tarfile.open(path, mode, format=tar_format) as tar:
        folder = tarfile.TarInfo("patch0")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
        for name, data in MEMBERS.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
        link = tarfile.TarInfo("patch0/link.jpg")
        link.type, link.linkname = tarfile.SYMTYPE, "img_0.jpg"
        tar.addfile(link)
    return path


@pytest.mark.parametrize("tar_format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_a_plain_tar_is_read_by_position(tmp_path, tar_format):
    path = _tar(tmp_path / "x.tar", "w", tar_format)
    members = list(list_archive(path))
    data = path.read_bytes()
    found = {m.name: data[m.place : m.place + m.size] for m in members if m.problem is None}
    assert found == MEMBERS
    assert [m.name for m in members if m.problem] == ["patch0/link.jpg"]


@pytest.mark.parametrize(
    ("name", "mode"), [("x.tar.gz", "w:gz"), ("x.tgz", "w:gz"), ("x.tar.bz2", "w:bz2"), ("x.tar.xz", "w:xz")]
)
def test_a_compressed_tar_is_read_as_a_stream(tmp_path, name, mode):
    path = _tar(tmp_path / name, mode)
    assert {m.name: data for m, data in stream_tar(path) if m.problem is None} == MEMBERS
    file = io.BytesIO()
    listing, rejects = _spill(path, "p/", file)
    entries = listing.entries()
    assert {e.name: file.getvalue()[e.place : e.place + e.size] for e in entries} == {
        f"p/{name}": data for name, data in MEMBERS.items()
    }
    assert [reject.path for reject in rejects] == ["p/patch0/link.jpg"]


def test_a_gzip_file_of_several_members_is_read_to_its_end(tmp_path):
    plain = _tar(tmp_path / "x.tar", "w").read_bytes()
    (tmp_path / "x.tar.gz").write_bytes(gzip.compress(plain[:3000]) + gzip.compress(plain[3000:]))
    assert len([m for m, _ in stream_tar(tmp_path / "x.tar.gz") if m.problem is None]) == len(MEMBERS)


def test_broken_compressed_tars_are_named(tmp_path):
    path = _tar(tmp_path / "x.tar.gz", "w:gz")
    whole = path.read_bytes()
    for length in (0, 5, len(whole) // 2, len(whole) - 4):
        path.write_bytes(whole[:length])
        with pytest.raises(BrokenArchive, match=r"x\.tar\.gz: damaged archive \("):
            list(stream_tar(path))
    path.write_bytes(whole[:-8] + bytes([whole[-8] ^ 1]) + whole[-7:])  # the checksum
    with pytest.raises(BrokenArchive):
        list(stream_tar(path))


def test_truncated_plain_tars_are_named_even_between_two_files(tmp_path):
    path = _tar(tmp_path / "x.tar", "w")
    whole = path.read_bytes()
    places = [member.place for member in list_archive(path)]
    for length in (100, places[2] - 512, places[2] - 200, places[2], places[3] - 700):
        path.write_bytes(whole[:length])
        with pytest.raises(BrokenArchive, match=r"x\.tar: damaged archive \("):
            list(list_archive(path))


def test_hidden_names():
    assert all(map(hides, ("._a.jpg", "x/.cache/a.jpg", "__MACOSX/a.jpg")))
    assert not any(map(hides, ("a.jpg", "./a.jpg", "../a.jpg", "x/y.z/a.jpg")))


def _write(path: Path, method: int, **members: bytes) -> None:
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.mkdir("folder")
        for name, data in members.items():
            archive.writestr(f"folder/{name}", data)


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_members_read_back(tmp_path, method):
    members = {"a.jpg": b"abc" * 1000, "ünï.png": b"", "c": bytes(range(256))}
    _write(tmp_path / "x.zip", method, **members)
    path = tmp_path / "x.zip"
    found = {member.name: read_at(path, member.place, member.size) for member in list_archive(path)}
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
    [member] = list_archive(tmp_path / "x.zip")
    assert member.size == 5000
    assert read_at(tmp_path / "x.zip", member.place, 5000) == b"q" * 5000


def test_zip64_reads_back(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        with archive.open(zipfile.ZipInfo("big.jpg"), "w", force_zip64=True) as member:
            member.write(b"w" * 100)
        for i in range(65_600):  # more members than the plain directory can count
            archive.writestr(zipfile.ZipInfo(f"{i}"), b"")
    members = list(list_archive(tmp_path / "x.zip"))
    assert len(members) == 65_601
    assert read_at(tmp_path / "x.zip", members[0].place, 100) == b"w" * 100


def test_damage_is_named(tmp_path):
    path = tmp_path / "x.zip"
    _write(path, zipfile.ZIP_STORED, a=b"abcdefgh" * 100)
    whole = path.read_bytes()
    [member] = list_archive(path)
    path.write_bytes(whole.replace(b"abcdefgh", b"abcdefgX", 1))
    with pytest.raises(BadImage, match="checksum"):
        read_at(path, member.place, member.size)
    for length in (0, 10, len(whole) // 2, len(whole) - 5):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"x\.zip: damaged archive \("):
            list(list_archive(path))


def test_unknown_compression_and_passwords_are_named(tmp_path):
    path = tmp_path / "x.zip"
    _write(path, zipfile.ZIP_LZMA, a=b"abc")
    [member] = list_archive(path)
    with pytest.raises(BadImage, match="method 14"):
        read_at(path, member.place, member.size)
    data = bytearray(path.read_bytes())
    data[member.place + 8] |= 1
    path.write_bytes(data)
    with pytest.raises(BadImage, match="password"):
        read_at(path, member.place, member.size)


def test_image_names():
    assert all(map(is_image_name, ("a.jpg", "b/C.JPEG", "d.x.png", "e.heic")))
    assert not any(map(is_image_name, ("a", "a.txt", "jpg", "a.jpg.part")))
