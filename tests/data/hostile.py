"""Files that mean harm: what is no regular file, tars and zips that lie. And limits for who reads them."""

import gzip
import io
import os
import random
import re
import resource
import signal
import socket
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

BLOCK = 512


class TooSlow(BaseException):
    """Not an Exception, so that nothing under test catches it."""


@contextmanager
def bounds(*, seconds: int = 10, memory: int = 2**30) -> Iterator[None]:
    """A deadline, and room for `memory` bytes more than the process has."""

    def stop(*_: object) -> None:
        raise TooSlow

    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before, hard = resource.getrlimit(resource.RLIMIT_AS)
    handler = signal.signal(signal.SIGALRM, stop)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + memory, hard))
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, handler)
        resource.setrlimit(resource.RLIMIT_AS, (before, hard))


def _bind(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as end:
        here = Path.cwd()
        os.chdir(path.parent)  # a socket's path has 108 bytes at most
        try:
            end.bind(path.name)
        finally:
            os.chdir(here)


SPECIAL: dict[str, tuple[str, Callable[[Path], None]]] = {
    "zero": ("a device", lambda path: path.symlink_to("/dev/zero")),
    "pipe": ("a named pipe", os.mkfifo),
    "linked_pipe": (
        "a named pipe",
        lambda path: (os.mkfifo(f"{path}.pipe"), path.symlink_to(f"{path}.pipe"))[1],
    ),
    "socket": ("a socket", _bind),
}


def tar_header(
    name: str, size: bytes | int, *, kind: bytes = b"0", start: bytes = b"", right: bool = True
) -> bytes:
    """One header; `size` as a number or as the 12 bytes of its field."""
    field = b"%011o\0" % size if isinstance(size, int) else size
    block = bytearray(BLOCK)
    block[: len(name)] = name.encode()
    block[100:124] = b"0000644\0" + b"0000000\0" * 2
    block[124:136] = field
    block[136:148] = b"%011o\0" % 0
    block[156:157] = kind
    block[257:265] = b"ustar\x0000"
    block[: len(start)] = start
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % (sum(block) + (not right))
    return bytes(block)


def tar_file(name: str, data: bytes) -> bytes:
    return tar_header(name, len(data)) + padded(data)


def padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % BLOCK)


def pax(**records: str) -> bytes:
    data = b""
    for key, value in records.items():
        rest = f" {key.replace('__', '.')}={value}\n".encode()
        length = len(rest) + 1
        while len(str(length)) + len(rest) != length:
            length = len(str(length)) + len(rest)
        data += str(length).encode() + rest
    return tar_header("pax", len(data), kind=b"x") + padded(data)


def base256(number: int) -> bytes:
    return (b"\xff" if number < 0 else b"\x80") + (number % 2**88).to_bytes(11, "big")


END = bytes(2 * BLOCK)

# What comes after one good file; each makes the archive unreadable from there.
TARS: dict[str, Callable[[bytes], bytes]] = {
    "huge": lambda jpeg: tar_header("b.jpg", base256(2**62)) + padded(jpeg) + END,
    "huger than an offset": lambda jpeg: tar_header("b.jpg", base256(2**86)) + padded(jpeg) + END,
    "huge, no image": lambda jpeg: tar_header("b.bin", base256(2**62)) + padded(jpeg) + END,
    "all of octal": lambda jpeg: tar_header("b.bin", b"77777777777\0") + padded(jpeg) + END,
    "negative": lambda jpeg: tar_header("b.jpg", base256(-512)) + padded(jpeg) + END,
    "very negative": lambda jpeg: tar_header("b.jpg", base256(-(10**20))) + padded(jpeg) + END,
    "no number": lambda jpeg: tar_header("b.jpg", b"0000000zz00\0") + padded(jpeg) + END,
    "pax negative": lambda jpeg: pax(size=str(-(10**20))) + tar_file("b.jpg", jpeg) + END,
    "pax huge": lambda jpeg: pax(size=str(10**19)) + tar_file("b.jpg", jpeg) + END,
    "pax words": lambda jpeg: pax(size="many") + tar_file("b.jpg", jpeg) + END,
    "pax length": lambda jpeg: (
        tar_header("p", 20, kind=b"x")
        + padded(b"99999 path=somewhere\n"[:20])
        + tar_file("b.jpg", jpeg)
        + END
    ),
    "pax of a terabyte": lambda jpeg: tar_header("p", base256(2**40), kind=b"x") + tar_file("b", jpeg) + END,
    "long name of a terabyte": lambda jpeg: (
        tar_header("././@LongLink", base256(2**40), kind=b"L") + tar_file("b", jpeg) + END
    ),
    "sparse map without end": lambda _: tar_header("b", 0, kind=b"S", start=bytes(482) + b"\1"),
    "checksum": lambda jpeg: tar_header("b.jpg", len(jpeg), right=False) + padded(jpeg) + END,
    "cut in a file": lambda jpeg: tar_file("b.jpg", jpeg)[:700],
    "cut in a header": lambda jpeg: tar_file("b.jpg", jpeg)[:300],
    "cut between files": lambda jpeg: tar_file("b.jpg", jpeg),
    "garbage": lambda _: b"\xa5" * 2000,
}


