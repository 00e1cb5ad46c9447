"""The pixel benchmark runs, on generated photos and on a folder."""

import pytest

from veca.bench import pixels


def test_ratios_of_generated_photos(tmp_path):
    results = pixels.run(num_photos=2, repeats=1)
    assert {"verbatim_vs_obvious", "small_vs_obvious", "small_vs_decode"} < set(results)
    assert all(value > 0 for name, value in results.items() if not name.endswith("_spread"))


def test_a_folder_without_photos_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no \.jpg"):
        pixels.run(tmp_path)
