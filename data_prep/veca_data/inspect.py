"""A look at a source before anything is written: what is in it, and what shards and targets of it will take.

`scan` reads every file once, checks it as `shards` would check it, and hashes it: two files are copies when
their bytes are equal. Memory stays flat: per image a name and a few numbers.

`estimate` reads and packs a few images as `shards` would, and times that. A cache holds, per image and view,
the CLS token and (resolution / 16)² patches of the teacher's width, in the layout of a cache: exact numbers
but for the digits of the recorded views. Its time is that of the teacher's blocks, measured here.
"""

import hashlib
import json
import os
import pickle
import time
import zlib
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from veca.data.decode import BadImage
from veca.data.index import SPLITS
from veca.data.resolutions import PATCH_SIZE
from veca.data.stored_targets import Layout, spec_problems
from veca.data.tars import BrokenArchive
from veca.utils.files import in_bytes
from veca_data.archives import stream_images
from veca_data.pack import format_of, pack_image, probe
from veca_data.plan import ImageEncoding, folder_splits, ranks
from veca_data.pool import advance, num_workers, run_tasks
from veca_data.source import ImageSource, Listing, Reject, Stream, listed, open_source, read_entry

_BATCH = 512
_EXAMPLES = 5
_SIDES = (256, 512, 864)

_TAR_OVERHEAD = 2048  # two headers, one block of metadata, padding
_VIEW_BYTES, _ABOUT_BYTES = 123, 42  # of a cached sample's JSON: for each view, and beside them
_STREAMS_SAMPLED = 3


class Seen(NamedTuple):
    """An image that can be used."""

    name: str
    size: int
    short_side: int
    content: int
    format: str


@dataclass
class Report:
    """What a source holds."""

    ignored: Counter[str]
    images: int = 0
    bytes: int = 0
    splits: dict[str, int] = field(default_factory=dict)
    formats: Counter[str] = field(default_factory=Counter)
    short_sides: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    copies: int = 0
    copy_examples: list[tuple[str, str]] = field(default_factory=list)
    reasons: Counter[str] = field(default_factory=Counter)
    reject_examples: list[Reject] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [
            f"images      {self.images:,}, {in_bytes(self.bytes)}",
            f"splits      {listed(self.splits) or 'none of its own'}",
            f"formats     {listed(self.formats)}",
        ]
        if len(sides := self.short_sides):
            low, median, high = np.percentile(sides, (5, 50, 95)).astype(int)
            below = " · ".join(f"below {side}: {(sides < side).mean():.1%}" for side in _SIDES)
            lines += [
                f"short side  {sides.min()} … {sides.max()} pixels; 5 % {low}, median {median}, 95 % {high}",
                f"            {below}",
            ]
        lines += [
            f"duplicates  {self.copies:,} are copies of another, byte for byte",
            *(f"              {copy} = {original}" for copy, original in self.copy_examples),
            f"rejects     {self.reasons.total():,} {listed(self.reasons)}",
            *(f"              {reject.path}: {reject.reason}" for reject in self.reject_examples),
            f"ignored     {self.ignored.total():,} {listed(self.ignored)}",
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
        partial(_look, opened.root),
        _tasks(opened),
        workers=num_workers(workers),
        total_bytes=opened.total_bytes,
        label="scan",
    )
    with findings.open("w", encoding="ascii") if findings else nullcontext() as file:
        return _collect(opened, looks, file)


def _tasks(source: ImageSource) -> Iterator[Listing | Stream]:
    for start in range(0, len(source.listing), _BATCH):
        yield source.listing.take(np.arange(start, min(start + _BATCH, len(source.listing))))
    yield from source.streams


def _look(root: Path, task: Listing | Stream) -> list[bytes]:
    """What is seen, packed: a stream may hold a million images, and as objects they would fill the memory."""
    found, packed = _seen(root, task), []
    while batch := list(islice(found, _BATCH)):
        packed.append(zlib.compress(pickle.dumps(batch), 1))
    return packed


def _seen(root: Path, task: Listing | Stream) -> Iterator[Seen | Reject]:
    try:
        for name, data in _read(root, task):
            try:
                width, height = probe(data) if isinstance(data, bytes) else (0, 0)
            except BadImage as error:
                data = str(error)
            if isinstance(data, str):
                yield Reject(name, data)
                continue
            content = int.from_bytes(hashlib.sha256(data).digest()[:8], "big")
            yield Seen(name, len(data), min(width, height), content, format_of(data))
    except BrokenArchive as error:
        yield Reject(str(Path(error.path).relative_to(root)), f"damaged archive: {error.what}")


