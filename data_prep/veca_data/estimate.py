"""What shards and cached targets will take, in bytes and hours, before anything is written.

A few images of the source are read and packed as `shards` would, and timed. A cache holds, per image
and view, the CLS token and (resolution / 16)² patches of the teacher's width, in the layout of a cache:
exact arithmetic but for the digits of the recorded views. Its time is that of the teacher's blocks, measured
here with random weights.
"""

import hashlib
import os
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np

from veca.data.cached import PATCH_SIZE, Layout, spec_problems
from veca.data.decode import BadImage
from veca_data.images import Encoding, is_image_name, pack
from veca_data.listing import ranks
from veca_data.pool import num_workers
from veca_data.sources import Source, open_source, read_entry
from veca_data.tars import stream_tar

_TAR_OVERHEAD = 2048  # two headers, one block of metadata, padding
_VIEW_BYTES, _ABOUT_BYTES = 123, 42  # of a cached sample's JSON: for each view, and beside them
_STREAMS_SAMPLED = 3


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
        f"source   {about}{shards.images:,} images, {shards.source_bytes / 1e9:.2f} GB",
        f"shards   {shards.shard_bytes / 1e9:.2f} GB, {_duration(shards.hours)} by {shards.workers} workers",
        f"         (from {samples} images read and packed here; a slow disk may add to it)",
    ]
    if teacher is not None:
        cache = estimate_cache(
            shards.images, teacher=teacher, resolutions=resolutions, views=views, dtype=dtype
        )
        lines += [
            f"targets  {cache.bytes / 1e9:.2f} GB, {cache.bytes_per_image / 1e3:.0f} kB per image "
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
            f"none of {samples} images tried in {source} can be read. Run `veca-data scan` on it."
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
    rank = ranks(np.arange(len(source.listing), dtype=np.uint64), seed=0)
    for i in np.argsort(rank)[:count]:
        try:
            yield read_entry(source.root, source.listing.entry(int(i)))
        except BadImage:
            continue
    for stream in source.streams[:_STREAMS_SAMPLED]:
        members = stream_tar(source.root / stream.name)
        images = (data for member, data in members if data and is_image_name(member.name))
        yield from islice(images, -(-count // _STREAMS_SAMPLED))


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
