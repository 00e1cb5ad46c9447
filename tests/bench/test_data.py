"""The benchmarks of the data run, on generated photos and on folders; bounds hold by a wide margin."""

from pathlib import Path

import pytest

from veca.bench import data


def test_ratios_of_generated_photos() -> None:
    results = data.pixels(num_photos=2, repeats=1)
    assert {"verbatim_vs_obvious", "small_vs_obvious", "small_vs_decode", "decode_per_s"} < set(results)
    assert all(value > 0 for name, value in results.items() if not name.endswith("_spread"))


def test_a_folder_without_photos_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no \.jpg"):
        data.pixels(tmp_path)


@pytest.mark.timeout(120)
def test_streaming_costs_little() -> None:
    result = data.loader(num_images=64, repeats=1)
    assert result["resume_share"] < 0.02
    assert result["read_share"] < 0.5  # about 0.02 on an idle machine
    assert result["loader_share_0"] > 0.2  # about 0.9
    assert {"workers_1", "workers_2", "render_per_s", "loader_2_per_s"} <= set(result)


def test_shards_are_timed_beside_tar(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"{number}.jpg").write_bytes(data.photo_like(number, (320, 300)))
    results = data.shards(str(tmp_path), repeats=1)
    assert {"verbatim_vs_tar", "verbatim_vs_tar_sync", "reencode_2_workers_vs_1"} < set(results)
    assert all(results[f"{name}_mb_per_s"] > 0 for name in ("tar", "tar_sync", "verbatim"))
