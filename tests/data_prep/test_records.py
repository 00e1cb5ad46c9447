"""The working folder of a dataset, and the tar writer against webdataset's own and Python's reader."""

import hashlib
import json
import os
import tarfile

import pytest
import webdataset

from veca_data.records import PARTS, Record, SampleWriter, finish, read_record, write_record
from veca_data.source import Reject


@pytest.fixture
def out(tmp_path):
    (tmp_path / PARTS).mkdir()
    (tmp_path / PARTS / "plan.json").write_text(
        json.dumps({"seed": 3, "options": {"a": 1}, "shards": ["train-000000.tar"], "archives": {}})
    )
    (tmp_path / PARTS / "rejects.jsonl").write_text('{"path": "x", "reason": "listed: twice"}\n')
    return tmp_path


RECORD = Record("train-000000.tar", 9, 5, "abc", 77, [Reject("y", "empty: it is")])


def _write_files(out):
    (out / "train-000000.tar").write_bytes(b"12345")
    (out / "train-000000.offsets.npy").touch()


def test_a_record_counts_only_with_its_files(out):
    write_record(out, RECORD)
    assert read_record(out, RECORD.name) is None
    _write_files(out)
    assert read_record(out, RECORD.name) == RECORD
    (out / RECORD.name).write_bytes(b"1234")
    assert read_record(out, RECORD.name) is None


def test_a_record_of_a_replaced_archive_does_not_count(out):
    write_record(out, RECORD)
    _write_files(out)
    assert read_record(out, RECORD.name, source_bytes=77) == RECORD
    assert read_record(out, RECORD.name, source_bytes=78) is None


def test_a_shard_without_samples_needs_no_files(out):
    write_record(out, RECORD._replace(samples=0))
    assert read_record(out, RECORD.name) is not None


def test_finish_gathers_records_and_rejects(out):
    with pytest.raises(ValueError, match=r"1 of 1 shards .* not made yet: train-000000\.tar"):
        finish(out, max_rejects=1)
    write_record(out, RECORD)
    _write_files(out)
    summary = finish(out, max_rejects=0.5)
    assert (summary.samples, summary.rejects) == (9, 2)
    assert dict(summary.reasons) == {"listed": 1, "empty": 1}
    index = json.loads((out / "index.json").read_text())
    assert (index["seed"], index["options"]) == (3, {"a": 1})
    assert "9 samples in 1 shards" in str(summary)
    assert "see rejects.jsonl" in str(summary)


def test_too_many_rejects_take_the_index_away(out):
    write_record(out, RECORD)
    _write_files(out)
    finish(out, max_rejects=0.5)
    with pytest.raises(RuntimeError, match=r"2 of 11 images were rejected .* --max-rejects 0\.19"):
        finish(out, max_rejects=0.1)
    assert not (out / "index.json").exists()
    assert len((out / "rejects.jsonl").read_text().splitlines()) == 2


SAMPLES = [
    ("a-000", {"jpg": b"\xff\xd8" + b"x" * 700, "json": b"{}"}),
    ("b-001", {"png": b"", "json": b'{"width": 3}'}),
    ("c-002", {"webp": b"y" * 512, "json": b"z" * 1024}),
]


def _write(path, samples):
    with path.open("xb") as file:
        writer = SampleWriter(file)
        for key, members in samples:
            writer.write(key, members)
        writer.finish()
    return writer


@pytest.mark.parametrize("count", [0, 1, 3])
def test_bytes_equal_those_of_webdataset(tmp_path, count):
    samples = SAMPLES[:count]
    writer = _write(tmp_path / "ours.tar", samples)
    with (tmp_path / "theirs.tar").open("wb") as file:
        theirs = webdataset.TarWriter(file, encoder=False, mtime=0, user="veca", group="veca", mode=0o444)
        for key, members in samples:
            theirs.write({"__key__": key, **members})
        theirs.close()
    data = (tmp_path / "ours.tar").read_bytes()
    assert data == (tmp_path / "theirs.tar").read_bytes()
    assert writer.bytes == len(data)
    assert writer.sha256 == hashlib.sha256(data).hexdigest()


def test_offsets_bound_the_samples(tmp_path):
    path = tmp_path / "x.tar"
    writer = _write(path, SAMPLES)
    assert writer.samples == 3
    with tarfile.open(path) as tar:
        starts = [
            info.offset
            for info in tar
            if info.name.split(".")[1] == min(dict(SAMPLES)[info.name.split(".")[0]])
        ]
    assert writer.offsets[:-1].tolist() == starts
    tail = path.read_bytes()[int(writer.offsets[-1]) :]
    assert len(tail) >= 1024
    assert not any(tail)


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="needs posix_fadvise")
def test_the_disk_is_given_each_byte_once(tmp_path, monkeypatch):
    given = []
    monkeypatch.setattr("veca_data.records._PIECE", 1500)
    monkeypatch.setattr("os.posix_fadvise", lambda file, start, length, advice: given.append((start, length)))
    _write(tmp_path / "x.tar", [(f"a-{number}", SAMPLES[0][1]) for number in range(9)])
    assert len(given) > 3
    ends = [start + length for start, length in given]
    assert [start for start, _ in given] == [0, *ends[:-1]]
