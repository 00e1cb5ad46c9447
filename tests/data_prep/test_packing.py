"""One shard, made whole or not at all."""

import json
from pathlib import Path

import pytest

from veca.data.decode import BadImage
from veca_data.images import Encoding
from veca_data.listing import Entry
from veca_data.packing import Job, write_shard
from veca_data.records import PARTS, read_record

SHARD = "train-000000.tar"


@pytest.fixture
def job(tmp_path) -> Job:
    (tmp_path / PARTS).mkdir()
    return Job(root=Path(), out=tmp_path, encoding=Encoding(), seed=0)


def test_a_bad_image_is_a_reject_and_the_rest_goes_on(job, jpegs, read_samples):
    def read(entry: Entry) -> bytes:
        if entry.size == 1:
            raise BadImage("unreadable", "no")
        return jpegs[entry.size]

    entries = [Entry(f"{i}.jpg", i, 0, "") for i in range(4)]
    write_shard(job, SHARD, entries, read, source_bytes=9)
    record = read_record(job.out, SHARD)
    assert (record.samples, record.source_bytes) == (3, 9)
    assert [tuple(reject) for reject in record.rejects] == [("1.jpg", "unreadable: no")]
    [samples] = read_samples(job.out).values()
    assert [json.loads(sample["json"])["source"] for sample in samples.values()] == [
        "0.jpg",
        "2.jpg",
        "3.jpg",
    ]


def test_an_error_leaves_nothing_behind(job, jpegs):
    def read(entry: Entry) -> bytes:
        if entry.size == 2:
            raise MemoryError
        return jpegs[entry.size]

    with pytest.raises(MemoryError):
        write_shard(job, SHARD, [Entry(f"{i}.jpg", i, 0, "") for i in range(4)], read, source_bytes=0)
    assert [path.name for path in job.out.iterdir()] == [PARTS]
    assert not list((job.out / PARTS).iterdir())
