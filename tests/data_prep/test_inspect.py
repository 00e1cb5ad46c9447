"""What a source holds, and what shards and targets of it will take: sizes by arithmetic, times by trying."""

import io
import json
import tarfile
import tracemalloc
import zipfile

import numpy as np
import pytest

from tests.data.caches import write_cache
from tests.data.shards import write_dataset
from veca.data.index import load_index
from veca.teachers import OfflineTeacher
from veca_data.inspect import (
    _find_copies,
    _look,
    cache_bytes,
    estimate,
    estimate_shards,
    scan,
    teacher_seconds,
)
from veca_data.pack import make_shards
from veca_data.plan import ImageEncoding
from veca_data.source import Listing, Stream


def _spoil(photos, jpegs, picture, encode):
    """2 copies, 2 rejects, 1 ignored file, 1 PNG."""
    (photos / "copy.jpg").write_bytes(jpegs[0])
    (photos / "day1" / "another copy.jpg").write_bytes(jpegs[0])
    (photos / "zero.jpg").touch()
    (photos / "cut.jpg").write_bytes(jpegs[3][:-300])
    (photos / "read.me").touch()
    (photos / "large.png").write_bytes(encode(picture(99, 700, 600), "PNG"))


def test_where_no_image_can_be_used_there_are_no_copies(tmp_path):
    (tmp_path / "empty.jpg").touch()
    report = scan(tmp_path, workers=1)
    assert (report.images, report.copies, report.reasons.total()) == (0, 0, 1)


@pytest.mark.parametrize("kind", ["folder", "zip", "tar", "tar.gz"])
@pytest.mark.parametrize("workers", [1, 2])
def test_everything_is_counted(photos, jpegs, picture, encode, tmp_path, kind, workers):
    _spoil(photos, jpegs, picture, encode)
    source = photos
    if kind == "zip":
        source = tmp_path / "x.zip"
        with zipfile.ZipFile(source, "w") as archive:
            for path in photos.rglob("*.*"):
                archive.write(path, path.relative_to(photos))
    elif kind != "folder":
        source = tmp_path / f"x.{kind}"
        with tarfile.open(source, "w:gz" if kind == "tar.gz" else "w") as tar:
            tar.add(photos, arcname=".")
    report = scan(source, workers=workers, findings=tmp_path / "findings.jsonl")
    assert report.images == 43
    assert dict(report.formats) == {"JPEG": 42, "PNG": 1}
    assert report.copies == 2
    assert dict(report.reasons) == {"empty": 1, "truncated": 1}
    assert report.short_sides.max() == 600
    assert report.short_sides.min() == 48
    if kind != "tar.gz":
        assert dict(report.ignored) == {".me": 1}
    findings = [json.loads(line) for line in (tmp_path / "findings.jsonl").read_text().splitlines()]
    assert {f["path"]: f["copy_of"] for f in findings if "copy_of" in f} == {
        "day0/img_000.jpg": "copy.jpg",
        "day1/another copy.jpg": "copy.jpg",
    }
    assert {f["path"] for f in findings if "reason" in f} == {"zero.jpg", "cut.jpg"}
    assert "duplicates  2" in str(report)


def test_splits_and_broken_archives(tmp_path, jpegs):
    for split in ("train", "val"):
        (tmp_path / "s" / split).mkdir(parents=True)
        with tarfile.open(tmp_path / "s" / split / "patch0.tar.gz", "w:gz") as tar:
            for i, data in enumerate(jpegs[:5]):
                (tmp_path / f"{i}.jpg").write_bytes(data)
                tar.add(tmp_path / f"{i}.jpg", arcname=f"patch0/{i}.jpg")
    victim = tmp_path / "s" / "val" / "patch0.tar.gz"
    victim.write_bytes(victim.read_bytes()[:-50])
    report = scan(tmp_path / "s", workers=1)
    assert report.splits["train"] == 5
    assert report.reasons["damaged archive"] == 1
    assert report.reject_examples[0].path == "val/patch0.tar.gz"


def test_copies_are_found_without_a_list_of_their_names(tmp_path):
    count, listing = 20_000, Listing()
    for i in range(count):
        listing.add(f"folder/an_image_with_a_usual_name_{i:06d}.jpg", size=1)
    contents = np.ones(count, dtype=np.uint64)
    contents[:2] = 0
    tracemalloc.start()
    try:
        copies, examples = _find_copies(listing, contents, None)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert copies == count - 2
    assert {original[-10:] for _, original in examples} == {"000000.jpg", "000002.jpg"}
    assert peak / count < 80  # one name as an object has 90
    with (tmp_path / "findings").open("w") as file:
        _find_copies(listing, contents, file)
    assert len((tmp_path / "findings").read_text().splitlines()) == copies


