"""What the user points at → an ImageSource: the images in it, where they lie, and what cannot be used.

* a folder tree of images; Objects365 unpacked is one: `train/patchN/*.jpg` + `val/…`, or flattened to
  `images/{train,val}/*.jpg`
* a folder tree of archives; Objects365 as downloaded is one: `train/patchN.tar.gz` + `val/images/v1/…`
* one archive: .zip, .tar, or a compressed tar
* a text file with one path per line, relative to the file's folder

Objects365's annotation files tell which images the disk lacks. The training file has several gigabytes, so
names are found by a search through the text. `images[].file_name` reads `images/v1/patch8/NAME.jpg`; on disk
only `patch8/…` (or, flattened, the file's own name) is the same.

`veca.data.folders` tells what of a folder is read: regular files, and what links lead to, once. A link
back to a folder it lies in is a reject. Files of other kinds are counted as ignored. An archive that cannot
be read to its end is counted by a scan, and refused by everything else.
"""

import hashlib
import json
import os
import re
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from veca.data.decode import BadImage
from veca.data.folders import REPEATED_FILE, REPEATED_FOLDER, check_regular, read_file, walk
from veca.data.tars import BrokenArchive, open_archive
from veca_data.archives import ARCHIVE_SUFFIXES, STREAM_SUFFIXES, hides, is_image_name, list_archive, read_at

LIST_SUFFIXES = (".txt", ".lst", ".list")
MISSING = -1  # the size of a file that could not be looked at

_MAX_LINE = 2**14  # four times the longest path
_ANNOTATIONS = re.compile(r"(^|/)zhiyuan_objv2_(train|val)\.json$")
_FILE_NAME = re.compile(rb'"file_name"\s*:\s*("(?:[^"\\]|\\.)*")')
_CHUNK = 2**22
_OVERLAP = 2**13  # longer than any name
_STAT_BATCH = 1024
_STAT_THREADS = 16  # network file systems answer many questions at once as fast as one


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


class Stream(NamedTuple):
    """A compressed tar, which can only be read from its start."""

    name: str
    size: int
    prefix: str = ""  # of its images' source-relative names


class Listing:
    """A million entries in flat memory, about 100 bytes each: names as one string, and four numbers each.

    Its arrays look into it, so none may be held while entries are added.
    """

    def __init__(self) -> None:
        self.archives = [""]  # the last one is that of the entries added next
        self._names = bytearray()
        self._rows = array("q")  # where the name ends, size, place, number of the archive

    def __len__(self) -> int:
        return len(self._rows) // 4

    def add(self, name: str | bytes, *, size: int, place: int = 0) -> None:
        self._names += os.fsencode(name)
        self._rows.extend((len(self._names), size, place, len(self.archives) - 1))

    @property
    def sizes(self) -> NDArray[np.int64]:
        return self._table[:, 1]

    @property
    def total_bytes(self) -> int:
        return int(self.sizes.clip(min=0).sum())

    def raw_name(self, i: int) -> bytes:
        return bytes(self._names[self._rows[4 * i - 4] if i else 0 : self._rows[4 * i]])

    def raw_names(self) -> Iterator[bytes]:
        start = 0
        for end in self._rows[::4]:
            yield bytes(self._names[start:end])
            start = end

    def name(self, i: int) -> str:
        return os.fsdecode(self.raw_name(i))

    def entries(self) -> Iterator[Entry]:
        columns = (self._rows[column::4] for column in (1, 2, 3))
        for name, size, place, archive in zip(self.raw_names(), *columns, strict=True):
            yield Entry(os.fsdecode(name), size, place, self.archives[archive])

    def take(self, indices: NDArray[np.int64]) -> "Listing":
        """A listing of some entries, in that order."""
        names = [self.raw_name(i) for i in indices.tolist()]
        rows = self._table[indices]
        rows[:, 0] = np.cumsum([len(name) for name in names])
        taken = Listing()
        taken.archives = self.archives
        taken._names += b"".join(names)
        taken._rows.frombytes(rows.tobytes())
        return taken

    def hashes(self) -> NDArray[np.uint64]:
        return hash_names(self.raw_names())

    @property
    def _table(self) -> NDArray[np.int64]:
        return np.frombuffer(self._rows, dtype=np.int64).reshape(-1, 4)


