"""Images → shards: the whole stage, restartable at any moment with the same bytes as a result.

A plan fixes what image goes where, and the folder is claimed for it. Workers make the shards that are not
finished, each as a whole. At the end index.json and rejects.jsonl follow from the records, here or, when
several machines made parts, by `merge_parts`.

Without re-encoding, a file decides what goes into the shard (by content, never by its name):

========================================  ==========================================================
JPEG (also CMYK, gray, multi-picture)     kept byte for byte; the loader turns it upright and into RGB
PNG (also palette, gray, 16-bit, alpha)   kept byte for byte; of an animated PNG readers show the still
WebP                                      kept byte for byte; an animated one gives its first frame, as PNG
GIF, BMP, TIFF, AVIF                      first frame or page, upright RGB, as PNG: no pixel is lost
anything else                             rejected with a reason
========================================  ==========================================================

With re-encoding everything becomes an upright RGB JPEG. Pixels are decoded by the loader's own
`veca.data.decode`, so what it would refuse in training (bombs, unknown formats) is refused here.
"""

import errno
import hashlib
import io
import json
import math
import os
import re
import tempfile
import time
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import IO, NamedTuple

from PIL import Image

from veca.data.decode import BadImage, decode, decode_pixels, image_size
from veca.data.folders import MAX_FILE_BYTES
from veca.data.tars import BrokenArchive
from veca.utils.files import check_writable, in_bytes
from veca_data.archives import stream_images
from veca_data.plan import DEFAULT_SHARD_BYTES, ImageEncoding, Plan, ShardSize, Unit, make_plan, split_stream
from veca_data.pool import advance, num_workers, run_tasks
from veca_data.records import PARTS, Summary, claim_folder, finish, new_shard, read_record, remove_leftovers
from veca_data.source import Entry, Listing, Reject, Stream, listed, open_source, read_entry

DEFAULT_QUALITY = 92
DEFAULT_MAX_REJECTS = 0.01

_RULES = {
    "shard_samples": (1, math.inf, "at least 1", "2000"),
    "shard_bytes": (1, math.inf, "at least 1", "256MB"),
    "max_short_side": (16, math.inf, "at least 16, the side of a patch", "864"),
    "quality": (1, 95, "from 1 to 95", "92"),
    "max_rejects": (0, 1, "a share from 0 to 1", "0.01"),
}
_KEPT = {"JPEG": "jpg", "PNG": "png", "WEBP": "webp"}
_STARTS = (
    (b"\xff\xd8\xff", "JPEG"),
    (b"\x89PNG\r\n\x1a\n", "PNG"),
    (b"GIF8", "GIF"),
    (b"BM", "BMP"),
    (b"II*\0", "TIFF"),
    (b"MM\0*", "TIFF"),
)
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]+")


class PackedImage(NamedTuple):
    """What goes into the shard; sizes as displayed."""

    suffix: str
    data: bytes
    width: int
    height: int


class Job(NamedTuple):
    """What all tasks of a run share."""

    root: Path
    out: Path
    encoding: ImageEncoding
    seed: int


def make_shards(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    shard_samples: int | None = None,
    shard_bytes: int | None = None,
    val_share: float | None = None,
    max_short_side: int | None = None,
    quality: int | None = None,
    seed: int = 0,
    workers: int | None = None,
    part: tuple[int, int] | None = None,
    max_rejects: float = DEFAULT_MAX_REJECTS,
    annotations: Sequence[Path] = (),
) -> Summary | None:
    """Turn `source` into shards in `out`; returns what they hold, or None for one part of several.

    The part (i, n) is every unit of work whose number leaves i when divided by n.
    """
    _check_options(
        shard_samples=shard_samples,
        shard_bytes=shard_bytes,
        max_short_side=max_short_side,
        quality=quality,
        part=part,
        max_rejects=max_rejects,
    )
    check_writable(Path(out))
    size = ShardSize(shard_samples, None if shard_samples else shard_bytes or DEFAULT_SHARD_BYTES)
    encoding = ImageEncoding(max_short_side, quality)
    processes = num_workers(workers)
    out = Path(out)
    opened = open_source(source, annotations=tuple(annotations))
    opened.check_whole()
    plan = make_plan(opened, seed=seed, size=size, val_share=val_share, encoding=encoding)
    plan = claim_folder(out, plan)
    if ignored := listed(plan.ignored):
        print(f"Ignored files: {ignored}")
    number, parts = part or (0, 1)
    mine = plan.units[number::parts]
    pending = [unit for unit in mine if not _is_finished(out, unit)]
    remove_leftovers(out, (shard for unit in pending for shard in unit.shards))
    if len(pending) < len(mine):
        print(f"{len(mine) - len(pending)} of {len(mine)} units of work are finished already.")
    started = time.monotonic()
    num_bytes = sum(plan.source_bytes(unit) for unit in pending)
    _work(plan, Job(opened.root, out, encoding, seed), pending, num_bytes=num_bytes, workers=processes)
    seconds = time.monotonic() - started
    print(f"Read {in_bytes(num_bytes)} in {seconds:.1f} s ({in_bytes(num_bytes / max(seconds, 1e-9))}/s).")
    if part:
        print(f"Part {number}/{parts} is done. When all parts are: veca data merge {out}")
        return None
    return finish(out, max_rejects=max_rejects)


