"""Every kind of damage to a dataset is found and named."""

import hashlib
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
from veca.data.index import load_index, offsets_name
from veca.data.stored_targets import DTYPES
from veca.teachers import OfflineTeacher
from veca_data.check import check
from veca_data.pack import make_shards
from veca_data.records import SampleWriter

SHARD = "train-000000.tar"
Members = list[tuple[str, bytes]]


@pytest.fixture
def dataset(photos, tmp_path) -> Path:
    out = tmp_path / "out"
    make_shards(photos, out, shard_samples=20, val_share=0.1, workers=1)
    return out


def _rewrite(dataset: Path, change: Callable[[Members], Members]) -> None:
    """Write the first shard anew with other members, and make index and offsets fit where they can."""
    path = dataset / SHARD
    with tarfile.open(path) as tar:
        members = [(info.name, tar.extractfile(info).read()) for info in tar]
    starts: list[int] = []
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        key = None
        for name, data in change(members):
            if name.partition(".")[0] != key:
                key = name.partition(".")[0]
                starts.append(tar.offset)
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
        starts.append(tar.offset)
    np.save(dataset / offsets_name(SHARD), np.array(starts, dtype=np.uint64))
    body = json.loads((dataset / "index.json").read_text())
    shard = body["splits"]["train"][0]
    shard["bytes"] = path.stat().st_size
    shard["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    shard["samples"] = len(starts) - 1
    (dataset / "index.json").write_text(json.dumps(body))


def _found(dataset: Path, **options: bool) -> str:
    return "\n".join(check(dataset, workers=1, **options))


def test_a_sound_dataset_has_no_problems(dataset):
    assert check(dataset, decode_images=True, workers=1) == []
    _rewrite(dataset, lambda members: members)
    assert check(dataset, workers=1) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda m: [*m, ("x-1.pkl", b"cos\n")], "x-1.pkl: forbidden member"),
        (lambda m: [*m, ("x-1.pth", b"")], "x-1.pth: forbidden member"),
        (lambda m: [*m, ("x-1.pyd", b"")], "x-1.pyd: forbidden member"),
        (lambda m: [*m, ("x.1.jpg", b"")], r"x.1.jpg: dot in the key"),
        (lambda m: [*m, ("../x.jpg", b"")], "../x.jpg: a key has letters"),
        (lambda m: [m[0], *m[2:], m[1]], "its members are not adjacent"),
        (lambda m: [*m, *m[:2]], "its members are not adjacent, or the key comes twice"),
        (lambda m: [m[0], m[0], *m[1:]], "a member comes twice"),
        (lambda m: m[1:], "holds no image and no array"),
        (lambda m: [m[0], *m[2:]], "member .json is missing"),
        (lambda m: [m[0], (m[1][0], b"{"), *m[2:]], ".json is damaged"),
        (lambda m: [m[0], (m[1][0], b'{"source": "x"}'), *m[2:]], ".json is damaged"),
        (lambda m: [m[0], (m[0][0].replace("jpg", "png"), b"x"), *m[1:]], "holds 2 images"),
    ],
)
def test_members_out_of_order(dataset, change, words):
    _rewrite(dataset, change)
    found = _found(dataset)
    assert f"{SHARD}: " in found
    assert words in found


def test_pictures_are_decoded_on_request(dataset):
    def spoil(members: Members) -> Members:
        name, data = members[0]
        about = json.dumps({"source": "x", "width": 9999, "height": 1}).encode()
        middle = len(data) // 2
        return [
            (name, data[:middle] + b"\xff\xd9"),
            members[1],
            members[2],
            (members[3][0], about),
            *members[4:],
        ]

    _rewrite(dataset, spoil)
    assert check(dataset, workers=1) == []
    found = _found(dataset, decode_images=True)
    assert "does not decode: " in found
    assert "its .json says (9999, 1)" in found


def test_changed_missing_and_stray_files(dataset):
    data = bytearray((dataset / SHARD).read_bytes())
    data[700] ^= 1
    (dataset / SHARD).write_bytes(data)
    assert "sha256 differs" in _found(dataset)
    (dataset / SHARD).write_bytes(data[:-700])
    found = _found(dataset)
    assert "bytes; the index says" in found
    (dataset / SHARD).write_bytes(data[:5000])
    assert "damaged tar after" in _found(dataset)
    (dataset / SHARD).unlink()
    assert f"{SHARD}: missing" in _found(dataset)
    shutil.copy(dataset / "val-000000.tar", dataset / "val-000009.tar")
    assert "val-000009.tar: not listed in index.json" in _found(dataset)


