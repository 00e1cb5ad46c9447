"""A look at a source before anything is written: counts, sizes, formats, resolutions, copies, rejects.

Every file is read once, checked as `shards` would check it, and hashed: two files are copies when their
bytes are equal. Memory stays flat: per image a name and a few numbers.
"""

import hashlib
import json
import os
import pickle
import zlib
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import chain
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from veca.data.decode import BadImage
from veca.data.index import SPLITS
from veca.data.tars import BrokenArchive
from veca_data.images import format_of, is_image_name, probe
from veca_data.listing import Listing, ListingBuilder, Reject
from veca_data.pool import advance, num_workers, run_tasks
from veca_data.sources import Source, Stream, open_source, read_entry
from veca_data.splits import folder_splits
from veca_data.tars import hides, stream_tar

_BATCH = 512
_EXAMPLES = 5
_SIDES = (256, 512, 864)


class Look(NamedTuple):
    """What a worker found in about _BATCH images, as parallel lists."""

    names: list[str]
    sizes: list[int]
    short_sides: list[int]
    contents: list[int]
    formats: Counter[str]
    rejects: list[Reject]


class Report(NamedTuple):
    """What a source holds."""

    images: int
    bytes: int
    splits: dict[str, int]
    formats: Counter[str]
    short_sides: NDArray[np.int64]
    copies: int
    copy_examples: list[tuple[str, str]]
    reasons: Counter[str]
    reject_examples: list[Reject]
    ignored: Counter[str]

    def text(self) -> str:
        lines = [
            f"images      {self.images:,}, {self.bytes / 1e9:.2f} GB",
            f"splits      {_listed(self.splits) or 'none of its own'}",
            f"formats     {_listed(self.formats)}",
            *_side_lines(self.short_sides),
            f"duplicates  {self.copies:,} are copies of another, byte for byte",
            *(f"              {copy} = {original}" for copy, original in self.copy_examples),
            f"rejects     {self.reasons.total():,} {_listed(self.reasons)}",
            *(f"              {reject.path}: {reject.reason}" for reject in self.reject_examples),
            f"ignored     {self.ignored.total():,} {_listed(self.ignored)}",
        ]
        return "\n".join(line.rstrip() for line in lines)


def scan(
    source: str | os.PathLike[str],
    *,
    annotations: Sequence[Path] = (),
    workers: int | None = None,
    findings: Path | None = None,
) -> Report:
    """Read all of a source; `findings` names a file for all rejects and copies, one JSON object per line."""
    opened = open_source(source, annotations=tuple(annotations))
    looks = run_tasks(
        partial(_look, opened.root, opened.path.is_dir()),
        _tasks(opened),
        workers=num_workers(workers),
        total_bytes=opened.total_bytes,
        label="scan",
    )
    with ExitStack() as stack:
        file = stack.enter_context(findings.open("w", encoding="ascii")) if findings else None
        return _collect(opened, looks, file)


def _tasks(source: Source) -> Iterator[Listing | Stream]:
    for start in range(0, len(source.listing), _BATCH):
        yield source.listing.take(np.arange(start, min(start + _BATCH, len(source.listing))))
    yield from source.streams


def _look(root: Path, prefixed: bool, task: Listing | Stream) -> list[bytes]:
    """Looks, packed: one stream may hold a million images, and as objects they would fill the memory."""
    if isinstance(task, Stream):
        return list(map(_pack, _look_into_stream(root, task, f"{task.name}/" if prefixed else "")))
    look = _empty()
    for entry in task.entries():
        advance(max(0, entry.size))
        try:
            _look_at(entry.name, read_entry(root, entry), look)
        except BadImage as error:
            look.rejects.append(Reject(entry.name, str(error)))
    return [_pack(look)]


def _empty() -> Look:
    return Look([], [], [], [], Counter(), [])


def _pack(look: Look) -> bytes:
    return zlib.compress(pickle.dumps(look), 1)


def _unpack(packed: bytes) -> Look:
    look: Look = pickle.loads(zlib.decompress(packed))  # comes from a worker of ours, never from a file
    return look


