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

from veca.data.index import load_index, offsets_name
from veca_data.check import check
from veca_data.shards import make_shards

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
