"""Tar files of strangers: members one by one, in flat memory and bounded time, or one kind of error.

Understands the old format, ustar, GNU (long names, numbers in base 256, sparse files) and pax. Python's
`tarfile` reads the same, but believes what it reads: sizes below zero send it backwards for ever, huge ones
forwards, a long name fills the memory, and damaged numbers raise whatever they raise.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, NamedTuple

from veca.data.decode import BadImage
from veca.data.folders import MAX_FILE_BYTES, AnyPath, open_regular

BLOCK = 512
MAX_EXTENDED = 2**20  # bytes of a long name, or of pax records; names end at some 4,096

_REGULAR = (b"0", b"\0", b"7")
_LINKS = (b"1", b"2")
_FOLDER = b"5"
_GNU_SPARSE = b"S"
_WITHOUT_DATA = (*_LINKS, b"3", b"4", _FOLDER, b"6")  # whatever their size says
_LONG_NAME, _LONG_LINK = b"L", b"K"
_PAX, _PAX_GLOBAL = (b"x", b"X"), b"g"
_PIECE = 2**20


class BrokenArchive(ValueError):
    """An archive that cannot be read to its end."""

    def __init__(self, path: AnyPath, what: object) -> None:
        super().__init__(f"{os.fspath(path)}: damaged archive ({what}). Fetch or make it again.")
        self.path = path
        self.what = what

    def __reduce__(self) -> tuple[type["BrokenArchive"], tuple[AnyPath, object]]:
        return BrokenArchive, (self.path, self.what)  # so that it can travel from a worker


class DamagedTar(ValueError):
    """What is wrong; who knows the file's name makes a BrokenArchive of it."""


class Header(NamedTuple):
    """One member of a tar; its content is what comes next."""

    name: str
    size: int
    start: int  # of its first header
    place: int  # of its content
    kind: bytes
    link: str
    is_sparse: bool

    @property
    def is_regular(self) -> bool:
        return self.kind in _REGULAR and not self.is_sparse

    @property
    def is_link(self) -> bool:
        return self.kind in _LINKS

    @property
    def is_folder(self) -> bool:
        return self.kind == _FOLDER

    @property
    def stop(self) -> int:
        """Where the next member begins."""
        return self.place + (0 if self.kind in _WITHOUT_DATA else self.size + -self.size % BLOCK)


class TarStream:
    """A tar that is read from its start: iterate over headers, `read` the content of the last one or not.

    Args:
        file: The tar, decompressed.
        length: Its bytes, if it can be skipped in by `seek`; None for a stream.
        wants_end: Whether the block of zeros after the last member must be there.
    """

    def __init__(self, file: IO[bytes], *, length: int | None, wants_end: bool = True) -> None:
        self._file = file
        self._length = length
        self._wants_end = wants_end
        self._position = 0

    def __iter__(self) -> Iterator[Header]:
        while header := self._next():
            if self._length is not None and header.stop > self._length:
                raise DamagedTar("cut off")
            yield header
            self._skip_to(header.stop)

    def read(self, header: Header) -> bytes:
        return self._exactly(header.size)

    def _next(self) -> Header | None:
        """The next member; None at the end. Headers that speak of the next one are taken on the way."""
        start = self._position
        about, told = _About(), 0
        while True:
            block = self._file.read(BLOCK)
            self._position += len(block)
            if block == bytes(BLOCK) or not (block or self._wants_end or about.is_set):
                return None
            if len(block) < BLOCK:
                raise DamagedTar("cut off, or no end mark")
            _check_sum(block)
            kind, size = block[156:157], parse_number(block[124:136])
            if size < 0:
                raise DamagedTar(f"a member has {size} bytes")
            if kind in (_LONG_NAME, _LONG_LINK, *_PAX, _PAX_GLOBAL):
                told += size  # several may follow each other
                if told > MAX_EXTENDED:
                    raise DamagedTar(f"headers have {told:,} bytes; the limit is {MAX_EXTENDED:,}")
                about.take(kind, self._exactly(size + -size % BLOCK)[:size])
                continue
            is_sparse = kind == _GNU_SPARSE
            if is_sparse and block[482]:
                self._skip_sparse_map()
            return about.header(block, kind, size, start=start, place=self._position, is_sparse=is_sparse)

    def _skip_sparse_map(self) -> None:
        while self._exactly(BLOCK)[504]:
            pass

    def _exactly(self, size: int) -> bytes:
        if self._length is not None and self._position + size > self._length:
            raise DamagedTar("cut off")  # before memory is taken for what is not there
        data = self._file.read(size)
        self._position += len(data)
        if len(data) < size:
            raise DamagedTar("cut off")
        return data

    def _skip_to(self, place: int) -> None:
        if self._length is not None:
            self._file.seek(place - self._position, os.SEEK_CUR)
            self._position = place
        while self._position < place:
            self._exactly(min(_PIECE, place - self._position))


