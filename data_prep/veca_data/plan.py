"""Source → plan: which image goes into which shard, fixed before anything is written.

A source with folders `train/` and `val/` (or `images/train/` …, or `test/`) has splits of its own; any other
gives a seeded share of its images to val.

Images that can be read in any order are shuffled as a whole (by rank, see listing.py), split, and cut
into slices; each slice is a shard. A compressed tar can only be read from its start: it gets a number
of shards from its size, and its images are shuffled among those; the archives themselves are shuffled.

A shard takes its slice whatever happens, and comes out smaller where files are rejected. So a shard
depends on its slice alone, and shards can be made in any order, by any worker, on any machine, again.
"""

import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from veca.data.index import SPLITS, shard_name
from veca.data.tars import BrokenArchive
from veca_data.archives import stream_tar
from veca_data.images import Encoding
from veca_data.listing import Listing, Reject, ranks
from veca_data.source import Source, Stream

DEFAULT_SHARD_BYTES = 256_000_000
DEFAULT_VAL_SHARE = 0.01
TRAIN, VAL, TEST = (SPLITS.index(split) for split in ("train", "val", "test"))
NO_SPLIT = len(SPLITS)
OUTSIDE = "outside train/, val/ and test/"
MAX_SHARD_SAMPLES = 10_000  # of a shard by bytes

_PEEK = 64  # files that tell the mean size in a compressed tar


Ints = NDArray[np.int64]


class ShardSize(NamedTuple):
    """How large a shard becomes, before rejects and re-encoding: by images or by source bytes."""

    samples: int | None = None
    bytes: int | None = None


class FileUnit(NamedTuple):
    """One shard, from images that are read in any order."""

    shard: str
    chosen: Ints  # of the listing, in their order

    @property
    def shards(self) -> list[str]:
        return [self.shard]


class FileTask(NamedTuple):
    """A FileUnit with its images: what travels to a worker."""

    shard: str
    listing: Listing


class StreamTask(NamedTuple):
    """The shards of one compressed tar."""

    stream: Stream
    names: dict[str, list[str]]  # split → shard names
    val_share: float  # 0 where the archive belongs to one split
    prefix: str  # of its images' source-relative names
    is_only: bool  # the only archive: then val gets an image even by a small share

    @property
    def shards(self) -> list[str]:
        return [name for names in self.names.values() for name in names]


Unit = FileUnit | StreamTask
Task = FileTask | StreamTask


@dataclass(frozen=True)
class Plan:
    """The whole dataset as it will be, as units of work."""

    source: Source
    seed: int
    options: dict[str, Any]  # with the seed, what makes this dataset this one and no other
    units: tuple[Unit, ...]
    rejects: tuple[Reject, ...]
    ignored: Counter[str]

    def task(self, unit: Unit) -> Task:
        if isinstance(unit, StreamTask):
            return unit
        return FileTask(unit.shard, self.source.listing.take(unit.chosen))

    def source_bytes(self, unit: Unit) -> int:
        if isinstance(unit, StreamTask):
            return unit.stream.size
        return int(self.source.listing.sizes[unit.chosen].clip(min=0).sum())


def make_plan(
    source: Source, *, seed: int, size: ShardSize, val_share: float | None, encoding: Encoding
) -> Plan:
    """Decide everything that can be decided before an image is read."""
    hashes = source.listing.hashes()
    keep, twice = first_of_each(source.listing, hashes)
    streams = (os.fsencode(stream.name) for stream in source.streams)
    codes = folder_splits(chain(source.listing.raw_names(), streams))
    val_share = checked_val_share(val_share, has_val=codes is not None and VAL in codes)
    file_codes, stream_codes = (None, None) if codes is None else np.split(codes, [len(hashes)])
    orders = split_orders(ranks(hashes, seed=seed), keep, codes=file_codes, val_share=val_share)
    units: list[Unit] = []
    taken: Counter[str] = Counter()
    for split, order in orders.items():
        slices = np.split(order, _cuts(source.listing.sizes[order], size))
        units += [FileUnit(shard_name(split, i), chosen) for i, chosen in enumerate(slices)]
        taken[split] = len(slices)
    units += _plan_streams(source, stream_codes, seed=seed, size=size, val_share=val_share, taken=taken)
    outside = 0 if codes is None else int((codes == NO_SPLIT).sum())
    return Plan(
        source=source,
        seed=seed,
        options={
            "source": source.path.resolve().name,
            "fingerprint": _fingerprint(source, hashes),
            "val_share": val_share,
            "shard_samples": size.samples,
            "shard_bytes": size.bytes,
            **encoding._asdict(),
        },
        units=tuple(units),
        rejects=source.rejects + tuple(twice),
        ignored=source.ignored + Counter({OUTSIDE: outside}),
    )