@dataclass
class ImageSource:
    """Where images come from."""

    path: Path  # as the user gave it
    root: Path  # what names are relative to
    listing: Listing = field(default_factory=Listing)
    streams: list[Stream] = field(default_factory=list)
    rejects: list[Reject] = field(default_factory=list)
    ignored: Counter[str] = field(default_factory=Counter)
    damaged: list[Reject] = field(default_factory=list)  # archives; listed is what comes before the damage

    @property
    def total_bytes(self) -> int:
        return self.listing.total_bytes + sum(stream.size for stream in self.streams)

    def check_whole(self) -> None:
        """Raise one error that names every damaged archive."""
        if self.damaged:
            lines = (f"{self.root / path}: {reason.replace(': ', ' (', 1)})" for path, reason in self.damaged)
            raise ValueError("\n".join([*lines, "Fetch or make them again, or take them out of the source."]))


def open_source(path: str | os.PathLike[str], *, annotations: tuple[Path, ...] = ()) -> ImageSource:
    """List what `path` holds. `annotations` name Objects365 JSON files that lie outside the source."""
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(
            f"source {path} does not exist. Give a folder, an archive or a list of paths."
        )
    check_regular(path)
    source, found = ImageSource(path, path if path.is_dir() else path.parent), list[Path]()
    if path.is_dir():
        found = _add_folder(source)
    elif _is_archive(path.name):
        _add_archives(source, [path.name], prefixed=False)
    elif path.name.lower().endswith(LIST_SUFFIXES):
        _add_paths(source)
    else:
        known = ", ".join(ARCHIVE_SUFFIXES + LIST_SUFFIXES)
        raise ValueError(f"source {path} is a file of an unknown kind; known are folders and {known}.")
    if annotations and source.streams:
        raise ValueError(
            "annotations are compared with files on disk, and the source is compressed archives. "
            "Leave --annotations out, or unpack the archives."
        )
    if (annotations or found) and not source.streams:
        source.rejects += _missing_images(source.listing, (*annotations, *found))
    if not len(source.listing) and not source.streams:
        source.check_whole()
        raise ValueError(f"source {path} holds no images (ignored: {listed(source.ignored) or 'nothing'}).")
    return source


def read_entry(root: Path, entry: Entry) -> bytes:
    """The bytes of one image; raises BadImage with the reason where they cannot be had."""
    try:
        if not entry.archive:
            return read_file(os.path.join(root, entry.name))  # noqa: PTH118  a Path would cost 20 µs
        return read_at(root / entry.archive, entry.place, entry.size)
    except BrokenArchive as error:  # somebody has changed it since it was listed
        raise BadImage("damaged", str(error.what)) from None
    except OSError as error:
        raise BadImage("unreadable", error.strerror or str(error)) from None


def listed(counts: Mapping[str, int]) -> str:
    """`jpg 7, png 2`, the most frequent first."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{name} {count:,}" for name, count in ordered[:8] if count)


def hash_names(names: Iterable[bytes]) -> NDArray[np.uint64]:
    """64 bits of each name's hash."""
    values = bytearray()
    for name in names:
        values += hashlib.blake2b(name).digest()[:8]
    return np.frombuffer(values, dtype=">u8").astype(np.uint64)


def _add_folder(source: ImageSource) -> list[Path]:
    """List a folder; returns the Objects365 annotation files in it."""
    archives: list[str] = []
    annotations: list[Path] = []
    rejects: list[Reject] = []
    for name, problem in walk(source.root, lambda name: is_image_name(name) or _is_archive(name)):
        if hides(name):
            continue
        if problem in (REPEATED_FILE, REPEATED_FOLDER):
            source.ignored[problem] += 1
        elif problem is not None:
            rejects.append(Reject(name, problem))
        elif is_image_name(name):
            source.listing.add(name, size=MISSING)
        elif _is_archive(name):
            archives.append(name)
        elif _ANNOTATIONS.search(name):
            annotations.append(source.root / name)
        else:
            source.ignored[_suffix(name)] += 1
    if len(source.listing) or not archives:
        # Loose images win: an archive beside them is usually the one they were unpacked from.
        source.ignored.update(_suffix(name) for name in archives)
        _look_up_sizes(source)
    else:
        _add_archives(source, sorted(archives), prefixed=True)
    source.rejects += rejects
    return annotations