@dataclass
class _About:
    """What headers of their own say of the member that follows."""

    name: str | None = None
    link: str | None = None
    pax: dict[bytes, bytes] = field(default_factory=dict)
    is_set: bool = False

    def take(self, kind: bytes, data: bytes) -> None:
        self.is_set = True
        if kind == _LONG_NAME:
            self.name = _text(data)
        elif kind == _LONG_LINK:
            self.link = _text(data)
        elif kind in _PAX:
            self.pax |= _pax_records(data)

    def header(
        self, block: bytes, kind: bytes, size: int, *, start: int, place: int, is_sparse: bool
    ) -> Header:
        name = _text(block[:100])
        if block[257:263] == b"ustar\0" and (folder := _text(block[345:500])):
            name = f"{folder}/{name}"
        name = self.name or name
        if kind == b"\0" and name.endswith("/"):  # how the old format wrote folders
            kind = _FOLDER
        records = self.pax
        if (path := records.get(b"GNU.sparse.name") or records.get(b"path")) is not None:
            name = _text(path)
        link = self.link or _text(block[157:257])
        if (path := records.get(b"linkpath")) is not None:
            link = _text(path)
        if (text := records.get(b"size")) is not None:
            if len(text) > 20 or not text.isdigit():
                raise DamagedTar(f"a member has {_text(text[:30])!r} bytes")
            size = int(text)
        is_sparse = is_sparse or any(key.startswith(b"GNU.sparse.") for key in records)
        return Header(name.rstrip("/"), size, start, place, kind, link, is_sparse)


def open_archive(path: Path) -> IO[bytes]:
    """An archive's file; BrokenArchive where it is no regular file."""
    try:
        return os.fdopen(open_regular(path), "rb")
    except BadImage as error:
        raise BrokenArchive(path, str(error).removeprefix(f"{error.reason}: ")) from None


def list_members(path: Path, file: IO[bytes]) -> Iterator[Header]:
    """The members of a plain tar, by headers alone; the file may be used meanwhile by `os.pread` only."""
    number = 0
    try:
        for header in TarStream(file, length=os.fstat(file.fileno()).st_size):
            number += 1
            yield header
    except DamagedTar as error:
        raise BrokenArchive(path, f"{error} after {number:,} files") from None


def read_member(path: Path, file: IO[bytes], header: Header) -> bytes:
    """The content of a member of a plain tar that `list_members` has given."""
    if header.size > MAX_FILE_BYTES:
        raise BrokenArchive(path, f"{header.name} has {header.size:,} bytes; the limit is {MAX_FILE_BYTES:,}")
    data = os.pread(file.fileno(), header.size, header.place)
    if len(data) < header.size:
        raise BrokenArchive(path, "cut off")
    return data


def parse_number(field_: bytes) -> int:
    """A number of a header: octal digits, or base 256 after a first byte of 0x80 or 0xFF."""
    if field_[0] == 0x80:
        return int.from_bytes(field_[1:], "big")
    if field_[0] == 0xFF:
        return int.from_bytes(field_, "big", signed=True)
    text = field_.partition(b"\0")[0].strip()
    if text.strip(b"01234567"):
        raise DamagedTar(f"{field_!r} is no number")
    return int(text or b"0", 8)


def _check_sum(block: bytes) -> None:
    """The sum of the header's bytes, its own field counted as eight spaces; some wrote it with signs."""
    told = parse_number(block[148:156])
    plain = sum(block) - sum(block[148:156]) + 8 * 32
    if told != plain and told != plain - 256 * sum(byte > 127 for byte in block[:148] + block[156:]):
        raise DamagedTar("a header's checksum is wrong")


def _pax_records(data: bytes) -> dict[bytes, bytes]:
    """`LENGTH KEY=VALUE\\n`, one after the other."""
    records: dict[bytes, bytes] = {}
    place = 0
    while place < len(data) and data[place]:
        digits = data[place : place + 10].partition(b" ")[0]
        stop = place + int(digits) if digits.isdigit() else place
        key, equals, value = data[place + len(digits) + 1 : stop - 1].partition(b"=")
        if stop <= place + len(digits) + 1 or stop > len(data) or not equals or data[stop - 1] != 0x0A:
            raise DamagedTar("a pax header is damaged")
        records[key] = value
        place = stop
    return records


def _text(data: bytes) -> str:
    return data.partition(b"\0")[0].decode("utf-8", "surrogateescape")
