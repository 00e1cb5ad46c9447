"""What `veca-data check` looks at in a cache beside the tars: members, arrays, views, order of the images."""

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from veca.data.cached import BLOCK, Cache, CacheSpec, Layout
from veca.data.index import INDEX_NAME, load_index, load_offsets, offsets_name


def cache_problems(cache: Cache) -> Iterator[str]:
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


def sample_problems(spec: CacheSpec, layout: Layout, members: dict[str, bytes]) -> Iterator[str]:
    """What is wrong with one sample; `members` maps suffixes to contents in the order of the tar."""
    from veca.data.augment import view_from_json

    try:
        about = json.loads(members["json"])
        if about["targets"] != spec.fingerprint:
            yield f"belongs to the cache {about['targets']}"
        wanted = [] if "skipped" in about else list(layout.members)
        views = {
            f"{name}.npy": view_from_json(json.dumps(view)) for name, view in about.get("views", {}).items()
        }
    except (KeyError, TypeError, ValueError) as error:
        yield f".json is missing or damaged: {error!r}"
        return
    if list(members)[1:] != wanted or sorted(views) != sorted(wanted):
        yield f"holds {len(members) - 1} arrays and {len(views)} views, not {len(wanted)} in their order"
        return
    for name in wanted:
        yield from _array_problems(name, members[name], layout, resolution=views[name].resolution)


def order_problems(cache_folder: Path, shard: str, keys: Sequence[str]) -> Iterator[str]:
    """Whether the keys are those of the images' shard, one by one."""
    images = cache_folder.parent / shard
    if not images.is_file() or not images.with_name(offsets_name(shard)).is_file():
        return
    for number, (wanted, key) in enumerate(zip(_image_keys(images, samples=len(keys)), keys, strict=True)):
        if wanted != key:
            yield f"{key}: sample {number} of the images is {wanted}; the order is another one"
            return


def _array_problems(name: str, data: bytes, layout: Layout, *, resolution: int) -> Iterator[str]:
    from veca.data.cached_arrays import npy_rows

    try:
        rows = npy_rows(np.frombuffer(data, np.uint8), layout, resolution)
    except ValueError as error:
        yield f"{name} {error}"
        return
    if not _is_finite(rows, layout):
        yield f"{name} holds numbers that are not finite"


def _is_finite(rows: "np.ndarray[Any, np.dtype[np.uint8]]", layout: Layout) -> bool:
    if layout.dtype == "bf16":
        exponents = np.ascontiguousarray(rows).view("<u2") & 0x7F80
        return not bool((exponents == 0x7F80).any())
    numbers = rows[:, :2] if layout.dtype == "int8" else rows
    return bool(np.isfinite(np.ascontiguousarray(numbers).view("<f2")).all())


def _image_keys(tar: Path, *, samples: int) -> Iterator[str]:
    """The first member's key at each offset."""
    try:
        offsets = load_offsets(tar.with_name(offsets_name(tar.name)), samples=samples)
    except ValueError:
        yield from [""] * samples  # the images have another number of samples
        return
    descriptor = os.open(tar, os.O_RDONLY)
    try:
        for offset in offsets[:-1].tolist():
            name = os.pread(descriptor, BLOCK, offset)[:100].rstrip(b"\0").decode("utf-8", "replace")
            yield name.partition(".")[0]
    finally:
        os.close(descriptor)
