"""Samples by number: the bytes that lie in the tar, whoever reads them, and nothing that is not allowed."""

import io
import os
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest
import webdataset

from tests.data.conftest import MakeShards
from tests.data.shards import sample_members, tiny_jpeg, write_shard
from veca.data.index import Shard, open_sources
from veca.data.reader import BadSample, ShardReader, parse_sample


def shards_of(folder: Path) -> list[Shard]:
    return open_sources(str(folder))[0].shards("train")


def tar_bytes(members: list[tuple[str, bytes]], *, tar_format: int = tarfile.USTAR_FORMAT) -> bytes:
    """A stretch of tar without the end-of-archive blocks."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tar_format) as archive:
        for name, content in members:
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
        end = archive.offset
    return file.getvalue()[:end]


def num_open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


# WebDataset leaves its files to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_reads_what_webdataset_reads(make_shards: MakeShards) -> None:
    folder = make_shards([5, 3])
    shards = shards_of(folder)
    reader = ShardReader(shards, cache=None, max_open=4)
    for number, shard in enumerate(shards):
        plain = list(webdataset.WebDataset(shard.location, shardshuffle=False))
        assert len(plain) == shard.info.samples
        for i, sample in enumerate(plain):
            ours = reader.read(number, i)
            assert (ours.key, ours.image, ours.members) == (
                sample["__key__"],
                sample["jpg"],
                {"json": sample["json"]},
            )


@pytest.mark.parametrize("tar_format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("key", ["k", "a/b/k", "x" * 140, "é" * 70, "deep/" * 30 + "k"])
def test_every_kind_of_header_gives_the_same_members(tar_format: int, key: str) -> None:
    if tar_format == tarfile.USTAR_FORMAT and len(key.encode()) > 100 and "/" not in key:
        pytest.skip("this format has no room for the name")
    members = [(f"{key}.jpg", b"abc"), (f"{key}.cls.npy", b""), (f"{key}.json", b"{}" * 400)]
    sample = parse_sample(tar_bytes(members, tar_format=tar_format), shard=0, number=0)
    assert (sample.key, sample.image) == (key, b"abc")
    assert sample.members == {"cls.npy": b"", "json": b"{}" * 400}


@pytest.mark.parametrize("name", ["k.pkl", "k.pyd", "k.pth", "k.pt", "k.txt", "k", "k.jpg.gz", "k.npz"])
def test_other_members_are_refused(name: str) -> None:
    data = tar_bytes([("k.jpg", b"abc"), (name, pickle.dumps(print))])
    with pytest.raises(BadSample, match="is not one of jpg") as error:
        parse_sample(data, shard=0, number=0)
    assert error.value.reason == "refused-member"


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE])
def test_links_and_devices_are_refused(kind: bytes) -> None:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        entry = tarfile.TarInfo("k.jpg")
        entry.type = kind
        entry.linkname = "/etc/hostname"
        archive.addfile(entry)
        end = archive.offset
    with pytest.raises(BadSample, match="not a regular file"):
        parse_sample(file.getvalue()[:end], shard=0, number=0)


@pytest.mark.parametrize(
    "members",
    [
        [("a.jpg", b"1"), ("b.json", b"{}")],
        [("a.json", b"{}")],
        [("a.jpg", b"1"), ("a.png", b"1")],
    ],
    ids=["two keys", "no image", "two images"],
)
def test_a_sample_is_one_image_under_one_key(members: list[tuple[str, bytes]]) -> None:
    with pytest.raises(BadSample, match="one image under one key"):
        parse_sample(tar_bytes(members), shard=0, number=0)


@pytest.mark.parametrize(("cut", "shift"), [(None, 512), (-512, 0), (-10, 0), (None, 100)])
def test_offsets_that_miss_the_members_are_noticed(cut: int | None, shift: int) -> None:
    data = tar_bytes([("k.jpg", bytes(range(256)) * 8), ("k.json", b"{}")])
    with pytest.raises(BadSample) as error:
        parse_sample(data[shift:cut], shard=0, number=0)
    assert error.value.reason == "tar-header"


def test_open_files_are_bounded_and_go_when_the_reader_goes(make_shards: MakeShards) -> None:
    folder = make_shards([2] * 9)
    before = num_open_files()
    reader = ShardReader(shards_of(folder), cache=None, max_open=3)
    keys = {reader.read(shard, 1).key for shard in (*range(9), *range(9))}
    assert len(keys) == 9
    assert num_open_files() - before <= 3
    clone = pickle.loads(pickle.dumps(reader))  # as a spawned worker gets it
    assert clone.read(4, 0).key == reader.read(4, 0).key
    del reader, clone
    assert num_open_files() == before


def test_a_shard_truncated_during_the_run_stops_it(tmp_path: Path) -> None:
    info = write_shard(tmp_path / "train-000000.tar", [sample_members("k", 0)])
    os.truncate(tmp_path / "train-000000.tar", 700)
    with pytest.raises(OSError, match=r"train-000000\.tar: ends at byte 700, not "):
        ShardReader([Shard(str(tmp_path), info)], cache=None, max_open=1).read(0, 0)


def test_offsets_of_another_length_are_refused(tmp_path: Path) -> None:
    info = write_shard(tmp_path / "train-000000.tar", [[("k.jpg", tiny_jpeg(0))]])
    np.save(tmp_path / "train-000000.offsets.npy", np.array([0], np.uint64))
    with pytest.raises(ValueError, match="not 2 uint64 offsets"):
        ShardReader([Shard(str(tmp_path), info)], cache=None, max_open=1).read(0, 0)
