"""The tar writer, against webdataset's own and Python's reader."""

import hashlib
import os
import tarfile

import pytest
import webdataset

from veca_data.writer import SampleWriter

SAMPLES = [
    ("a-000", {"jpg": b"\xff\xd8" + b"x" * 700, "json": b"{}"}),
    ("b-001", {"png": b"", "json": b'{"width": 3}'}),
    ("c-002", {"webp": b"y" * 512, "json": b"z" * 1024}),
]


@pytest.mark.parametrize("count", [0, 1, 3])
def test_bytes_equal_those_of_webdataset(tmp_path, count):
    samples = SAMPLES[:count]
    with SampleWriter(tmp_path / "ours.tar") as writer:
        for key, members in samples:
            writer.write(key, members)
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
    with SampleWriter(path) as writer:
        for key, members in SAMPLES:
            writer.write(key, members)
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


def test_an_existing_file_is_never_overwritten(tmp_path):
    (tmp_path / "x.tar").write_bytes(b"precious")
    with pytest.raises(FileExistsError):
        SampleWriter(tmp_path / "x.tar")


def test_a_write_that_is_taken_in_part_is_completed(tmp_path, monkeypatch):
    writev = os.writev
    monkeypatch.setattr(os, "writev", lambda fd, pieces: writev(fd, [b"".join(pieces)[:100]]))
    with SampleWriter(tmp_path / "x.tar") as writer:
        for key, members in SAMPLES:
            writer.write(key, members)
    monkeypatch.undo()
    data = (tmp_path / "x.tar").read_bytes()
    assert len(data) == writer.bytes
    assert hashlib.sha256(data).hexdigest() == writer.sha256


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="needs posix_fadvise")
def test_the_disk_is_given_each_byte_once(tmp_path, monkeypatch):
    given = []
    monkeypatch.setattr("veca_data.writer._PIECE", 1500)
    monkeypatch.setattr("os.posix_fadvise", lambda file, start, length, advice: given.append((start, length)))
    with SampleWriter(tmp_path / "x.tar") as writer:
        for number in range(9):
            writer.write(f"a-{number}", SAMPLES[0][1])
    assert len(given) > 3
    ends = [start + length for start, length in given]
    assert [start for start, _ in given] == [0, *ends[:-1]]
