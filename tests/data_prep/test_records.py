"""The working folder of a dataset."""

import json

import pytest

from veca_data.listing import Reject
from veca_data.records import PARTS, Record, finish, read_record, write_record


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
