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
from contextlib import ExitStack
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from veca.data.decode import BadImage
from veca.data.index import SPLITS
from veca.data.stored_targets import PATCH_SIZE, Layout, spec_problems
from veca.data.tars import BrokenArchive
from veca.utils.files import in_bytes
from veca_data.archives import stream_images
from veca_data.images import Encoding, format_of, pack, probe
from veca_data.listing import Listing, ListingBuilder, Reject, listed, ranks
from veca_data.plan import folder_splits
from veca_data.pool import advance, num_workers, run_tasks
from veca_data.source import Source, Stream, open_source, read_entry

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

    def __str__(self) -> str:
        lines = [
            f"images      {self.images:,}, {in_bytes(self.bytes)}",
            f"splits      {listed(self.splits) or 'none of its own'}",
            f"formats     {listed(self.formats)}",
            *_side_lines(self.short_sides),
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
    """What is seen, packed: a stream may hold a million images, and as objects they would fill the memory."""
    found, packed = _seen(root, prefixed, task), []
    while batch := list(islice(found, _BATCH)):
        packed.append(zlib.compress(pickle.dumps(batch), 1))
    return packed


def _seen(root: Path, prefixed: bool, task: Listing | Stream) -> Iterator[Seen | Reject]:
    try:
        for name, data in _read(root, prefixed, task):
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


def _read(root: Path, prefixed: bool, task: Listing | Stream) -> Iterator[tuple[str, bytes | str]]:
    """The name of each image, and its content or why that cannot be had."""
    if isinstance(task, Stream):
        for member, data in stream_images(root / task.name, f"{task.name}/" if prefixed else ""):
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


def _collect(source: Source, looks: Iterable[list[bytes]], file: IO[str] | None) -> Report:
    builder, sides, contents = ListingBuilder(), array("q"), array("Q")
    formats: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    examples: list[Reject] = []
    # Pickles of our own workers, never of a file.
    seen = (pickle.loads(zlib.decompress(packed)) for packed in chain.from_iterable(looks))
    for found in chain(source.rejects, source.damaged, chain.from_iterable(seen)):
        if isinstance(found, Seen):
            builder.add(found.name, size=found.size)
            sides.append(found.short_side)
            contents.append(found.content)
            formats[found.format] += 1
            continue
        reasons[found.kind] += 1
        if len(examples) < _EXAMPLES:
            examples.append(found)
        if file:
            file.write(json.dumps(found._asdict()) + "\n")
    listing = builder.finish()
    copies, pairs = _find_copies(listing, np.array(contents, dtype=np.uint64), file)
    codes = folder_splits(chain(listing.raw_names(), (os.fsencode(each.name) for each in source.streams)))
    numbers = [] if codes is None else np.bincount(codes[: len(listing)], minlength=len(SPLITS)).tolist()
    return Report(
        images=len(listing),
        bytes=int(listing.sizes.sum()),
        splits={split: number for split, number in zip(SPLITS, numbers, strict=False) if number},
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
    starts = np.flatnonzero(np.concatenate(([True][: len(order)], ordered[1:] != ordered[:-1])))
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


def _side_lines(sides: NDArray[np.int64]) -> list[str]:
    if not len(sides):
        return []
    low, median, high = np.percentile(sides, (5, 50, 95)).astype(int)
    below = " · ".join(f"below {side}: {(sides < side).mean():.1%}" for side in _SIDES)
    return [
        f"short side  {sides.min()} … {sides.max()} pixels; 5 % {low}, median {median}, 95 % {high}",
        f"            {below}",
    ]


class Teacher(NamedTuple):
    """The sizes that decide a teacher's targets and time."""

    width: int
    depth: int
    num_heads: int
    hidden: int  # of a plain feed-forward layer with the same number of weights


TEACHERS = {
    "small": Teacher(384, 12, 6, 1536),
    "small_plus": Teacher(384, 12, 6, 2304),
    "base": Teacher(768, 12, 12, 3072),
    "large": Teacher(1024, 24, 16, 4096),
}


class ShardEstimate(NamedTuple):
    """What shards of a source will take."""

    images: int
    images_are_exact: bool
    source_bytes: int
    shard_bytes: int
    hours: float
    workers: int


class CacheEstimate(NamedTuple):
    """What a cache of targets will take."""

    bytes_per_image: int
    bytes: int
    hours: float
    device: str


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
    encoding = Encoding(max_short_side, quality)
    shards = estimate_shards(source, encoding=encoding, workers=num_workers(workers), samples=samples)
    about = "" if shards.images_are_exact else "about "
    lines = [
        f"source   {about}{shards.images:,} images, {in_bytes(shards.source_bytes)}",
        f"shards   {in_bytes(shards.shard_bytes)}, {_duration(shards.hours)} by {shards.workers} workers",
        f"         (from {samples} images read and packed here; a slow disk may add to it)",
    ]
    if teacher is not None:
        cache = estimate_cache(
            shards.images, teacher=teacher, resolutions=resolutions, views=views, dtype=dtype
        )
        lines += [
            f"targets  {in_bytes(cache.bytes)}, {in_bytes(cache.bytes_per_image)} per image "
            f"({teacher}, {', '.join(map(str, resolutions))} px, {views} views, {dtype})",
            f"         {_duration(cache.hours)} on this machine's {cache.device}",
        ]
    return "\n".join(lines)


def estimate_shards(
    source: str | os.PathLike[str], *, encoding: Encoding, workers: int, samples: int = 64
) -> ShardEstimate:
    """Read and pack a few images, spread over the source."""
    opened = open_source(source)
    opened.check_whole()
    sizes_in: list[int] = []
    sizes_out: list[int] = []
    start = time.perf_counter()
    for data in _some_images(opened, samples):
        try:
            packed = pack(data, encoding)
        except BadImage:
            continue
        hashlib.sha256(packed.data)
        sizes_in.append(len(data))
        sizes_out.append(len(packed.data))
    seconds = time.perf_counter() - start
    if not sizes_in:
        raise ValueError(
            f"none of {samples} images tried in {source} can be read. Run `veca data scan` on it."
        )
    exact = not opened.streams
    images = len(opened.listing) if exact else round(opened.total_bytes / float(np.mean(sizes_in)))
    return ShardEstimate(
        images=images,
        images_are_exact=exact,
        source_bytes=opened.total_bytes,
        shard_bytes=round(images * (float(np.mean(sizes_out)) + _TAR_OVERHEAD)),
        hours=seconds / len(sizes_in) * images / workers / 3600,
        workers=workers,
    )


def cache_bytes(*, teacher: str, resolutions: Sequence[int], views: int, dtype: str) -> int:
    """Bytes of one training image's cached targets, tar headers and recorded views included."""
    if teacher not in TEACHERS:
        raise ValueError(f"teacher must be one of {', '.join(TEACHERS)}; got {teacher!r}.")
    problems = list(spec_problems(resolutions=resolutions, views=views, dtype=dtype))
    if problems:
        raise ValueError("\n".join(problems))
    layout = Layout(TEACHERS[teacher].width, dtype, tuple(resolutions), views)
    return layout.sample_bytes(json_bytes=_VIEW_BYTES * views * len(resolutions) + _ABOUT_BYTES)


def estimate_cache(
    images: int, *, teacher: str, resolutions: Sequence[int], views: int = 1, dtype: str = "fp16"
) -> CacheEstimate:
    """Targets of `images` images, each in `views` views at every resolution."""
    each = cache_bytes(teacher=teacher, resolutions=resolutions, views=views, dtype=dtype)
    timed = [_teacher_seconds(TEACHERS[teacher], resolution) for resolution in resolutions]
    seconds = sum(seconds for seconds, _ in timed)
    return CacheEstimate(each, each * images, seconds * views * images / 3600, timed[0][1])


def _duration(hours: float) -> str:
    units = ((1.0, "hours"), (60.0, "minutes"), (3600.0, "seconds"))
    factor, unit = next(((f, u) for f, u in units if hours * f >= 1), units[-1])
    return f"{hours * factor:.1f} {unit}"


def _some_images(source: Source, count: int) -> Iterator[bytes]:
    """Up to `count` images: by rank from files, the first ones of a few compressed tars."""
    order = np.argsort(ranks(np.arange(len(source.listing), dtype=np.uint64), seed=0))
    tasks: list[tuple[Listing | Stream, int]] = [(source.listing.take(order[:count]), count)]
    tasks += [(stream, -(-count // _STREAMS_SAMPLED)) for stream in source.streams[:_STREAMS_SAMPLED]]
    for task, number in tasks:
        contents = (data for _, data in _read(source.root, False, task) if isinstance(data, bytes) and data)
        yield from islice(contents, number)


def _teacher_seconds(teacher: Teacher, resolution: int) -> tuple[float, str]:
    """Seconds per image of the teacher's blocks on this machine, and the device."""
    import torch  # only here: the rest of the stage does without it

    device = "cuda" if torch.cuda.is_available() else "cpu"
    batch = 32 if device == "cuda" else 1
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    block = torch.nn.TransformerEncoderLayer(
        teacher.width, teacher.num_heads, teacher.hidden, batch_first=True, norm_first=True
    )
    block = block.to(device, dtype).eval()
    tokens = torch.randn(
        batch, 1 + (resolution // PATCH_SIZE) ** 2, teacher.width, device=device, dtype=dtype
    )
    with torch.inference_mode():
        block(tokens)
        start = time.perf_counter()
        for _ in range(3):
            block(tokens).sum().item()  # reading the number waits for the device
    return (time.perf_counter() - start) / 3 / batch * teacher.depth, device