def merge_parts(out: str | os.PathLike[str], *, max_rejects: float = DEFAULT_MAX_REJECTS) -> Summary:
    """Write index.json and rejects.jsonl when all shards are made."""
    _check_options(max_rejects=max_rejects)
    return finish(Path(out), max_rejects=max_rejects)


def run_task(job: Job, task: tuple[Unit, Listing]) -> str | None:
    """Make a unit's shards, of files from this listing; returns a complaint about an unreadable archive."""
    unit, listing = task
    try:
        if unit.stream:
            _pack_stream(job, unit, unit.stream)
        else:
            read = partial(read_entry, job.root)
            size = listing.total_bytes
            write_shard(job, unit.shards[0], listing.entries(), read, source_bytes=size)
    except BrokenArchive as error:
        return str(error)
    return None


def write_shard(
    job: Job,
    shard: str,
    entries: Iterable[Entry],
    read: Callable[[Entry], bytes],
    *,
    source_bytes: int,
    rejects: Iterable[Reject] = (),
    passes: int = 1,
) -> None:
    """Write one shard from the images that can be used; this is one of `passes` over them."""
    with new_shard(job.out, shard, source_bytes=source_bytes) as (writer, found):
        found += rejects
        for entry in entries:
            advance(max(0, entry.size) // passes)
            try:
                packed = pack_image(read(entry), job.encoding)
            except BadImage as error:
                found.append(Reject(entry.name, str(error)))
                continue
            about = {"source": entry.name, "width": packed.width, "height": packed.height}
            members = {packed.suffix: packed.data, "json": json.dumps(about).encode()}
            writer.write(sample_key(entry.name), members)


def pack_image(data: bytes, encoding: ImageEncoding) -> PackedImage:
    """Turn a file into what the shard stores; raises BadImage where that cannot be done."""
    width, height = probe(data)
    if encoding == ImageEncoding():
        suffix = _KEPT.get(format_of(data))
        if suffix is None or _is_animated_webp(data):
            return _encoded(Image.fromarray(decode(data)), "png", "PNG")
        return PackedImage(suffix, data, width, height)
    target = encoding.max_short_side
    pixels = decode_pixels(data, short_side=target)
    image = Image.fromarray(pixels.rgb)
    if target is not None and min(pixels.size) > target:
        # The size is taken from the full picture: DCT scaling rounds up, which would bend the aspect.
        scale = target / min(pixels.size)
        size = (round(pixels.size[0] * scale), round(pixels.size[1] * scale))
        image = image.resize(size, Image.Resampling.LANCZOS)
    return _encoded(image, "jpg", "JPEG", quality=encoding.quality or DEFAULT_QUALITY)


def probe(data: bytes) -> tuple[int, int]:
    """Width and height as displayed, of a file that is whole; raises BadImage for any other.

    Header and end mark tell, which needs no decoding. Where the end mark is not the last thing in the file
    (some cameras append data; a broken download lacks it), decoding decides.
    """
    if not data:
        raise BadImage("empty", "the file has 0 bytes")
    if len(data) > MAX_FILE_BYTES:
        raise BadImage("too-large", f"{len(data):,} bytes; the limit is {MAX_FILE_BYTES:,}")
    size = image_size(data)
    if not _ends_well(data):
        decode(data)
    return size


def format_of(data: bytes) -> str:
    """The format the first bytes announce; `other` where they announce none that is kept or converted."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "WEBP"
    if data[4:12] in (b"ftypavif", b"ftypavis"):
        return "AVIF"
    return next((name for start, name in _STARTS if data.startswith(start)), "other")


def sample_key(name: str) -> str:
    """A readable key without dots: the stem, then 12 hex digits that tell equal stems apart."""
    base = name.rpartition("/")[2]
    stem = base.rpartition(".")[0] or base
    if not stem.isascii():
        stem = unicodedata.normalize("NFKD", stem).encode("ascii", "ignore").decode()
    readable = _UNSAFE.sub("_", stem)[:40].strip("_-") or "image"
    return f"{readable}-{hashlib.blake2b(os.fsencode(name)).hexdigest()[:12]}"


def _check_options(*, part: tuple[int, int] | None = None, **values: float | None) -> None:
    """One error that names every value that is wrong."""
    given = {name: value for name, value in values.items() if value is not None}
    problems = []
    for name, (low, high, rule, suggestion) in _RULES.items():
        if name in given and not low <= given[name] <= high:
            problems.append(f"{name} must be {rule}; got {given[name]}. Try {suggestion}.")
    if "shard_samples" in given and "shard_bytes" in given:
        problems.append("give shard_samples or shard_bytes, not both.")
    if part is not None and not 0 <= part[0] < part[1]:
        parts = max(1, part[1])
        last = f"Of {parts} parts the last is {parts - 1}/{parts}."
        problems.append(f"part must be i/n with i from 0 to n-1; got {part[0]}/{part[1]}. {last}")
    if problems:
        raise ValueError("\n".join(problems))


def _is_finished(out: Path, unit: Unit) -> bool:
    size = unit.stream.size if unit.stream else None
    return all(read_record(out, shard, source_bytes=size) is not None for shard in unit.shards)


def _work(plan: Plan, job: Job, pending: list[Unit], *, num_bytes: int, workers: int) -> None:
    try:
        results = run_tasks(
            partial(run_task, job),
            ((unit, plan.source.listing.take(unit.chosen)) for unit in pending),
            workers=min(workers, max(1, len(pending))),
            total_bytes=num_bytes,
            label="shards",
        )
        broken = [complaint for complaint in results if complaint]
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise RuntimeError(
            f"the disk of {job.out} is full. Finished shards are kept: make room, and run it again."
        ) from None
    if broken:
        broken.append("All other shards are kept: replace the archives, and run the same command again.")
        raise RuntimeError("\n".join(broken))


def _pack_stream(job: Job, unit: Unit, stream: Stream) -> None:
    # Its images are copied once and shuffled from there: memory stays flat, the shuffle covers all of them.
    # The file has no name, so that it is gone with the process, however that ends.
    with tempfile.TemporaryFile(dir=job.out / PARTS) as file:
        listing, rejects = _spill(job.root / stream.name, stream.prefix, file)

        def read(entry: Entry) -> bytes:
            return os.pread(file.fileno(), entry.size, entry.place)

        for shard, indices in split_stream(listing, unit, stream, rejects, seed=job.seed):
            if read_record(job.out, shard, source_bytes=stream.size) is None:
                entries = listing.take(indices).entries()
                write_shard(job, shard, entries, read, source_bytes=stream.size, rejects=rejects, passes=2)
            rejects = []  # they are the archive's, and stand in the record of its first shard


def _spill(path: Path, prefix: str, file: IO[bytes]) -> tuple[Listing, list[Reject]]:
    """Copy the images of a compressed tar into `file`, and list them by position there."""
    listing, rejects = Listing(), []
    place = 0
    for member, data in stream_images(path, prefix):
        if member.problem is not None:
            rejects.append(Reject(member.name, member.problem))
            continue
        advance(len(data) // 2)  # the other half when they are written to shards
        file.write(data)
        listing.add(member.name, size=len(data), place=place)
        place += len(data)
    file.flush()
    return listing, rejects


def _ends_well(data: bytes) -> bool:
    name = format_of(data)
    if name == "JPEG":
        return data.endswith(b"\xff\xd9")
    if name == "PNG":
        return data.endswith(b"IEND\xaeB`\x82")
    if name == "WEBP":
        return int.from_bytes(data[4:8], "little") + 8 <= len(data)
    return False  # the others have no mark to look at, and are decoded anyway to be converted


def _is_animated_webp(data: bytes) -> bool:
    return data[:4] == b"RIFF" and data[12:16] == b"VP8X" and bool(data[20] & 0x02)


def _encoded(image: Image.Image, suffix: str, name: str, **options: int) -> PackedImage:
    buffer = io.BytesIO()
    image.save(buffer, name, **options)
    return PackedImage(suffix, buffer.getvalue(), image.width, image.height)