def _read(root: Path, task: Listing | Stream) -> Iterator[tuple[str, bytes | str]]:
    """The name of each image, and its content or why that cannot be had."""
    if isinstance(task, Stream):
        for member, data in stream_images(root / task.name, task.prefix):
            advance(len(data))
            yield member.name, member.problem or data
        return
    for entry in task.entries():
        advance(max(0, entry.size))
        try:
            content: bytes | str = read_entry(root, entry)
        except BadImage as error:
            content = str(error)
        yield entry.name, content


def _collect(source: ImageSource, looks: Iterable[list[bytes]], file: IO[str] | None) -> Report:
    report = Report(source.ignored)
    listing, sides, contents = Listing(), array("q"), array("Q")
    # Pickles of our own workers, never of a file.
    seen = (pickle.loads(zlib.decompress(packed)) for packed in chain.from_iterable(looks))
    for found in chain(source.rejects, source.damaged, chain.from_iterable(seen)):
        if isinstance(found, Seen):
            listing.add(found.name, size=found.size)
            sides.append(found.short_side)
            contents.append(found.content)
            report.formats[found.format] += 1
            continue
        report.reasons[found.kind] += 1
        if len(report.reject_examples) < _EXAMPLES:
            report.reject_examples.append(found)
        if file:
            file.write(json.dumps(found._asdict()) + "\n")
    report.images, report.bytes = len(listing), listing.total_bytes
    report.short_sides = np.array(sides, dtype=np.int64)
    report.copies, report.copy_examples = _find_copies(listing, np.array(contents, dtype=np.uint64), file)
    codes = folder_splits(chain(listing.raw_names(), (os.fsencode(each.name) for each in source.streams)))
    if codes is not None:
        numbers = np.bincount(codes[: len(listing)], minlength=len(SPLITS)).tolist()
        report.splits = {split: count for split, count in zip(SPLITS, numbers, strict=False) if count}
    return report


def _find_copies(
    listing: Listing, contents: NDArray[np.uint64], file: IO[str] | None
) -> tuple[int, list[tuple[str, str]]]:
    """Count files with the content of another, the original being the first by name, and name a few.

    No list of names is made: a million files may be copies of one. Their order is that of their hashes, which
    does not depend on the order in which workers looked at them.
    """
    order = np.lexsort((listing.hashes(), contents))
    ordered = contents[order]
    starts = np.flatnonzero(np.concatenate(([True][: len(order)], ordered[1:] != ordered[:-1])))
    stops = np.append(starts[1:], len(order))
    examples: list[tuple[str, str]] = []
    for group in np.flatnonzero(stops - starts > 1):
        members = order[starts[group] : stops[group]]
        first = min(members, key=listing.raw_name)
        original = listing.name(first)
        for copy in (listing.name(i) for i in members if i != first):
            if len(examples) < _EXAMPLES:
                examples.append((copy, original))
            elif not file:
                break
            if file:
                file.write(json.dumps({"path": copy, "copy_of": original}) + "\n")
    return len(order) - len(starts), examples


class TeacherSizes(NamedTuple):
    """The sizes that decide a teacher's targets and time."""

    width: int
    depth: int
    num_heads: int
    hidden: int  # of a plain feed-forward layer with the same number of weights


TEACHERS = {
    "small": TeacherSizes(384, 12, 6, 1536),
    "small_plus": TeacherSizes(384, 12, 6, 2304),
    "base": TeacherSizes(768, 12, 12, 3072),
    "large": TeacherSizes(1024, 24, 16, 4096),
}


class ShardEstimate(NamedTuple):
    """What shards of a source will take."""

    images: int
    images_are_exact: bool
    source_bytes: int
    shard_bytes: int
    hours: float


