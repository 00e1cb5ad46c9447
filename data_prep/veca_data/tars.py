"""Tar archives: plain ones as listings, compressed ones (`.tar.gz` and its kin) as streams.

A plain tar is read by position. A compressed one can only be read from its start, so its images are
copied once into a temporary file beside the shards and shuffled from there: memory stays flat, the
shuffle covers the whole archive, and the disk needs room for one archive per worker.
"""

import bz2
import gzip
import lzma
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple, cast

from veca.data.folders import MAX_FILE_BYTES
from veca.data.tars import BrokenArchive, DamagedTar, Header, TarStream, list_members, open_archive
from veca_data.images import is_image_name
from veca_data.listing import Listing, ListingBuilder, Reject
from veca_data.pool import advance

PLAIN_SUFFIXES = (".tar",)
STREAM_SUFFIXES = (".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")

_BROKEN = (DamagedTar, EOFError, zlib.error, lzma.LZMAError, OSError, MemoryError)
_PIECE = 2**20
_MAX_RATIO = 200  # of a large archive: images hardly compress


class TarMember(NamedTuple):
    """A file in a tar; `problem` says why it cannot be used."""

    name: str
    size: int
    place: int
    problem: str | None = None


def list_tar(path: Path) -> Iterator[TarMember]:
    """Each file of a plain tar, by headers alone."""
    with open_archive(path) as file:
        for header in list_members(path, file):
            if not header.is_folder:
                yield _member(header, place=header.place)


def stream_tar(path: Path) -> Iterator[tuple[TarMember, bytes]]:
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
                member = _member(header, place=0)
                wanted = member.problem is None and is_image_name(member.name)
                yield member, tar.read(header) if wanted else b""
            # The checksum comes after the last member: only reading on verifies it.
            while raw.read(_PIECE):
                pass
        except _BROKEN as error:
            raise BrokenArchive(path, f"{error or type(error).__name__} after {number:,} files") from None


def spill(path: Path, prefix: str, file: IO[bytes]) -> tuple[Listing, list[Reject]]:
    """Copy the images of a compressed tar into `file`, and list them by position there."""
    builder, rejects = ListingBuilder(), []
    place = 0
    for member, data in stream_tar(path):
        if hides(member.name):
            continue
        name = prefix + member.name
        if member.problem is not None:
            rejects.append(Reject(name, member.problem))
        elif is_image_name(member.name):
            advance(len(data) // 2)  # the other half when they are written to shards
            file.write(data)
            builder.add(name, size=len(data), place=place)
            place += len(data)
    file.flush()
    return builder.finish(), rejects


def hides(name: str) -> bool:
    """Whether a file is an operating system's own: hidden, or macOS's shadow of a real one."""
    return any(
        part.startswith(".") or part == "__MACOSX" for part in name.split("/") if part not in (".", "..")
    )


def _member(header: Header, *, place: int) -> TarMember:
    problem = None
    if header.is_link:
        problem = f"link inside an archive, to {header.link}"
    elif not header.is_regular:
        problem = "not an ordinary file inside an archive"
    elif header.size > MAX_FILE_BYTES:
        problem = f"too-large: {header.size:,} bytes; the limit is {MAX_FILE_BYTES:,}"
    return TarMember(header.name.removeprefix("./"), header.size, place, problem)


class _Decompressed:
    """A compressed file from its start; DamagedTar where it swells beyond what images can."""

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        name = path.name.lower()
        self._packed = file
        self._raw: IO[bytes]
        if name.endswith("gz"):
            self._raw = cast(IO[bytes], gzip.GzipFile(fileobj=file, mode="rb"))
        elif name.endswith("bz2"):
            self._raw = bz2.BZ2File(file, "rb")
        else:
            self._raw = lzma.LZMAFile(file, "rb")  # noqa: SIM115  it ends with the file it reads
        self._size = 0

    def read(self, size: int) -> bytes:
        data = self._raw.read(size)
        self._size += len(data)
        if self._size > MAX_FILE_BYTES and self._size > _MAX_RATIO * self._packed.tell():
            raise DamagedTar(f"it swells to more than {_MAX_RATIO} times its size")
        return data
