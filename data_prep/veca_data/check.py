"""Index ↔ tars: every claim of index.json compared with the files, every problem named.

Per shard: the file and its size, its checksum, its members (names, order, adjacency, allowed suffixes),
its offsets, the metadata of each sample and, with `decode`, the picture itself. Over all shards: keys
that come twice, and tars that the index does not list. Of cached targets also arrays, views, and whether they
are of the images beside them, in their order.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from veca.data.decode import BadImage, decode
from veca.data.index import INDEX_NAME, SPLITS, ShardInfo, load_index, load_offsets, offsets_name
from veca.data.stored_targets import Cache, CacheSpec, Layout, is_cache, npy_rows, open_cache
from veca.data.tars import BLOCK, BrokenArchive, list_members, open_archive, read_member
from veca_data.pool import advance, num_workers, run_tasks
from veca_data.source import hash_names

IMAGES = ("jpg", "png", "webp")
ALLOWED = (*IMAGES, "json", "npy", "safetensors")

_KEY = re.compile(r"[A-Za-z0-9_-]+")
_SHOWN = 20  # problems of one shard that are told in full


class Finding(NamedTuple):
    """What a worker found in one shard."""

    shard: str
    problems: list[str]
    keys: NDArray[np.uint64]  # hashes


class TarMember(NamedTuple):
    """One file of a tar, and where it stands."""

    key: str
    suffix: str
    start: int
    stop: int
    data: bytes


def check(
    folder: str | os.PathLike[str], *, decode_images: bool = False, workers: int | None = None
) -> list[str]:
    """All problems of a dataset; an empty list means that it is sound."""
    folder = Path(folder)
    index = load_index(folder)
    shards = [shard for infos in index.splits.values() for shard in infos]
    problems = [
        f"{shard.name}: listed under split {split}"
        for split, infos in index.splits.items()
        for shard in infos
        if not shard.name.startswith(f"{split}-")
    ]
    listed = {shard.name for shard in shards}
    if len(listed) < len(shards):
        problems.append("index.json: lists a shard twice")
    on_disk = {path.name for split in SPLITS for path in folder.glob(f"{split}-*.tar")}
    problems += [f"{name}: not listed in index.json" for name in sorted(on_disk - listed)]
    spec = None
    if is_cache(index):
        cache = open_cache(folder)
        spec = cache.spec
        problems += _cache_problems(cache)
    results = run_tasks(
        partial(check_shard, folder, decode_images, spec),
        shards,
        workers=min(num_workers(workers), max(1, len(shards))),
        total_bytes=sum(shard.bytes for shard in shards),
        label="check",
    )
    findings = sorted(results, key=lambda finding: finding.shard)
    for finding in findings:
        more = len(finding.problems) - _SHOWN
        shown = finding.problems[:_SHOWN] + ([f"and {more:,} problems more"] if more > 0 else [])
        problems += [f"{finding.shard}: {problem}" for problem in shown]
    return problems + list(_keys_in_two_shards(folder, findings))


def check_shard(folder: Path, decode_images: bool, spec: CacheSpec | None, shard: ShardInfo) -> Finding:
    """Look at one tar, of a cache if there is a `spec`."""
    layout = spec.layout(shard.name.partition("-")[0]) if spec else None
    allowed = ("json", *layout.members) if layout else ALLOWED
    path = folder / shard.name
    problems: list[str] = []
    if not path.is_file():
        return Finding(shard.name, ["missing"], hash_names([]))
    size = path.stat().st_size
    if size != shard.bytes:
        problems.append(f"has {size:,} bytes; the index says {shard.bytes:,}")
    with path.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != shard.sha256:
            problems.append("sha256 differs from the index")
    advance(size)
    bounds = [0]
    keys: list[str] = []
    seen: set[str] = set()
    try:
        for key, members in groupby(_members(path, problems, allowed), lambda member: member.key):
            if key in seen:
                problems.append(f"{key}: its members are not adjacent, or the key comes twice")
            sample = list(members)
            bounds[-1:] = [sample[0].start, sample[-1].stop]
            keys.append(key)
            seen.add(key)
            if spec and layout:
                contents = {member.suffix: member.data for member in sample}
                problems += (f"{key}: {line}" for line in _target_problems(spec, layout, contents))
            else:
                problems += (f"{key}: {line}" for line in _sample_problems(sample, decode_images))
    except BrokenArchive as error:
        problems.append(f"damaged tar after {len(keys):,} samples: {error.what}")
    if len(keys) != shard.samples:
        problems.append(f"holds {len(keys):,} samples; the index says {shard.samples:,}")
    problems += _offset_problems(folder / offsets_name(shard.name), bounds)
    if spec:
        problems += _order_problems(folder, shard.name, keys)
    return Finding(shard.name, problems, hash_names(map(os.fsencode, sorted(seen))))


def _members(path: Path, problems: list[str], allowed: Sequence[str]) -> Iterator[TarMember]:
    with open_archive(path) as file:
        for info in list_members(path, file):
            key, _, suffix = info.name.partition(".")
            if not info.is_regular:
                problems.append(f"{info.name}: not an ordinary file")
            elif not _KEY.fullmatch(key):
                problems.append(f"{info.name}: a key has letters, digits, _ and - only")
            elif "." in suffix and allowed is ALLOWED:
                problems.append(f"{info.name}: dot in the key, which readers split at the first dot")
            elif suffix not in allowed:
                problems.append(f"{info.name}: forbidden member; allowed are {', '.join(allowed)}")
            data = read_member(path, file, info) if info.is_regular else b""
            yield TarMember(key, suffix, info.start, info.stop, data)


def _sample_problems(sample: list[TarMember], decode_images: bool) -> Iterator[str]:
    by_suffix = {member.suffix: member.data for member in sample}
    if len(by_suffix) < len(sample):
        yield "a member comes twice"
    pictures = [suffix for suffix in by_suffix if suffix in IMAGES]
    if len(pictures) > 1:
        yield f"holds {len(pictures)} images"
    if not set(by_suffix) & set(ALLOWED) - {"json"}:
        yield "holds no image and no array"
    if "json" not in by_suffix:
        yield "member .json is missing"
        return
    try:
        about = json.loads(by_suffix["json"])
        size = (about["width"], about["height"]) if pictures else None
    except (ValueError, KeyError, TypeError) as error:
        yield f".json is damaged: {error!r}"
        return
    if not decode_images or not pictures:
        return
    try:
        height, width, _ = decode(by_suffix[pictures[0]]).shape
    except BadImage as error:
        yield f"does not decode: {error}"
        return
    if (width, height) != size:
        yield f"is {width}×{height}; its .json says {size}"


def _offset_problems(path: Path, wanted: list[int]) -> Iterator[str]:
    if not path.is_file():
        yield f"{path.name} is missing"
        return
    try:
        offsets = load_offsets(path, samples=len(wanted) - 1)
    except (ValueError, EOFError, OSError) as error:
        yield f"{path.name}: {error}"
        return
    if offsets.tolist() != wanted:
        yield f"{path.name} disagrees with the tar"


def _keys_in_two_shards(folder: Path, findings: list[Finding]) -> Iterator[str]:
    if not findings:
        return
    keys = np.concatenate([finding.keys for finding in findings])
    owners = np.repeat(np.arange(len(findings)), [len(finding.keys) for finding in findings])
    order = np.argsort(keys, kind="stable")
    for i in np.flatnonzero(keys[order][1:] == keys[order][:-1])[:_SHOWN]:
        first, second = (findings[owners[j]].shard for j in order[i : i + 2])
        # Only hashes were kept; the name is worth a second look at one shard.
        names = (member.key for member in _members(folder / second, [], ALLOWED))
        name = next(name for name in names if hash_names([os.fsencode(name)])[0] == keys[order[i]])
        yield f"{second}: key {name} also lies in {first}"


def _cache_problems(cache: Cache) -> Iterator[str]:
    """Over all shards: those that are not listed, the projection, and whether the images are the same."""
    listed = {info.name: info.samples for infos in cache.index.splits.values() for info in infos}
    yield from (f"{name}: not listed in {INDEX_NAME}" for name in cache.spec.images if name not in listed)
    try:
        _ = cache.projection_path
    except FileNotFoundError as error:
        yield str(error)
    images = cache.folder.parent
    if not (images / INDEX_NAME).is_file():
        return  # a cache may be kept elsewhere; then there is nothing to compare it with
    there = {info.name: info for infos in load_index(images).splits.values() for info in infos}
    for name, sha256 in cache.spec.images.items():
        if name not in there or there[name].sha256 != sha256:
            yield f"{name}: the targets were made of another {images / name}"
        elif name in listed and there[name].samples != listed[name]:
            yield f"{name}: holds {listed[name]:,} samples, the images {there[name].samples:,}"


def _target_problems(spec: CacheSpec, layout: Layout, members: dict[str, bytes]) -> Iterator[str]:
    """What is wrong with one sample; `members` maps suffixes to contents in the order of the tar."""
    from veca.data.views import view_from_json  # only here: loads torch

    try:
        about = json.loads(members["json"])
        if about["targets"] != spec.fingerprint:
            yield f"belongs to the cache {about['targets']}"
        wanted = [] if "skipped" in about else list(layout.members)
        views = {f"{name}.npy": view_from_json(view) for name, view in about.get("views", {}).items()}
    except (KeyError, TypeError, ValueError) as error:
        yield f".json is missing or damaged: {error!r}"
        return
    if list(members)[1:] != wanted or sorted(views) != sorted(wanted):
        yield f"holds {len(members) - 1} arrays and {len(views)} views, not {len(wanted)} in their order"
        return
    for name in wanted:
        yield from _array_problems(name, members[name], layout, resolution=views[name].resolution)


def _order_problems(cache_folder: Path, shard: str, keys: Sequence[str]) -> Iterator[str]:
    """Whether the keys are those of the images' shard, one by one."""
    images = cache_folder.parent / shard
    if not images.is_file() or not images.with_name(offsets_name(shard)).is_file():
        return
    try:
        offsets = load_offsets(images.with_name(offsets_name(shard)), samples=len(keys))
    except ValueError as error:
        yield f"the order of the images is unknown: {error}"
        return
    with open_archive(images) as file:
        for number, (offset, key) in enumerate(zip(offsets[:-1].tolist(), keys, strict=True)):
            name = os.pread(file.fileno(), BLOCK, offset)[:100].decode("utf-8", "replace")
            wanted = name.partition("\0")[0].partition(".")[0]
            if wanted != key:
                yield f"{key}: sample {number} of the images is {wanted}; the order is another one"
                return


def _array_problems(name: str, data: bytes, layout: Layout, *, resolution: int) -> Iterator[str]:
    try:
        rows = npy_rows(np.frombuffer(data, np.uint8), layout, resolution)
    except ValueError as error:
        yield f"{name} {error}"
        return
    numbers = np.ascontiguousarray(rows[:, :2] if layout.dtype == "int8" else rows)
    # bfloat16, which numpy lacks, is the upper half of a float32.
    is_bf16 = layout.dtype == "bf16"
    values = (numbers.view("<u2").astype("<u4") << 16).view("<f4") if is_bf16 else numbers.view("<f2")
    if not np.isfinite(values).all():
        yield f"{name} holds numbers that are not finite"