def _look_into_stream(root: Path, stream: Stream, prefix: str) -> Iterator[Look]:
    look = _empty()
    try:
        for member, data in stream_tar(root / stream.name):
            advance(len(data))
            if len(look.names) + len(look.rejects) >= _BATCH:
                yield look
                look = _empty()
            if hides(member.name):
                continue
            if member.problem is not None:
                look.rejects.append(Reject(prefix + member.name, member.problem))
            elif is_image_name(member.name):
                try:
                    _look_at(prefix + member.name, data, look)
                except BadImage as error:
                    look.rejects.append(Reject(prefix + member.name, str(error)))
    except BrokenArchive as error:
        look.rejects.append(Reject(stream.name, f"damaged archive: {error.what}"))
    yield look


def _look_at(name: str, data: bytes, look: Look) -> None:
    width, height = probe(data)
    look.names.append(name)
    look.sizes.append(len(data))
    look.short_sides.append(min(width, height))
    look.contents.append(int.from_bytes(hashlib.sha256(data).digest()[:8], "big"))
    look.formats[format_of(data)] += 1


def _collect(source: Source, looks: Iterable[list[bytes]], file: IO[str] | None) -> Report:
    builder, sides, contents = ListingBuilder(), array("q"), array("Q")
    formats: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    examples: list[Reject] = []

    def note(reject: Reject) -> None:
        reasons[reject.reason.partition(":")[0]] += 1
        if len(examples) < _EXAMPLES:
            examples.append(reject)
        if file:
            file.write(json.dumps(reject._asdict()) + "\n")

    for reject in (*source.rejects, *source.damaged):
        note(reject)
    for look in map(_unpack, chain.from_iterable(looks)):
        for name, size in zip(look.names, look.sizes, strict=True):
            builder.add(name, size=size)
        sides.extend(look.short_sides)
        contents.extend(look.contents)
        formats.update(look.formats)
        for reject in look.rejects:
            note(reject)
    listing = builder.finish()
    copies, pairs = _find_copies(listing, np.array(contents, dtype=np.uint64), file)
    return Report(
        images=len(listing),
        bytes=int(listing.sizes.sum()),
        splits=_count_splits(listing, source.streams),
        formats=formats,
        short_sides=np.array(sides, dtype=np.int64),
        copies=copies,
        copy_examples=pairs,
        reasons=reasons,
        reject_examples=examples,
        ignored=source.ignored,
    )


def _find_copies(
    listing: Listing, contents: NDArray[np.uint64], file: IO[str] | None
) -> tuple[int, list[tuple[str, str]]]:
    """Count files with the content of another, the original being the first by name, and name a few.

    No list of names is made: a million files may be copies of one. Their order is that of their hashes, which
    does not depend on the order in which workers looked at them.
    """
    order = np.lexsort((listing.hashes(), contents))
    ordered = contents[order]
    starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    stops = np.append(starts[1:], len(order))
    examples: list[tuple[str, str]] = []
    for group in np.flatnonzero(stops - starts > 1):
        members = order[starts[group] : stops[group]]
        first = min(members, key=listing.raw_name)
        original = listing.entry(int(first)).name
        for copy in (listing.entry(int(i)).name for i in members if i != first):
            if len(examples) < _EXAMPLES:
                examples.append((copy, original))
            elif not file:
                break
            if file:
                file.write(json.dumps({"path": copy, "copy_of": original}) + "\n")
    return len(order) - len(starts), examples


def _count_splits(listing: Listing, streams: Sequence[Stream]) -> dict[str, int]:
    codes = folder_splits(chain(listing.raw_names(), (os.fsencode(stream.name) for stream in streams)))
    if codes is None:
        return {}
    codes = codes[: len(listing)]
    return {split: int((codes == code).sum()) for code, split in enumerate(SPLITS) if code in codes}


def _side_lines(sides: NDArray[np.int64]) -> list[str]:
    if not len(sides):
        return []
    low, median, high = np.percentile(sides, (5, 50, 95)).astype(int)
    below = " · ".join(f"below {side}: {(sides < side).mean():.1%}" for side in _SIDES)
    return [
        f"short side  {sides.min()} … {sides.max()} pixels; 5 % {low}, median {median}, 95 % {high}",
        f"            {below}",
    ]


def _listed(counts: dict[str, int]) -> str:
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{name} {count:,}" for name, count in ordered[:8])
