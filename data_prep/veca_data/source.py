"""What the user points at → a Source: the images in it, where they lie, and what cannot be used.

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
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from veca.data.decode import BadImage
from veca.data.folders import REPEATED_FILE, REPEATED_FOLDER, check_regular, read_file, walk
from veca.data.tars import BrokenArchive, open_archive
from veca_data.archives import PLAIN_SUFFIXES, STREAM_SUFFIXES, ZIP_SUFFIXES, hides, list_archive, read_at
from veca_data.images import is_image_name
from veca_data.listing import MISSING, Entry, Listing, ListingBuilder, Reject, listed

LIST_SUFFIXES = (".txt", ".lst", ".list")
ARCHIVE_SUFFIXES = ZIP_SUFFIXES + PLAIN_SUFFIXES + STREAM_SUFFIXES

_MAX_LINE = 2**14  # four times the longest path
_ANNOTATIONS = re.compile(r"(^|/)zhiyuan_objv2_(train|val)\.json$")
_FILE_NAME = re.compile(rb'"file_name"\s*:\s*("(?:[^"\\]|\\.)*")')
_CHUNK = 2**22
_OVERLAP = 2**13  # longer than any name
_STAT_BATCH = 1024
_STAT_THREADS = 16  # network file systems answer many questions at once as fast as one


class Stream(NamedTuple):
    """A compressed tar, which can only be read from its start."""

    name: str
    size: int


@dataclass(frozen=True)
class Source:
    """Where images come from."""

    path: Path  # as the user gave it
    root: Path  # what names are relative to
    listing: Listing
    streams: tuple[Stream, ...] = ()
    rejects: tuple[Reject, ...] = ()
    ignored: Counter[str] = field(default_factory=Counter)
    damaged: tuple[Reject, ...] = ()  # archives; the listing has what comes before the damage

    @property
    def total_bytes(self) -> int:
        files = int(self.listing.sizes.clip(min=0).sum())
        return files + sum(stream.size for stream in self.streams)

    def check_whole(self) -> None:
        """Raise one error that names every damaged archive."""
        if self.damaged:
            lines = (f"{self.root / path}: {reason.replace(': ', ' (', 1)})" for path, reason in self.damaged)
            raise ValueError("\n".join([*lines, "Fetch or make them again, or take them out of the source."]))


def open_source(path: str | os.PathLike[str], *, annotations: tuple[Path, ...] = ()) -> Source:
    """List what `path` holds. `annotations` name Objects365 JSON files that lie outside the source."""
    path = Path(path)
    if path.exists():
        check_regular(path)
    if path.is_dir():
        source, found = _open_folder(path)
    elif path.is_file():
        source, found = _open_file(path), []
    else:
        raise FileNotFoundError(
            f"source {path} does not exist. Give a folder, an archive or a list of paths."
        )
    if annotations and source.streams:
        raise ValueError(
            "annotations are compared with files on disk, and the source is compressed archives. "
            "Leave --annotations out, or unpack the archives."
        )
    if (annotations or found) and not source.streams:
        missing = _missing_images(source.listing, (*annotations, *found))
        source = replace(source, rejects=(*source.rejects, *missing))
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


def _open_file(path: Path) -> Source:
    if _is_archive(path.name):
        return _with_archives(path, path.parent, [path.name], prefixed=False)
    if path.name.lower().endswith(LIST_SUFFIXES):
        return Source(path, path.parent, _list_of_paths(path))
    known = ", ".join(ARCHIVE_SUFFIXES + LIST_SUFFIXES)
    raise ValueError(f"source {path} is a file of an unknown kind; known are folders and {known}.")


def _open_folder(path: Path) -> tuple[Source, list[Path]]:
    """The source, and the Objects365 annotation files in it."""
    builder, rejects, ignored = ListingBuilder(), [], Counter[str]()
    archives: list[str] = []
    annotations: list[Path] = []
    for name, problem in walk(path, lambda name: is_image_name(name) or _is_archive(name)):
        if hides(name):
            continue
        if problem in (REPEATED_FILE, REPEATED_FOLDER):
            ignored[problem] += 1
        elif problem is not None:
            rejects.append(Reject(name, problem))
        elif is_image_name(name):
            builder.add(name, size=MISSING)
        elif _is_archive(name):
            archives.append(name)
        elif _ANNOTATIONS.search(name):
            annotations.append(path / name)
        else:
            ignored[_suffix(name)] += 1
    if len(builder) or not archives:
        # Loose images win: an archive beside them is usually the one they were unpacked from.
        ignored.update(_suffix(name) for name in archives)
        listing = _with_sizes(builder.finish(), path)
        return Source(path, path, listing, (), tuple(rejects), ignored), annotations
    source = _with_archives(path, path, sorted(archives), prefixed=True)
    rejects, ignored = [*source.rejects, *rejects], source.ignored + ignored
    return replace(source, rejects=tuple(rejects), ignored=ignored), annotations


def _with_archives(path: Path, root: Path, names: list[str], *, prefixed: bool) -> Source:
    """List zips and plain tars; compressed tars stay streams."""
    builder, rejects, ignored = ListingBuilder(), [], Counter[str]()
    streams: list[Stream] = []
    damaged: list[Reject] = []

    for archive in names:
        prefix = f"{archive}/" if prefixed else ""
        try:
            if archive.lower().endswith(STREAM_SUFFIXES):
                with open_archive(root / archive) as file:
                    streams.append(Stream(archive, os.fstat(file.fileno()).st_size))
                continue
            builder.start_archive(archive)
            for name, size, place, problem in list_archive(root / archive):
                if problem is not None:
                    rejects.append(Reject(prefix + name, problem))
                elif is_image_name(name) and not hides(name):
                    builder.add(prefix + name, size=size, place=place)
                else:
                    ignored[_suffix(name)] += 1
        except BrokenArchive as error:
            damaged.append(Reject(archive, f"damaged archive: {error.what}"))
        except OSError as error:
            damaged.append(Reject(archive, f"unreadable archive: {error.strerror or error}"))
    return Source(path, root, builder.finish(), tuple(streams), tuple(rejects), ignored, tuple(damaged))


def _list_of_paths(path: Path) -> Listing:
    builder = ListingBuilder()
    with path.open("rb") as file:
        for number, line in enumerate(iter(partial(file.readline, _MAX_LINE), b"")):
            if len(line) == _MAX_LINE:
                raise ValueError(
                    f"{path}, line {number + 1}: longer than a path can be. Is it a list of paths?"
                )
            name = line.rstrip(b"\r\n")
            if number == 0:
                name = name.removeprefix(b"\xef\xbb\xbf")  # some editors mark UTF-8 files so
            if name.strip():
                builder.add(name, size=MISSING)
    return _with_sizes(builder.finish(), path.parent)


def _with_sizes(listing: Listing, root: Path) -> Listing:
    sizes = np.empty(len(listing), dtype=np.int64)
    folder = os.fsencode(root)

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
    return replace(listing, sizes=sizes)


def _is_archive(name: str) -> bool:
    return name.lower().endswith(ARCHIVE_SUFFIXES)


def _suffix(name: str) -> str:
    lowered = name.lower()
    known = next((suffix for suffix in ARCHIVE_SUFFIXES if lowered.endswith(suffix)), None)
    return known or Path(lowered).suffix or "no suffix"


def _missing_images(listing: Listing, annotations: Iterable[Path]) -> Iterator[Reject]:
    """A reject for each image that an annotation file lists and the source lacks."""
    present = np.sort(_hashes(_tail(os.fsdecode(name)) for name in listing.raw_names()))
    for path in annotations:
        names = _file_names(path)
        while batch := list(islice(names, 65_536)):
            tails = [_last_two(name) for name in batch]
            nested = _is_in(present, _hashes(tails))
            flat = _is_in(present, _hashes(tail.rpartition("/")[2] for tail in tails))
            for i in np.flatnonzero(~(nested | flat)):
                yield Reject(tails[i], f"listed in {path.name}, but not in the source")


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


def _tail(name: str) -> str:
    """What the annotations and the disk have in common: `patchN/name`, or the name where it is flattened."""
    tail = _last_two(name)
    return tail if tail.startswith("patch") else tail.rpartition("/")[2]


def _last_two(name: str) -> str:
    return "/".join(name.split("/")[-2:])


def _hashes(names: Iterable[str]) -> NDArray[np.uint64]:
    values = bytearray()
    for name in names:
        values += hashlib.blake2b(os.fsencode(name), digest_size=8).digest()
    return np.frombuffer(values, dtype=np.uint64)


def _is_in(ordered: NDArray[np.uint64], values: NDArray[np.uint64]) -> NDArray[np.bool_]:
    places = np.searchsorted(ordered, values).clip(max=len(ordered) - 1)
    return np.asarray(ordered[places] == values)