def _cuts(sizes: Ints, size: ShardSize) -> Ints:
    """Where to cut for slices of about equal weight, none above the wanted size by more than one image."""
    wanted = size.samples or size.bytes or DEFAULT_SHARD_BYTES
    # By bytes, an image counts for some even when it is tiny, which bounds the images of a shard.
    weights = np.ones_like(sizes) if size.samples else sizes.clip(min=max(1, wanted // MAX_SHARD_SAMPLES))
    ends = np.cumsum(weights)
    total = int(ends[-1])
    count = _shard_count(total, wanted)
    cuts = np.unique(np.searchsorted(ends, np.arange(1, count) * total // count, side="left") + 1)
    return cuts[cuts < len(sizes)]


def _shard_count(total: float, wanted: int) -> int:
    return max(1, int(-(-total // wanted)))


def _plan_streams(
    source: Source,
    codes: NDArray[np.uint8] | None,
    *,
    seed: int,
    size: ShardSize,
    val_share: float,
    taken: Counter[str],
) -> Iterator[StreamTask]:
    """Number the shards of compressed tars, archives in shuffled order."""
    digests = [hashlib.blake2b(os.fsencode(stream.name)).digest()[:8] for stream in source.streams]
    rank = ranks(np.array([int.from_bytes(digest, "big") for digest in digests], dtype=np.uint64), seed=seed)
    prefixed = source.path.is_dir()
    for i in np.argsort(rank, kind="stable"):
        stream = source.streams[i]
        code = None if codes is None else int(codes[i])
        if code == NO_SPLIT:
            continue
        split = "train" if code is None else SPLITS[code]
        share = val_share if split == "train" else 0.0
        names: dict[str, list[str]] = {}
        for part, weight in ((split, 1 - share), ("val", share)):
            if weight:
                number = _stream_shards(source.root / stream.name, stream.size, weight, size)
                names[part] = [shard_name(part, taken[part] + k) for k in range(number)]
                taken[part] += number
        prefix = f"{stream.name}/" if prefixed else ""
        yield StreamTask(stream, names, share, prefix, len(source.streams) == 1)


def _stream_shards(path: Path, total_bytes: int, weight: float, size: ShardSize) -> int:
    """Images do not compress, so the archive's size is theirs; by samples, its first files tell the mean."""
    if not size.samples:
        return _shard_count(total_bytes * weight, size.bytes or DEFAULT_SHARD_BYTES)
    lengths: list[int] = []
    with suppress(BrokenArchive):  # told, with all others, when its turn comes
        lengths += (len(data) for _, data in islice(stream_tar(path), _PEEK))
    images = [length for length in lengths if length]
    if not images:
        return 1
    count = len(images) if len(lengths) < _PEEK else total_bytes / sum(images) * len(images)
    return _shard_count(count * weight, size.samples)


def _fingerprint(source: Source, hashes: NDArray[np.uint64]) -> str:
    """Tells sources apart: files by name and size, compressed tars by name (a broken one gets replaced)."""
    order = np.argsort(hashes, kind="stable")
    digest = hashlib.blake2b(hashes[order].tobytes(), digest_size=8)
    digest.update(source.listing.sizes[order].tobytes())
    digest.update(
        "\0".join(sorted(stream.name for stream in source.streams)).encode("utf-8", "surrogateescape")
    )
    return digest.hexdigest()


def first_of_each(listing: Listing, hashes: NDArray[np.uint64]) -> tuple[NDArray[np.bool_], list[Reject]]:
    """Which entries to keep when a name comes twice: its key would, too."""
    keep = np.ones(len(hashes), dtype=bool)
    order = np.argsort(hashes, kind="stable")
    keep[order[1:][hashes[order][1:] == hashes[order][:-1]]] = False
    twice = [
        Reject(os.fsdecode(listing.raw_name(i)), "the same name comes twice")
        for i in map(int, np.flatnonzero(~keep))
    ]
    return keep, twice


def folder_splits(names: Iterable[bytes]) -> NDArray[np.uint8] | None:
    """The split each name's folder tells (`train/…`, `images/val/…`), or None where folders tell none."""
    known = {split.encode(): code for code, split in enumerate(SPLITS)}
    codes = bytearray()
    for name in names:
        parts = name.split(b"/", 2)
        folder = parts[1] if parts[0] == b"images" and len(parts) == 3 else parts[0]
        codes.append(known.get(folder, NO_SPLIT) if len(parts) > 1 else NO_SPLIT)
    found = set(codes)
    return np.frombuffer(codes, dtype=np.uint8) if TRAIN in found and found & {VAL, TEST} else None


def split_orders(
    rank: NDArray[np.uint64],
    keep: NDArray[np.bool_],
    *,
    codes: NDArray[np.uint8] | None,
    val_share: float,
    at_least_one: bool = True,
) -> dict[str, Ints]:
    """Split → entries by rank. Without splits of its own, the source gives its lowest ranks to val."""
    order = np.argsort(rank, kind="stable")
    order = order[keep[order]]
    if codes is not None:
        splits = {split: order[codes[order] == code] for code, split in enumerate(SPLITS)}
    else:
        splits = {"train": order, "val": order[:0]}
    if val_share and len(splits["train"]):
        train = splits["train"]
        wanted = int(np.searchsorted(rank[train], np.uint64(val_share * 2**64)))
        if at_least_one and len(train) > 1:
            wanted = min(max(round(len(train) * val_share), 1), len(train) - 1)
        splits["val"], splits["train"] = train[:wanted], train[wanted:]
    return {split: indices for split, indices in splits.items() if len(indices)}


def checked_val_share(val_share: float | None, *, has_val: bool) -> float:
    if val_share is None:
        return 0.0 if has_val else DEFAULT_VAL_SHARE
    if has_val:
        raise ValueError(
            f"val_share must be left out for a source with its own val folder; got {val_share}. "
            "Leave it out, or point at the train folder alone."
        )
    if not 0 <= val_share < 1:
        raise ValueError(f"val_share must be at least 0 and below 1; got {val_share}. Try 0.01.")
    return val_share
