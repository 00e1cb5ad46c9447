"""Source → plan: which image goes into which shard, fixed before anything is written.

A source with folders `train/` and `val/` (or `images/train/` …, or `test/`) has splits of its own; any other
gives a seeded share of its images to val.

Images that can be read in any order are shuffled as a whole, split, and cut into slices; each slice is a
shard. A compressed tar can only be read from its start: it gets a number of shards from its size, and its
images are shuffled among those; the archives themselves are shuffled.

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
from veca_data.source import ImageSource, Listing, Reject, Stream, hash_names

DEFAULT_SHARD_BYTES = 256_000_000
DEFAULT_VAL_SHARE = 0.01
TRAIN, VAL, TEST = (SPLITS.index(split) for split in ("train", "val", "test"))
NO_SPLIT = len(SPLITS)
OUTSIDE = "outside train/, val/ and test/"
MAX_SHARD_SAMPLES = 10_000  # of a shard by bytes

_PEEK = 64  # files that tell the mean size in a compressed tar

Ints = NDArray[np.int64]
NOTHING: Ints = np.zeros(0, dtype=np.int64)


class ShardSize(NamedTuple):
    """How large a shard becomes, before rejects and re-encoding: by images or by source bytes."""

    samples: int | None = None
    bytes: int | None = None


class ImageEncoding(NamedTuple):
    """How images are written; without either value files are kept as they are."""

    max_short_side: int | None = None
    quality: int | None = None


class Unit(NamedTuple):
    """What a worker makes at once: a shard of files, or all shards of a compressed tar."""

    names: dict[str, list[str]]  # split → shard names
    chosen: Ints = NOTHING  # files of the listing, in their order; they are read in any order
    stream: Stream | None = None
    val_share: float = 0.0  # of a stream; 0 where it belongs to one split
    is_only: bool = False  # the only stream: then val gets an image even by a small share

    @property
    def shards(self) -> list[str]:
        return [name for names in self.names.values() for name in names]


@dataclass(frozen=True)
class Plan:
    """The whole dataset as it will be, as units of work."""

    source: ImageSource
    seed: int
    options: dict[str, Any]  # with the seed, what makes this dataset this one and no other
    units: list[Unit]
    rejects: list[Reject]
    ignored: Counter[str]

    def source_bytes(self, unit: Unit) -> int:
        if unit.stream:
            return unit.stream.size
        return int(self.source.listing.sizes[unit.chosen].clip(min=0).sum())


def make_plan(
    source: ImageSource, *, seed: int, size: ShardSize, val_share: float | None, encoding: ImageEncoding
) -> Plan:
    """Decide everything that can be decided before an image is read."""
    hashes = source.listing.hashes()
    keep, twice = _first_of_each(source.listing, hashes)
    streams = (os.fsencode(stream.name) for stream in source.streams)
    codes = folder_splits(chain(source.listing.raw_names(), streams))
    val_share = _checked_val_share(val_share, has_val=codes is not None and VAL in codes)
    file_codes, stream_codes = (None, None) if codes is None else np.split(codes, [len(hashes)])
    orders = split_orders(ranks(hashes, seed=seed), keep, codes=file_codes, val_share=val_share)
    units: list[Unit] = []
    taken: Counter[str] = Counter()
    for split, order in orders.items():
        slices = np.split(order, _cuts(source.listing.sizes[order], size))
        units += [Unit({split: [shard_name(split, i)]}, chosen) for i, chosen in enumerate(slices)]
        taken[split] = len(slices)
    units += _plan_streams(source, stream_codes, seed=seed, size=size, val_share=val_share, taken=taken)
    outside = 0 if codes is None else int((codes == NO_SPLIT).sum())
    options = {
        "source": source.path.resolve().name,
        "fingerprint": _fingerprint(source, hashes),
        "val_share": val_share,
        "shard_samples": size.samples,
        "shard_bytes": size.bytes,
        **encoding._asdict(),
    }
    ignored = source.ignored + Counter({OUTSIDE: outside})
    return Plan(source, seed, options, units, [*source.rejects, *twice], ignored)


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
    source: ImageSource,
    codes: NDArray[np.uint8] | None,
    *,
    seed: int,
    size: ShardSize,
    val_share: float,
    taken: Counter[str],
) -> Iterator[Unit]:
    """Number the shards of compressed tars, archives in shuffled order."""
    hashes = hash_names(os.fsencode(stream.name) for stream in source.streams)
    for i in np.argsort(ranks(hashes, seed=seed), kind="stable"):
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
        yield Unit(names, stream=stream, val_share=share, is_only=len(source.streams) == 1)


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


def split_stream(
    listing: Listing, unit: Unit, stream: Stream, rejects: list[Reject], *, seed: int
) -> Iterator[tuple[str, Ints]]:
    """Shards of a stream with their images, shuffled over it; adds what stays out to `rejects`."""
    hashes = listing.hashes()
    keep, twice = _first_of_each(listing, hashes)
    cut = len(os.fsencode(stream.prefix))
    # An archive outside of train/ and val/ may hold these folders itself.
    codes = folder_splits(name[cut:] for name in listing.raw_names()) if unit.val_share else None
    share = unit.val_share if codes is None else 0
    rank = ranks(hashes, seed=seed)
    orders = split_orders(rank, keep, codes=codes, val_share=share, at_least_one=unit.is_only)
    if not unit.val_share:
        orders = {split: orders.get("train", NOTHING) for split in unit.names}
    kept = np.zeros(len(listing), dtype=bool)
    for order in orders.values():
        kept[order] = True
    rejects += twice
    rejects += [Reject(listing.name(i), OUTSIDE) for i in np.flatnonzero(keep & ~kept).tolist()]
    if only := sorted(set(orders) - set(unit.names)):
        raise ValueError(
            f"{stream.name} holds a folder {only[0]}/, which a stream cannot split: unpack it first."
        )
    for split, names in unit.names.items():
        order = orders.get(split, NOTHING)
        for number, shard in enumerate(names):
            bounds = (number * len(order) // len(names), (number + 1) * len(order) // len(names))
            yield shard, order[slice(*bounds)]


def _fingerprint(source: ImageSource, hashes: NDArray[np.uint64]) -> str:
    """Tells sources apart: files by name and size, compressed tars by name (a broken one gets replaced)."""
    order = np.argsort(hashes, kind="stable")
    streams = os.fsencode("\0".join(sorted(stream.name for stream in source.streams)))
    content = hashes[order].tobytes() + source.listing.sizes[order].tobytes() + streams
    return hashlib.blake2b(content, digest_size=8).hexdigest()


def ranks(hashes: NDArray[np.uint64], *, seed: int) -> NDArray[np.uint64]:
    """Mix the seed into the hashes (splitmix64, one-to-one): a shuffle that no library release changes.

    Sorting by rank depends on names and seed alone, not on the order in which a file system lists a folder.
    """
    with np.errstate(over="ignore"):
        return _mix(hashes ^ _mix(np.array([seed & (2**64 - 1)], dtype=np.uint64)))


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _first_of_each(listing: Listing, hashes: NDArray[np.uint64]) -> tuple[NDArray[np.bool_], list[Reject]]:
    """Which entries to keep when a name comes twice: its key would, too."""
    keep = np.ones(len(hashes), dtype=bool)
    order = np.argsort(hashes, kind="stable")
    keep[order[1:][hashes[order][1:] == hashes[order][:-1]]] = False
    twice = np.flatnonzero(~keep).tolist()
    return keep, [Reject(listing.name(i), "the same name comes twice") for i in twice]


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


def _checked_val_share(val_share: float | None, *, has_val: bool) -> float:
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
