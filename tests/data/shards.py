"""Tiny shards, written member by member: nothing under test makes its own input."""

import hashlib
import io
import json
import tarfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from veca.data.index import ShardIndex, ShardInfo, index_to_json, offsets_name, shard_name

Members = list[tuple[str, bytes]]


def tiny_jpeg(number: int) -> bytes:
    """A 48×40 picture that no other number gives."""
    pixels = np.random.default_rng(number).integers(0, 256, (5, 6, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).resize((48, 40)).save(file, "JPEG", quality=90)
    return file.getvalue()


def sample_members(key: str, number: int) -> Members:
    meta = {"source": f"{key}.jpg", "width": 48, "height": 40}
    return [(f"{key}.jpg", tiny_jpeg(number)), (f"{key}.json", json.dumps(meta).encode())]


def write_shard(path: Path, samples: Sequence[Members]) -> ShardInfo:
    """Write a tar and its offsets."""
    offsets = [0]
    with tarfile.open(path, "w") as archive:
        for members in samples:
            for name, content in members:
                entry = tarfile.TarInfo(name)
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
            offsets.append(archive.offset)
    np.save(path.with_name(offsets_name(path.name)), np.array(offsets, np.uint64))
    data = path.read_bytes()
    return ShardInfo(path.name, len(samples), len(data), hashlib.sha256(data).hexdigest())


def write_dataset(
    folder: Path,
    train: Sequence[int],
    val: Sequence[int] = (),
    *,
    name: str = "s",
    replace: dict[str, Members] | None = None,
) -> Path:
    """A dataset with these many samples per shard; `replace` gives other members for some keys."""
    folder.mkdir(parents=True, exist_ok=True)
    splits = {}
    number = 0
    for split, counts in (("train", train), ("val", val)):
        infos = []
        for shard, count in enumerate(counts):
            samples = []
            for _ in range(count):
                key = f"{name}{number:05d}"
                samples.append((replace or {}).get(key) or sample_members(key, number))
                number += 1
            infos.append(write_shard(folder / shard_name(split, shard), samples))
        if infos:
            splits[split] = infos
    index = ShardIndex(seed=0, options={}, splits=splits)
    (folder / "index.json").write_text(index_to_json(index), encoding="utf-8")
    return folder
