"""A compact listing of a source's images: a million entries in a few flat arrays, about 100 bytes each.

Each entry has a source-relative name. Its hash gives the sample's key, tells equal names apart from
new ones, and (mixed with the seed) ranks the entry: sorting by rank is a shuffle that depends on
names and seed alone, so the order in which a file system lists a folder does not matter.
"""

import hashlib
import os
import re
import unicodedata
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_UNSAFE = re.compile(r"[^A-Za-z0-9_-]+")

MISSING = -1  # the size of a file that could not be looked at


class Entry(NamedTuple):
    """One image of a source."""

    name: str  # source-relative; undecodable bytes as os.fsdecode gives them
    size: int
    place: int  # where in the archive (tar: first byte of the file; zip: its directory record)
    archive: str  # source-relative name of the archive; "" for a file of its own


class Reject(NamedTuple):
    """An input that did not become a sample."""

    path: str
    reason: str

    @property
    def kind(self) -> str:
        """What rejects are counted by."""
        return self.reason.partition(":")[0]


def listed(counts: Mapping[str, int]) -> str:
    """`jpg 7, png 2`, the most frequent first."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{name} {count:,}" for name, count in ordered[:8] if count)


@dataclass(frozen=True)
class Listing:
    """Entries as arrays; names are concatenated, `ends` tells where each one stops."""

    names: bytes
    ends: NDArray[np.int64]
    sizes: NDArray[np.int64]
    places: NDArray[np.int64]
    archive_ids: NDArray[np.int64]
    archives: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.sizes)

    def raw_name(self, i: int) -> bytes:
        return self.names[self.ends[i - 1] if i else 0 : self.ends[i]]

    def raw_names(self) -> Iterator[bytes]:
        start = 0
        for end in self.ends.tolist():
            yield self.names[start:end]
            start = end

    def take(self, indices: NDArray[np.int64]) -> "Listing":
        """A listing of some entries, in that order."""
        names = [self.raw_name(i) for i in map(int, indices)]
        return replace(
            self,
            names=b"".join(names),
            ends=np.cumsum([len(name) for name in names], dtype=np.int64),
            sizes=self.sizes[indices],
            places=self.places[indices],
            archive_ids=self.archive_ids[indices],
        )

    def entries(self) -> Iterator[Entry]:
        # Lists, because an array makes an object of a number for each look at it.
        columns = (self.sizes.tolist(), self.places.tolist(), self.archive_ids.tolist())
        for name, size, place, archive in zip(self.raw_names(), *columns, strict=True):
            yield Entry(os.fsdecode(name), size, place, self.archives[archive])

    def entry(self, i: int) -> Entry:
        name = os.fsdecode(self.raw_name(i))
        return Entry(name, int(self.sizes[i]), int(self.places[i]), self.archives[self.archive_ids[i]])

    def hashes(self) -> NDArray[np.uint64]:
        """64 bits of each name's hash."""
        values = bytearray()
        for name in self.raw_names():
            values += hashlib.blake2b(name).digest()[:8]
        return np.frombuffer(values, dtype=">u8").astype(np.uint64)


class ListingBuilder:
    """Collects entries without an object for each."""

    def __init__(self) -> None:
        self._names = bytearray()
        self._ends = array("q")
        self._sizes = array("q")
        self._places = array("q")
        self._archive_ids = array("q")
        self._archives = [""]

    def __len__(self) -> int:
        return len(self._ends)

    def start_archive(self, name: str) -> None:
        """Entries added from now on lie in this archive."""
        self._archives.append(name)

    def add(self, name: str | bytes, *, size: int, place: int = 0) -> None:
        self._names += os.fsencode(name)
        self._ends.append(len(self._names))
        self._sizes.append(size)
        self._places.append(place)
        self._archive_ids.append(len(self._archives) - 1)

    def finish(self) -> Listing:
        return Listing(
            names=bytes(self._names),
            ends=_as_int64(self._ends),
            sizes=_as_int64(self._sizes),
            places=_as_int64(self._places),
            archive_ids=_as_int64(self._archive_ids),
            archives=tuple(self._archives),
        )


def sample_key(name: str) -> str:
    """A readable key without dots: the stem, then 12 hex digits that tell equal stems apart."""
    base = name.rpartition("/")[2]
    stem = base.rpartition(".")[0] or base
    if not stem.isascii():
        stem = unicodedata.normalize("NFKD", stem).encode("ascii", "ignore").decode()
    readable = _UNSAFE.sub("_", stem)[:40].strip("_-") or "image"
    return f"{readable}-{hashlib.blake2b(os.fsencode(name)).hexdigest()[:12]}"


def ranks(hashes: NDArray[np.uint64], *, seed: int) -> NDArray[np.uint64]:
    """Mix the seed into the hashes (splitmix64, one-to-one): a shuffle that no library release changes."""
    with np.errstate(over="ignore"):
        return _mix(hashes ^ _mix(np.array([seed & (2**64 - 1)], dtype=np.uint64)))


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _as_int64(values: "array[int]") -> NDArray[np.int64]:
    return np.frombuffer(values, dtype=np.int64) if values else np.zeros(0, dtype=np.int64)