def estimate(
    source: str | os.PathLike[str],
    *,
    max_short_side: int | None = None,
    quality: int | None = None,
    workers: int | None = None,
    samples: int = 64,
    teacher: str | None = None,
    resolutions: Sequence[int] = (256,),
    views: int = 4,
    dtype: str = "fp16",
) -> str:
    """Both estimates as a text; that of a cache where a teacher is named."""
    options: dict[str, Any] = {"resolutions": resolutions, "views": views, "dtype": dtype}
    targets = cache_bytes(teacher=teacher, **options) if teacher else 0
    encoding, workers = ImageEncoding(max_short_side, quality), num_workers(workers)
    shards = estimate_shards(source, encoding=encoding, workers=workers, samples=samples)
    about = "" if shards.images_are_exact else "about "
    lines = [
        f"source   {about}{shards.images:,} images, {in_bytes(shards.source_bytes)}",
        f"shards   {in_bytes(shards.shard_bytes)}, {_duration(shards.hours)} by {workers} workers",
        f"         (from {samples} images read and packed here; a slow disk may add to it)",
    ]
    if teacher:
        seconds, device = teacher_seconds(teacher, resolutions)
        lines += [
            f"targets  {in_bytes(targets * shards.images)}, {in_bytes(targets)} per image "
            f"({teacher}, {', '.join(map(str, resolutions))} px, {views} views, {dtype})",
            f"         {_duration(seconds * views * shards.images / 3600)} on this machine's {device}",
        ]
    return "\n".join(lines)


def estimate_shards(
    source: str | os.PathLike[str], *, encoding: ImageEncoding, workers: int, samples: int = 64
) -> ShardEstimate:
    """Read and pack a few images, spread over the source."""
    opened = open_source(source)
    opened.check_whole()
    sizes: list[tuple[int, int]] = []  # in the source, in the shard
    start = time.perf_counter()
    for data in _some_images(opened, samples):
        try:
            packed = pack_image(data, encoding)
        except BadImage:
            continue
        hashlib.sha256(packed.data)
        sizes.append((len(data), len(packed.data)))
    seconds = time.perf_counter() - start
    if not sizes:
        raise ValueError(
            f"none of {samples} images tried in {source} can be read. Run `veca data scan` on it."
        )
    total, exact = opened.total_bytes, not opened.streams
    size_in, size_out = np.mean(sizes, axis=0).tolist()
    images = len(opened.listing) if exact else round(total / size_in)
    hours = seconds / len(sizes) * images / workers / 3600
    return ShardEstimate(images, exact, total, round(images * (size_out + _TAR_OVERHEAD)), hours)


def cache_bytes(*, teacher: str, resolutions: Sequence[int], views: int, dtype: str) -> int:
    """Bytes of one training image's cached targets, tar headers and recorded views included."""
    if teacher not in TEACHERS:
        raise ValueError(f"teacher must be one of {', '.join(TEACHERS)}; got {teacher!r}.")
    problems = list(spec_problems(resolutions=resolutions, views=views, dtype=dtype))
    if problems:
        raise ValueError("\n".join(problems))
    layout = Layout(TEACHERS[teacher].width, dtype, tuple(resolutions), views)
    return layout.sample_bytes(json_bytes=_VIEW_BYTES * views * len(resolutions) + _ABOUT_BYTES)


def teacher_seconds(teacher: str, resolutions: Sequence[int]) -> tuple[float, str]:
    """Seconds that the teacher's blocks take here for an image at every resolution, and the device."""
    import torch  # only here: the rest of the stage does without it

    width, depth, num_heads, hidden = TEACHERS[teacher]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    batch, dtype = (32, torch.bfloat16) if device == "cuda" else (1, torch.float32)
    block = torch.nn.TransformerEncoderLayer(width, num_heads, hidden, batch_first=True, norm_first=True)
    block = block.to(device, dtype).eval()
    seconds = 0.0
    for resolution in resolutions:
        tokens = torch.randn(batch, 1 + (resolution // PATCH_SIZE) ** 2, width, device=device, dtype=dtype)
        with torch.inference_mode():
            block(tokens)
            start = time.perf_counter()
            for _ in range(3):
                block(tokens).sum().item()  # reading the number waits for the device
        seconds += (time.perf_counter() - start) / 3 / batch * depth
    return seconds, device


def _duration(hours: float) -> str:
    units = ((1.0, "hours"), (60.0, "minutes"), (3600.0, "seconds"))
    factor, unit = next(((f, u) for f, u in units if hours * f >= 1), units[-1])
    return f"{hours * factor:.1f} {unit}"


def _some_images(source: ImageSource, count: int) -> Iterator[bytes]:
    """Up to `count` images: by rank from files, the first ones of a few compressed tars."""
    order = np.argsort(ranks(np.arange(len(source.listing), dtype=np.uint64), seed=0))
    tasks: list[tuple[Listing | Stream, int]] = [(source.listing.take(order[:count]), count)]
    tasks += [(stream, -(-count // _STREAMS_SAMPLED)) for stream in source.streams[:_STREAMS_SAMPLED]]
    for task, number in tasks:
        contents = (data for _, data in _read(source.root, task) if isinstance(data, bytes) and data)
        yield from islice(contents, number)
