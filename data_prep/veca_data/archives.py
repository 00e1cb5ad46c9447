"""Archives: zips and plain tars as listings to read by position, compressed tars as streams.

`zipfile` makes an object of some 700 bytes for each member; a million of them do not fit beside the workers.
Here the zip's directory is walked record by record, and an entry is one number, the position of its record.
"""

import bz2
import gzip
import lzma
import os
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

from veca.data.decode import BadImage
from veca.data.folders import MAX_FILE_BYTES
from veca.data.tars import BrokenArchive, DamagedTar, Header, TarStream, list_members, open_archive

STREAM_SUFFIXES = (".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")
ARCHIVE_SUFFIXES = (".zip", ".tar", *STREAM_SUFFIXES)
# Files with these endings are taken from a folder or an archive; some are unreadable here, so that
# such a photo becomes a reject with a reason instead of vanishing.
_IMAGE_NAMES = "jpg jpeg jpe jfif png webp gif bmp tif tiff ppm pgm pbm avif heic heif jp2 jxl"
IMAGE_SUFFIXES = frozenset(_IMAGE_NAMES.split())

_OPENERS: dict[str, Callable[[IO[bytes]], Any]] = {"gz": gzip.open, "bz2": bz2.open, "xz": lzma.open}
_BROKEN = (DamagedTar, EOFError, zlib.error, lzma.LZMAError, OSError, MemoryError)
_PIECE = 2**20
_MAX_RATIO = 200  # of a large archive: images hardly compress

_END = struct.Struct("<4s4H2LH")
_END64_LOCATOR = struct.Struct("<4sLQL")
_END64 = struct.Struct("<4sQ2H2L4Q")
_RECORD = struct.Struct("<4s6H3L5H2L")
_LOCAL = struct.Struct("<4s5H3L2H")
_STORED, _DEFLATED = 0, 8
_ENCRYPTED, _UTF8 = 0x0001, 0x0800
_IN_EXTRA = 0xFFFFFFFF  # the value is too large for its field and stands in the zip64 extra field


class Member(NamedTuple):
    """A file in an archive; `problem` says why it cannot be used."""

    name: str
    size: int
    place: int
    problem: str | None = None


class ZipRecord(NamedTuple):
    """One record of a zip's directory."""

    name: str
    size: int
    packed_size: int
    method: int
    flags: int
    crc: int
    header_place: int
    record_size: int


def is_image_name(name: str) -> bool:
    return "." in name and name.rpartition(".")[2].lower() in IMAGE_SUFFIXES


def hides(name: str) -> bool:
    """Whether a file is an operating system's own: hidden, or macOS's shadow of a real one."""
    return any(
        part.startswith(".") or part == "__MACOSX" for part in name.split("/") if part not in (".", "..")
    )


def list_archive(path: Path) -> Iterator[Member]:
    """Each file of a zip or a plain tar, by its directory or its headers alone."""
    with open_archive(path) as file:
        if _is_zip(path):
            yield from _list_zip(path, file)
        else:
            yield from (_member(header) for header in list_members(path, file) if not header.is_folder)


def read_at(path: Path, place: int, size: int) -> bytes:
    """The content of the file that `list_archive` found at `place`."""
    with open_archive(path) as file:
        file.seek(place)
        return _read_zip_member(path, file) if _is_zip(path) else file.read(size)


def stream_tar(path: Path) -> Iterator[tuple[Member, bytes]]:
    """Each file of a compressed tar with its content, in one pass; files with a problem come empty."""
    number = 0
    with open_archive(path) as file:
        try:
            raw = _Decompressed(path, file)
            tar = TarStream(cast(IO[bytes], raw), length=None)
            for header in tar:
                if header.is_folder:
                    continue
                number += 1
                member = _member(header)
                wanted = member.problem is None and is_image_name(member.name)
                yield member, tar.read(header) if wanted else b""
            # The checksum comes after the last member: only reading on verifies it.
            while raw.read(_PIECE):
                pass
        except _BROKEN as error:
            raise BrokenArchive(path, f"{error or type(error).__name__} after {number:,} files") from None


def stream_images(path: Path, prefix: str = "") -> Iterator[tuple[Member, bytes]]:
    """Of a compressed tar what matters: images, and files with a problem, by their source-relative names."""
    for member, data in stream_tar(path):
        if not hides(member.name) and (member.problem or is_image_name(member.name)):
            yield member._replace(name=prefix + member.name), data


def _member(header: Header) -> Member:
    problem = None
    if header.is_link:
        problem = f"link inside an archive, to {header.link}"
    elif not header.is_regular:
        problem = "not an ordinary file inside an archive"
    elif header.size > MAX_FILE_BYTES:
        problem = f"too-large: {header.size:,} bytes; the limit is {MAX_FILE_BYTES:,}"
    return Member(header.name.removeprefix("./"), header.size, header.place, problem)


class _Decompressed:
    """A compressed file from its start; DamagedTar where it swells beyond what images can."""

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        self._packed = file
        self._raw = next(opener for end, opener in _OPENERS.items() if path.name.lower().endswith(end))(file)
        self._size = 0

    def read(self, size: int) -> bytes:
        data: bytes = self._raw.read(size)
        self._size += len(data)
        if self._size > MAX_FILE_BYTES and self._size > _MAX_RATIO * self._packed.tell():
            raise DamagedTar(f"it swells to more than {_MAX_RATIO} times its size")
        return data