def test_counts_that_differ(dataset):
    body = json.loads((dataset / "index.json").read_text())
    body["splits"]["train"][0]["samples"] += 1
    (dataset / "index.json").write_text(json.dumps(body))
    assert "samples; the index says" in _found(dataset)


def test_offsets_that_differ(dataset):
    path = dataset / offsets_name(SHARD)
    offsets = np.load(path)
    offsets[1] += 512
    np.save(path, offsets)
    assert "disagrees with the tar" in _found(dataset)
    np.save(path, offsets.astype(np.int32))
    assert "uint64 offsets" in _found(dataset)
    path.write_bytes(b"")
    assert f"{offsets_name(SHARD)}: " in _found(dataset)
    path.unlink()
    assert "is missing" in _found(dataset)


def test_a_key_in_two_shards_is_named(dataset):
    first, second = load_index(dataset).splits["train"][:2]
    with tarfile.open(dataset / second.name) as tar:
        members = [(info.name, tar.extractfile(info).read()) for info in list(tar)[:2]]
    _rewrite(dataset, lambda own: [*own, *members])
    key = members[0][0].partition(".")[0]
    assert _found(dataset) == f"{second.name}: key {key} also lies in {first.name}"


def test_a_long_list_of_problems_is_cut(dataset):
    _rewrite(dataset, lambda members: [*members, *((f"k{i}.exe", b"") for i in range(100))])
    assert "problems more" in _found(dataset)
    assert len(check(dataset, workers=1)) < 30


def test_cached_targets_pass_too(dataset):
    arrays = [(f"k-{i:03d}.{suffix}", b"{}") for i in range(3) for suffix in ("json", "npy")]
    _rewrite(dataset, lambda _: arrays)
    assert check(dataset, workers=1) == []


CACHED = "train-000001.tar"
Samples = list[tuple[str, dict[str, bytes]]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_cache(write_dataset(tmp_path / "shards", [4, 3], [2]), views=2)


def found(folder: Path) -> str:
    return "\n".join(check(folder, workers=1))


def rewrite(folder: Path, change: Callable[[Samples], Samples]) -> None:
    """Write one shard anew with other samples, and say so in the index: only its meaning is wrong."""
    samples: dict[str, dict[str, bytes]] = {}
    with tarfile.open(folder / CACHED) as tar:
        for info in tar:
            key, _, suffix = info.name.partition(".")
            samples.setdefault(key, {})[suffix] = tar.extractfile(info).read()  # type: ignore[union-attr]
    (folder / CACHED).unlink()
    with (folder / CACHED).open("xb") as file:
        writer = SampleWriter(file)
        for key, members in change(list(samples.items())):
            writer.write(key, members)
        writer.finish()
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
    data = (folder / CACHED).read_bytes()
    (folder / CACHED).write_bytes(data[:3000])
    assert f"{CACHED}: has 3,000 bytes" in found(folder)
    (folder / CACHED).unlink()
    assert f"{CACHED}: missing" in found(folder)


def test_another_order_and_another_cache(folder: Path) -> None:
    rewrite(folder, lambda samples: samples[::-1])
    assert f"{CACHED}: s00006: sample 0 of the images is s00004; the order is another one" in found(folder)
    other = write_cache(folder.parent, views=2, teacher=OfflineTeacher(seed=3))
    shutil.copy(other / CACHED, folder)
    assert "belongs to the cache" in found(folder)


def test_fewer_samples_than_images(folder: Path) -> None:
    rewrite(folder, lambda samples: samples[:2])
    assert f"{CACHED}: holds 2 samples, the images 3" in found(folder)


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
    assert f"{CACHED}: the targets were made of another " in found(folder)


def test_a_cache_that_stands_alone_can_be_checked(folder: Path, tmp_path: Path) -> None:
    alone = tmp_path / "elsewhere" / folder.name
    shutil.copytree(folder, alone)
    assert check(alone, workers=1) == []
