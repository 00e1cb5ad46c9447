"""Tar files of strangers: members one by one, in flat memory and bounded time, or one kind of error.

Understands the old format, ustar, GNU (long names, numbers in base 256, sparse files) and pax. Python's
`tarfile` reads the same, but believes what it reads: sizes below zero send it backwards for ever, huge ones
forwards, a long name fills the memory, and damaged numbers raise whatever they raise.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

from veca.data.decode import BadImage
from veca.data.folders import MAX_FILE_BYTES, AnyPath, open_regular

BLOCK = 512
MAX_EXTENDED = 2**20  # bytes of a long name, or of pax records; names end at some 4,096

REGULAR = (b"0", b"\0", b"7")
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
        super().__init__(path, what)  # both: what travels from a worker is made of these
        self.path = path
        self.what = what

    def __str__(self) -> str:
        return f"{os.fspath(self.path)}: damaged archive ({self.what}). Fetch or make it again."


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
        return self.kind in REGULAR and not self.is_sparse

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
        about, told = dict[bytes, bytes](), 0  # pax records, and other such headers by their kind
        while True:
            block = self._file.read(BLOCK)
            self._position += len(block)
            if block == bytes(BLOCK) or not (block or self._wants_end or about):
                return None
            if len(block) < BLOCK:
                raise DamagedTar("cut off, or no end mark")
            check_sum(block)
            kind, size = block[156:157], parse_number(block[124:136])
            if kind in (_LONG_NAME, _LONG_LINK, *_PAX, _PAX_GLOBAL):
                told += size  # several may follow each other
                if told > MAX_EXTENDED:
                    raise DamagedTar(f"headers have {told:,} bytes; the limit is {MAX_EXTENDED:,}")
                data = self._exactly(size + -size % BLOCK)[:size]
                about |= {kind: data, **(_pax_records(data) if kind in _PAX else {})}
                continue
            if kind == _GNU_SPARSE and block[482]:
                while self._exactly(BLOCK)[504]:  # more of its map
                    pass
            return _header(block, about, size, start=start, place=self._position)

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


def open_archive(path: Path) -> IO[bytes]:
    """An archive's file; BrokenArchive where it is no regular file."""
    try:
        return os.fdopen(open_regular(path), "rb")
    except BadImage as error:
        raise BrokenArchive(path, error.args[1]) from None


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
    """A number of a header: octal digits, or base 256 after a first byte of 0x80; none is below zero."""
    if field_[:1] == b"\x80":
        return int.from_bytes(field_[1:], "big")
    text = field_.partition(b"\0")[0].strip()
    if text.strip(b"01234567"):
        raise DamagedTar(f"{field_!r} is no number")
    return int(text or b"0", 8)


def check_sum(block: bytes) -> None:
    """The sum of the header's bytes, its own field counted as eight spaces; some wrote it with signs."""
    told = parse_number(block[148:156])
    plain = sum(block) - sum(block[148:156]) + 8 * 32
    if told != plain and told != plain - 256 * sum(byte > 127 for byte in block[:148] + block[156:]):
        raise DamagedTar("a header's checksum is wrong")


def _header(block: bytes, about: dict[bytes, bytes], size: int, *, start: int, place: int) -> Header:
    """A member's own header, and what those before it say of it."""
    kind, name = block[156:157], _text(block[:100])
    if block[257:263] == b"ustar\0" and (folder := _text(block[345:500])):
        name = f"{folder}/{name}"
    name = _text(about.get(_LONG_NAME, b"")) or name
    if kind == b"\0" and name.endswith("/"):  # how the old format wrote folders
        kind = _FOLDER
    if (path := about.get(b"GNU.sparse.name") or about.get(b"path")) is not None:
        name = _text(path)
    link = _text(about.get(b"linkpath", about.get(_LONG_LINK, block[157:257])))
    if (text := about.get(b"size")) is not None:
        if len(text) > 20 or not text.isdigit():
            raise DamagedTar(f"a member has {_text(text[:30])!r} bytes")
        size = int(text)
    is_sparse = kind == _GNU_SPARSE or any(key.startswith(b"GNU.sparse.") for key in about)
    return Header(name.rstrip("/"), size, start, place, kind, link, is_sparse)


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