def _add_archives(source: ImageSource, names: list[str], *, prefixed: bool) -> None:
    """List zips and plain tars; compressed tars stay streams."""
    for archive in names:
        path, prefix = source.root / archive, f"{archive}/" if prefixed else ""
        try:
            if archive.lower().endswith(STREAM_SUFFIXES):
                with open_archive(path) as file:
                    source.streams.append(Stream(archive, os.fstat(file.fileno()).st_size, prefix))
                continue
            source.listing.archives.append(archive)
            for name, size, place, problem in list_archive(path):
                if problem is not None:
                    source.rejects.append(Reject(prefix + name, problem))
                elif is_image_name(name) and not hides(name):
                    source.listing.add(prefix + name, size=size, place=place)
                else:
                    source.ignored[_suffix(name)] += 1
        except BrokenArchive as error:
            source.damaged.append(Reject(archive, f"damaged archive: {error.what}"))
        except OSError as error:
            source.damaged.append(Reject(archive, f"unreadable archive: {error.strerror or error}"))


def _add_paths(source: ImageSource) -> None:
    with source.path.open("rb") as file:
        for number, line in enumerate(iter(partial(file.readline, _MAX_LINE), b"")):
            if len(line) == _MAX_LINE:
                raise ValueError(
                    f"{source.path}, line {number + 1}: longer than a path can be. Is it a list of paths?"
                )
            name = line.rstrip(b"\r\n")
            if number == 0:
                name = name.removeprefix(b"\xef\xbb\xbf")  # some editors mark UTF-8 files so
            if name.strip():
                source.listing.add(name, size=MISSING)
    _look_up_sizes(source)


def _look_up_sizes(source: ImageSource) -> None:
    listing, sizes, folder = source.listing, source.listing.sizes, os.fsencode(source.root)

    def size_of(i: int) -> int:
        try:
            return os.stat(os.path.join(folder, listing.raw_name(i))).st_size  # noqa: PTH118, PTH116  names are bytes
        except OSError:
            return MISSING  # becomes a reject, with its reason, when it is read

    def fill(start: int) -> None:
        stop = min(start + _STAT_BATCH, len(listing))
        sizes[start:stop] = [size_of(i) for i in range(start, stop)]

    with ThreadPoolExecutor(_STAT_THREADS) as pool:
        list(pool.map(fill, range(0, len(listing), _STAT_BATCH)))


def _is_archive(name: str) -> bool:
    return name.lower().endswith(ARCHIVE_SUFFIXES)


def _suffix(name: str) -> str:
    lowered = name.lower()
    known = next((suffix for suffix in ARCHIVE_SUFFIXES if lowered.endswith(suffix)), None)
    return known or Path(lowered).suffix or "no suffix"


def _missing_images(listing: Listing, annotations: Iterable[Path]) -> Iterator[Reject]:
    """A reject for each image that an annotation file lists and the source lacks."""
    # What the annotations and the disk have in common: `patchN/name`, or the name where it is flattened.
    tails = (b"/".join(name.split(b"/")[-2:]) for name in listing.raw_names())
    present = hash_names(tail if tail.startswith(b"patch") else tail.rpartition(b"/")[2] for tail in tails)
    for path in annotations:
        names = _file_names(path)
        while batch := ["/".join(name.split("/")[-2:]) for name in islice(names, 2**17)]:
            nested = np.isin(hash_names(map(os.fsencode, batch)), present)
            flat = np.isin(hash_names(os.fsencode(tail.rpartition("/")[2]) for tail in batch), present)
            for i in np.flatnonzero(~(nested | flat)):
                yield Reject(batch[i], f"listed in {path.name}, but not in the source")


def _file_names(path: Path) -> Iterator[str]:
    """The `file_name` values of a COCO-style JSON file, in flat memory."""
    found = False
    check_regular(path)
    with path.open("rb") as file:
        text = b""
        while chunk := file.read(_CHUNK):
            text += chunk
            end = 0
            for match in _FILE_NAME.finditer(text):
                found, end = True, match.end()
                yield json.loads(match[1])
            # A name may straddle two chunks: keep what comes after the last match, but not all of it.
            text = text[max(end, len(text) - _OVERLAP) :]
    if not found:
        raise ValueError(
            f'annotations {path} list no images: no "file_name" in it. Is it the COCO-style JSON?'
        )