def _is_zip(path: Path) -> bool:
    return path.name.lower().endswith(".zip")


def _list_zip(path: Path, file: IO[bytes]) -> Iterator[Member]:
    place, count = _find_directory(file, path)
    room = place
    file.seek(place)
    for _ in range(count):
        record = _read_record(file, path)
        room -= record.packed_size
        if room < 0:  # a bomb: the same bytes again and again
            raise BrokenArchive(path, "its files overlap, or reach past its end")
        if not record.name.endswith("/"):
            large = f"too-large: {record.size:,} bytes" if record.size > MAX_FILE_BYTES else None
            yield Member(record.name, record.size, place, large)
        place += record.record_size


def _read_zip_member(path: Path, file: IO[bytes]) -> bytes:
    """The content of the member at whose directory record the file stands."""
    length = os.fstat(file.fileno()).st_size
    record = _read_record(file, path)
    if record.size > MAX_FILE_BYTES:
        raise BadImage("too-large", f"{record.size:,} bytes; the limit is {MAX_FILE_BYTES:,}")
    if record.header_place + record.packed_size > length:
        raise BadImage("damaged", "the zip archive ends before its file does")
    if record.flags & _ENCRYPTED:
        raise BadImage("encrypted", "the zip archive asks for a password")
    if record.method not in (_STORED, _DEFLATED):
        raise BadImage("unsupported", f"zip compression method {record.method}; repack with deflate")
    file.seek(record.header_place)
    header = file.read(_LOCAL.size)
    if len(header) < _LOCAL.size or not header.startswith(b"PK\3\4"):
        raise BadImage("damaged", "the zip archive has no file where its directory says")
    *_, name_size, extra_size = _LOCAL.unpack(header)
    file.seek(name_size + extra_size, os.SEEK_CUR)
    data = file.read(record.packed_size)
    if record.method == _DEFLATED:
        try:
            # One byte more than promised is enough to notice a bomb.
            data = zlib.decompressobj(-15).decompress(data, record.size + 1)
        except zlib.error as error:
            raise BadImage("damaged", f"zip: {error}") from None
    if len(data) != record.size or zlib.crc32(data) != record.crc:
        raise BadImage("damaged", "zip: size or checksum differs from the archive's directory")
    return data


def _find_directory(file: IO[bytes], path: Path) -> tuple[int, int]:
    """Place and number of the directory's records."""
    length = file.seek(0, os.SEEK_END)
    file.seek(max(0, length - _END.size - 0xFFFF))
    base, tail = file.tell(), file.read()
    found = tail.rfind(b"PK\5\6")
    if found < 0 or found + _END.size > len(tail):
        raise BrokenArchive(path, "no zip directory at its end: cut off, or another kind of file")
    _, _, _, _, count, size, place, _ = _END.unpack_from(tail, found)
    end = base + found
    if count == 0xFFFF or size == _IN_EXTRA or place == _IN_EXTRA:
        end, count, size, place = _find_directory64(file, end, path)
    if place + size != end:
        raise BrokenArchive(path, "its zip directory is not where it should be")
    return place, count


def _find_directory64(file: IO[bytes], end: int, path: Path) -> tuple[int, int, int, int]:
    missing = BrokenArchive(path, "its zip64 directory is missing")
    if end < _END64_LOCATOR.size + _END64.size:
        raise missing
    file.seek(end - _END64_LOCATOR.size)
    mark, _, end64, _ = _END64_LOCATOR.unpack(file.read(_END64_LOCATOR.size))
    if mark != b"PK\6\7" or end64 > end - _END64_LOCATOR.size - _END64.size:
        raise missing
    file.seek(end64)
    fields = _END64.unpack(file.read(_END64.size))
    if fields[0] != b"PK\6\6":
        raise missing
    return end64, fields[7], fields[8], fields[9]


def _read_record(file: IO[bytes], path: Path) -> ZipRecord:
    fields = file.read(_RECORD.size)
    if len(fields) < _RECORD.size or not fields.startswith(b"PK\1\2"):
        raise BrokenArchive(path, "its zip directory ends early")
    _, _, _, flags, method, _, _, crc, packed, size, n, x, c, _, _, _, place = _RECORD.unpack(fields)
    rest = file.read(n + x + c)
    name = rest[:n].decode("utf-8" if flags & _UTF8 else "cp437", "surrogateescape")
    large = iter(_zip64_values(rest[n : n + x]))
    size, packed, place = (next(large, v) if v == _IN_EXTRA else v for v in (size, packed, place))
    return ZipRecord(name, size, packed, method, flags, crc, place, _RECORD.size + n + x + c)


def _zip64_values(extra: bytes) -> list[int]:
    position = 0
    while position + 4 <= len(extra):
        kind, length = struct.unpack_from("<2H", extra, position)
        if kind == 1:
            count = min(length, len(extra) - position - 4) // 8
            return list(struct.unpack_from(f"<{count}Q", extra, position + 4))
        position += 4 + length
    return []
