"""Sizes by arithmetic, times by trying."""

import tarfile

import pytest

from tests.data.caches import write_cache
from tests.data.shards import write_dataset
from veca.data.index import load_index
from veca.teachers import OfflineTeacher
from veca_data.estimate import cache_bytes, estimate, estimate_cache, estimate_shards
from veca_data.images import Encoding
from veca_data.shards import make_shards


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


@pytest.mark.parametrize("encoding", [Encoding(), Encoding(max_short_side=24, quality=50)])
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
    guess = estimate_shards(tmp_path / "x.tar.gz", encoding=Encoding(), workers=2)
    assert not guess.images_are_exact
    assert 20 < guess.images < 60


def test_hours_of_a_cache_rise_with_resolution_and_views():
    hours = [
        estimate_cache(1000, teacher="small", resolutions=[resolution], views=views).hours
        for resolution, views in ((64, 1), (256, 4))
    ]
    assert 0 < hours[0] < hours[1]


def test_the_text_names_both(photos):
    text = estimate(photos, teacher="small", resolutions=[64], workers=1)
    assert "40 images" in text
    assert "targets" in text
    assert "targets" not in estimate(photos, workers=1)
