"""`veca-data check` on a cache: sound ones pass, and each kind of damage is named."""

import io
import json
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.data.caches import write_cache
from tests.data.shards import tiny_jpeg, write_dataset
from veca.data.cached import DTYPES
from veca.teachers import OfflineTeacher
from veca_data.check import check
from veca_data.writer import SampleWriter

SHARD = "train-000001.tar"
Samples = list[tuple[str, dict[str, bytes]]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_cache(write_dataset(tmp_path / "shards", [4, 3], [2]), views=2)


def found(folder: Path) -> str:
    return "\n".join(check(folder, workers=1))


def rewrite(folder: Path, change: Callable[[Samples], Samples]) -> None:
    """Write one shard anew with other samples, and say so in the index: only its meaning is wrong."""
    samples: dict[str, dict[str, bytes]] = {}
    with tarfile.open(folder / SHARD) as tar:
        for info in tar:
            key, _, suffix = info.name.partition(".")
            samples.setdefault(key, {})[suffix] = tar.extractfile(info).read()  # type: ignore[union-attr]
    (folder / SHARD).unlink()
    with SampleWriter(folder / SHARD) as writer:
        for key, members in change(list(samples.items())):
            writer.write(key, members)
    np.save(folder / "train-000001.offsets.npy", writer.offsets)
    body = json.loads((folder / "index.json").read_text())
    body["splits"]["train"][1] |= {"samples": writer.samples, "bytes": writer.bytes, "sha256": writer.sha256}
    (folder / "index.json").write_text(json.dumps(body))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_sound_cache_passes(tmp_path: Path, dtype: str) -> None:
    broken = {"s00001": [("s00001.jpg", tiny_jpeg(1)[:300]), ("s00001.json", b"{}")]}
    shards = write_dataset(tmp_path / "shards", [4, 3], [2], replace=broken)
    assert check(write_cache(shards, views=2, dtype=dtype), workers=1) == []


def test_files_that_are_missing_or_cut(folder: Path) -> None:
    (folder / "patch_projection.safetensors").write_bytes(b"")
    assert "patch_projection.safetensors is missing or damaged" in found(folder)
    data = (folder / SHARD).read_bytes()
    (folder / SHARD).write_bytes(data[:3000])
    assert f"{SHARD}: has 3,000 bytes" in found(folder)
    (folder / SHARD).unlink()
    assert f"{SHARD}: missing" in found(folder)


def test_another_order_and_another_cache(folder: Path) -> None:
    rewrite(folder, lambda samples: samples[::-1])
    assert f"{SHARD}: s00006: sample 0 of the images is s00004; the order is another one" in found(folder)
    other = write_cache(folder.parent, views=2, teacher=OfflineTeacher(seed=3))
    shutil.copy(other / SHARD, folder)
    assert "belongs to the cache" in found(folder)


def test_fewer_samples_than_images(folder: Path) -> None:
    rewrite(folder, lambda samples: samples[:2])
    assert f"{SHARD}: holds 2 samples, the images 3" in found(folder)


def test_forbidden_members_and_other_arrays(folder: Path) -> None:
    def with_member(name: str, data: bytes) -> Callable[[Samples], Samples]:
        return lambda samples: [(key, {**members, name: data}) for key, members in samples]

    rewrite(folder, with_member("pkl", b"\x80"))
    assert "s00004.pkl: forbidden member; allowed are json, r32v0.npy" in found(folder)
    rewrite(folder, lambda samples: [(key, {**m, "pkl": b""}) for key, m in samples])
    buffer = io.BytesIO()
    np.save(buffer, np.zeros((5, 96), np.float32))
    rewrite(folder, lambda samples: [(k, {n: d for n, d in m.items() if n != "pkl"}) for k, m in samples])
    assert check(folder, workers=1) == []
    rewrite(folder, with_member("r32v1.npy", buffer.getvalue()))
    assert "s00004: r32v1.npy holds float32(5, 96), not float16(5, 96)" in found(folder)


def test_arrays_that_are_missing_or_not_finite(folder: Path) -> None:
    def poisoned(samples: Samples) -> Samples:
        for _, members in samples:
            data = members["r48v0.npy"]
            members["r48v0.npy"] = data[:-2] + np.float16(np.nan).tobytes()
        return samples

    rewrite(folder, poisoned)
    assert "s00005: r48v0.npy holds numbers that are not finite" in found(folder)
    rewrite(
        folder, lambda samples: [(k, {n: d for n, d in m.items() if n != "r48v0.npy"}) for k, m in samples]
    )
    assert "s00005: holds 3 arrays and 4 views, not 4 in their order" in found(folder)


def test_the_images_were_made_again(folder: Path) -> None:
    write_dataset(folder.parent, [4, 3], [2], name="t")
    assert f"{SHARD}: the targets were made of another " in found(folder)


def test_a_cache_that_stands_alone_can_be_checked(folder: Path, tmp_path: Path) -> None:
    alone = tmp_path / "elsewhere" / folder.name
    shutil.copytree(folder, alone)
    assert check(alone, workers=1) == []