def test_what_is_seen_in_a_stream_is_small_until_it_is_wanted(tmp_path, jpegs):
    count, path = 3000, tmp_path / "x.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for i in range(count):
            info = tarfile.TarInfo(f"folder/an_image_with_a_usual_name_{i:06d}.jpg")
            info.size = len(jpegs[0])
            tar.addfile(info, io.BytesIO(jpegs[0]))
    found = _look(tmp_path, Stream(path.name, path.stat().st_size))
    assert sum(map(len, found)) / count < 40  # as objects: 200
    assert scan(path, workers=1).copies == count - 1


@pytest.mark.parametrize(
    ("teacher", "resolutions", "views", "dtype", "wanted"),
    [
        ("base", [256], 1, "fp16", 257 * 768 * 2),  # 395 kB
        ("large", [256], 1, "bf16", 257 * 1024 * 2),  # 526 kB
        ("small", [256, 512], 2, "fp16", 2 * (257 + 1025) * 384 * 2),
        ("small_plus", [512], 3, "int8", 3 * 1025 * (384 + 2)),
    ],
)
def test_bytes_of_a_cache(teacher, resolutions, views, dtype, wanted):
    """The tokens themselves, and a little more for headers and recorded views."""
    found = cache_bytes(teacher=teacher, resolutions=resolutions, views=views, dtype=dtype)
    assert wanted < found < 1.01 * wanted


@pytest.mark.parametrize(("dtype", "views"), [("fp16", 2), ("int8", 5)])
def test_the_bytes_of_a_real_cache_are_within_5_percent(tmp_path, dtype, views):
    shards = write_dataset(tmp_path / "shards", [12])
    resolutions = (32, 64)
    folder = write_cache(
        shards, teacher=OfflineTeacher("small"), resolutions=resolutions, views=views, dtype=dtype
    )
    truth = sum(shard.bytes for shard in load_index(folder).splits["train"])
    guess = 12 * cache_bytes(teacher="small", resolutions=resolutions, views=views, dtype=dtype)
    assert truth == pytest.approx(guess, rel=0.05)


def test_the_published_size():
    found = cache_bytes(teacher="base", resolutions=[256], views=1, dtype="fp16")
    assert found == pytest.approx(395e3, rel=0.005)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"teacher": "huge"}, "teacher must be one of small, "),
        ({"dtype": "fp8"}, "dtype must be one of fp16, bf16, int8"),
        ({"views": 0}, "views must be at least 1"),
        ({"resolutions": [250]}, r"multiple of 16; got 250\. Try 256"),
    ],
)
def test_wrong_values_are_named(changed, words):
    values = {"teacher": "base", "resolutions": [256], "views": 1, "dtype": "fp16"}
    with pytest.raises(ValueError, match=words):
        cache_bytes(**{**values, **changed})


@pytest.mark.parametrize("encoding", [ImageEncoding(), ImageEncoding(max_short_side=24, quality=50)])
def test_bytes_of_shards_are_near_the_truth(photos, tmp_path, encoding):
    guess = estimate_shards(photos, encoding=encoding, workers=1)
    summary = make_shards(photos, tmp_path / "out", **encoding._asdict(), val_share=0, workers=1)
    truth = sum(shard.bytes for shard in summary.splits["train"])
    assert guess.images == 40
    assert guess.images_are_exact
    assert 0.8 < guess.shard_bytes / truth < 1.25
    assert guess.hours > 0


def test_compressed_archives_are_estimated_from_their_first_images(photos, tmp_path):
    with tarfile.open(tmp_path / "x.tar.gz", "w:gz") as tar:
        tar.add(photos)
    guess = estimate_shards(tmp_path / "x.tar.gz", encoding=ImageEncoding(), workers=2)
    assert not guess.images_are_exact
    assert 20 < guess.images < 60


def test_seconds_of_a_teacher_rise_with_resolution():
    assert 0 < teacher_seconds("small", [64])[0] < teacher_seconds("small", [64, 256])[0]


def test_the_text_names_both(photos):
    text = estimate(photos, teacher="small", resolutions=[64], workers=1)
    assert "40 images" in text
    assert "targets" in text
    assert "targets" not in estimate(photos, workers=1)