def hostile_tar(kind: str, jpeg: bytes) -> bytes:
    return tar_file("a.jpg", jpeg) + TARS[kind](jpeg)


GZIPS: dict[str, Callable[[bytes], bytes]] = {
    "gzip cut off": lambda whole: whole[: len(whole) // 2],
    "gzip without its checksum": lambda whole: whole[:-4],
    "gzip with a wrong checksum": lambda whole: whole[:-8] + bytes([whole[-8] ^ 1]) + whole[-7:],
    "no gzip": lambda whole: b"words" + whole,
    "empty": lambda _: b"",
    "gzip of nothing": lambda _: gzip.compress(b""),
}


def hostile_gzip(kind: str, jpeg: bytes) -> bytes:
    return GZIPS[kind](gzip.compress(tar_file("a.jpg", jpeg) + tar_file("b.jpg", jpeg) + END))


def whole_zip(*images: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for number, image in enumerate(images):
            archive.writestr(zipfile.ZipInfo(f"{number}.jpg"), image, zipfile.ZIP_DEFLATED)
    return file.getvalue()


def patched(data: bytes, mark: bytes, offset: int, value: bytes) -> bytes:
    """`value` put `offset` bytes after the last `mark`."""
    place = data.rindex(mark) + offset
    return data[:place] + value + data[place + len(value) :]


def _zip64(directory_end: bytes) -> Callable[[bytes], bytes]:
    """The plain end record says: look at the zip64 one. `directory_end` stands where its locator should."""

    def make(jpeg: bytes) -> bytes:
        whole = whole_zip(jpeg)
        place = whole.rindex(b"PK\5\6")
        return whole[:place] + directory_end + patched(whole[place:], b"PK\5\6", 8, b"\xff" * 12)

    return make


def _overlap(jpeg: bytes) -> bytes:
    """Many records of one file."""
    whole = whole_zip(jpeg)
    first, end = whole.index(b"PK\1\2"), whole.rindex(b"PK\5\6")
    records = whole[first:end] * 50
    counts = struct.pack("<2H2L", 50, 50, len(records), first)
    return whole[:first] + records + patched(whole[end:], b"PK\5\6", 8, counts)


ZIPS: dict[str, Callable[[bytes], bytes]] = {
    "zip64 without locator": _zip64(b""),
    "zip64 locator to nowhere": _zip64(struct.pack("<4sLQL", b"PK\6\7", 0, 2**63, 1)),
    "zip64 locator to no record": _zip64(struct.pack("<4sLQL", b"PK\6\7", 0, 0, 1)),
    "zip64 and nothing else": lambda _: b"PK\5\6" + bytes(4) + b"\xff" * 12 + bytes(2),
    "directory elsewhere": lambda jpeg: patched(whole_zip(jpeg), b"PK\5\6", 16, struct.pack("<L", 5)),
    "too many records": lambda jpeg: patched(whole_zip(jpeg), b"PK\5\6", 10, struct.pack("<H", 900)),
    "packed size past the end": lambda jpeg: patched(whole_zip(jpeg), b"PK\1\2", 20, b"\xfe\xff\xff\xff"),
    "files overlap": _overlap,
    "cut off": lambda jpeg: whole_zip(jpeg, jpeg)[:-30],
    "words": lambda _: b"words" * 100,
    "empty": lambda _: b"",
}


def _bomb(jpeg: bytes, *, told: int) -> bytes:
    """A second entry that says `told` bytes and has 64 MB."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    packed = packer.compress(bytes(2**26)) + packer.flush()
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(zipfile.ZipInfo("0.jpg"), jpeg)
        archive.writestr(zipfile.ZipInfo("1.jpg"), packed)
    stored = bytearray(file.getvalue())
    place = stored.rindex(b"PK\1\2")
    stored[place + 10 : place + 12] = struct.pack("<H", 8)
    stored[place + 24 : place + 28] = struct.pack("<L", told)
    return bytes(stored)


# One entry of two cannot be used: (reason, archive).
ZIP_ENTRIES: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "says too much": ("too-large", lambda jpeg: _bomb(jpeg, told=2**31)),
    "says too little": ("damaged", lambda jpeg: _bomb(jpeg, told=1000)),
    "checksum": ("damaged", lambda jpeg: patched(whole_zip(jpeg, jpeg), b"PK\1\2", 16, b"\1\2\3\4")),
    "header elsewhere": (
        "damaged",
        lambda jpeg: patched(whole_zip(jpeg, jpeg), b"PK\1\2", 42, b"\x05\0\0\0"),
    ),
    "header past the end": (
        "damaged",
        lambda jpeg: patched(whole_zip(jpeg, jpeg), b"PK\1\2", 42, b"\xfe\xff\xff\xff"),
    ),
    "method": ("unsupported", lambda jpeg: patched(whole_zip(jpeg, jpeg), b"PK\1\2", 10, b"\x63\0")),
}


def plain_tar(members: dict[str, bytes], *, tar_format: int = tarfile.PAX_FORMAT) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tar_format) as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return file.getvalue()


NASTY = (0, 1, 511, 512, 513, 2**15, 2**16 - 1, 2**31, 2**32 - 1, 2**62, 2**63, 2**64 - 1)


def mutated_tar(chance: random.Random, whole: bytes) -> bytes:
    """Fields of headers get nasty values; the checksum is made right again, most of the time."""
    body = bytearray(whole)
    for _ in range(chance.randint(1, 3)):
        place = BLOCK * chance.randrange(len(body) // BLOCK)
        block = body[place : place + BLOCK]
        match chance.randrange(5):
            case 0:
                block[124:136] = base256(chance.choice((-1, 1)) * chance.choice(NASTY))
            case 1:
                block[156] = chance.choice(b"0\x001234567xgLKSXNV\xff")
            case 2:
                start = chance.randrange(BLOCK)
                block[start : start + 12] = chance.randbytes(12)[: BLOCK - start]
            case 3:
                block[124:136] = b"%011o\0" % (chance.choice(NASTY) % 8**11)
            case 4:
                block[chance.choice((482, 504))] ^= 1
        if chance.random() < 0.9:
            block[148:156] = b" " * 8
            block[148:156] = b"%06o\0 " % sum(block)
        body[place : place + BLOCK] = block
    if chance.random() < 0.2:
        del body[chance.randrange(len(body)) :]
    return bytes(body)


def mutated_zip(chance: random.Random, whole: bytes) -> bytes:
    body = bytearray(whole)
    marks = [m.start() for mark in (b"PK\1\2", b"PK\3\4", b"PK\5\6") for m in re.finditer(mark, whole)]
    for _ in range(chance.randint(1, 3)):
        place = chance.choice(marks) + chance.randrange(4, 64)
        size = chance.choice((1, 2, 4, 8))
        value = (chance.choice(NASTY) % 2 ** (8 * size)).to_bytes(size, "little")
        body[place : place + size] = value
    if chance.random() < 0.2:
        del body[chance.randrange(len(body)) :]
    return bytes(body)
