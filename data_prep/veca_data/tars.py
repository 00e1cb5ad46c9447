"""Tar archives: plain ones as listings, compressed ones (`.tar.gz` and its kin) as streams.

A plain tar is read by position. A compressed one can only be read from its start, so its images are
copied once into a temporary file beside the shards and shuffled from there: memory stays flat, the
shuffle covers the whole archive, and the disk needs room for one archive per worker.
"""

import bz2
import gzip
import lzma
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

from veca_data.images import MAX_FILE_BYTES, is_image_name
from veca_data.listing import Listing, ListingBuilder, Reject
from veca_data.pool import advance

PLAIN_SUFFIXES = (".tar",)
STREAM_SUFFIXES = (".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")

_BROKEN = (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile)


class TarMember(NamedTuple):
    """A file in a tar; `problem` says why it cannot be used."""

    name: str
    size: int
    place: int
    problem: str | None = None


class BrokenArchive(ValueError):
    """An archive that cannot be read to its end."""


def list_tar(path: Path) -> Iterator[TarMember]:
    """Each file of a plain tar, by headers alone."""
    members = 0
    try:
        with tarfile.open(path, "r:") as tar:
            for info in _infos(tar):
                members += 1
                yield _member(info, place=info.offset_data)
            _check_end_mark(path, tar.offset)
    except _BROKEN as error:
        raise _broken(path, members, error) from None


def stream_tar(path: Path) -> Iterator[tuple[TarMember, bytes]]:
    """Each file of a compressed tar with its content, in one pass; files with a problem come empty."""
    members = 0
    try:
        with _decompressed(path) as raw, tarfile.open(fileobj=raw, mode="r|", bufsize=2**20) as tar:
            for info in _infos(tar):
                members += 1
                member = _member(info, place=0)
                wanted = member.problem is None and is_image_name(member.name)
                file = tar.extractfile(info) if wanted else None
                yield member, file.read() if file else b""
            # The checksum comes after the last member: only reading on verifies it.
            while raw.read(2**20):
                pass
    except _BROKEN as error:
        raise _broken(path, members, error) from None


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


def _infos(tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    while (info := tar.next()) is not None:
        if not info.isdir():
            yield info
        tar.members.clear()  # type: ignore[attr-defined]  # it keeps every header; typeshed leaves it out


def _member(info: tarfile.TarInfo, *, place: int) -> TarMember:
    problem = None
    name = info.name.removeprefix("./")
    if info.issym() or info.islnk():
        problem = f"link inside an archive, to {info.linkname}"
    elif not info.isreg() or info.sparse is not None:
        problem = "not an ordinary file inside an archive"
    elif info.size > MAX_FILE_BYTES:
        problem = f"too-large: {info.size:,} bytes; the limit is {MAX_FILE_BYTES:,}"
    return TarMember(name, info.size, place, problem)


def _check_end_mark(path: Path, place: int) -> None:
    """A tar cut between two files looks whole but for the missing block of zeros."""
    with path.open("rb") as file:
        file.seek(place)
        if file.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
            raise tarfile.ReadError("no end mark")


def _decompressed(path: Path) -> gzip.GzipFile | bz2.BZ2File | lzma.LZMAFile:
    name = path.name.lower()
    if name.endswith("gz"):
        return gzip.GzipFile(path, "rb")
    if name.endswith("bz2"):
        return bz2.BZ2File(path, "rb")
    return lzma.LZMAFile(path, "rb")


def _broken(path: Path, members: int, error: Exception) -> BrokenArchive:
    return BrokenArchive(f"{path} is truncated or damaged after {members:,} files ({error}). Fetch it again.")
