"""Bands of large images against the whole image, decoded as everywhere else."""

import builtins
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from veca.data.bands import Bands, Pixels, open_bands
from veca.data.decode import decode


@pytest.fixture(scope="module")
def picture() -> Pixels:
    small = np.random.default_rng(0).integers(0, 255, (9, 11, 3), dtype=np.uint8)
    return np.asarray(Image.fromarray(small).resize((220, 150), Image.Resampling.BICUBIC))


def read_all(path: Path, rows: int = 48) -> Pixels:
    with open_bands(path) as bands:
        starts = range(0, bands.height, rows)
        return np.concatenate([bands.read(top, min(top + rows, bands.height)) for top in starts])


def opened(path: Path, **options: int) -> Bands:
    with open_bands(path, **options) as bands:
        return bands


@pytest.mark.parametrize(
    "layout",
    [
        {"tile": (64, 32)},
        {"tile": (64, 32), "compression": "deflate"},
        {"rowsperstrip": 20, "bigtiff": True},
        {"rowsperstrip": 7, "byteorder": ">"},
    ],
    ids=str,
)
def test_tiff_in_tiles_and_strips(tmp_path: Path, picture: Pixels, layout: dict[str, Any]) -> None:
    tifffile = pytest.importorskip("tifffile")
    tifffile.imwrite(tmp_path / "a.tif", picture, photometric="rgb", **layout)
    for rows in (1, 16, 48, 150):
        assert np.array_equal(read_all(tmp_path / "a.tif", rows), picture)
    tall = layout.get("tile", (layout.get("rowsperstrip"),))[0]
    assert 3 * 220 * tall <= opened(tmp_path / "a.tif").held_bytes <= 2 * 3 * 224 * tall


@pytest.mark.parametrize("compression", ["jpeg", "lzw"])
def test_compressions_of_imagecodecs(tmp_path: Path, picture: Pixels, compression: str) -> None:
    tifffile = pytest.importorskip("tifffile")
    pytest.importorskip("imagecodecs")
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, picture, photometric="rgb", tile=(64, 64), compression=compression)
    assert np.array_equal(read_all(path), tifffile.imread(path))


def test_samples_become_rgb_as_everywhere(tmp_path: Path, picture: Pixels) -> None:
    tifffile = pytest.importorskip("tifffile")
    path = tmp_path / "a.tif"

    def found(array: Any, **options: Any) -> Pixels:
        tifffile.imwrite(path, array, tile=(64, 64), **options)
        return read_all(path)

    grey = picture[..., 0]
    assert np.array_equal(found(picture.astype(np.uint16) * 257, photometric="rgb"), picture)
    assert np.array_equal(found(grey, photometric="minisblack"), np.repeat(grey[..., None], 3, 2))
    assert np.array_equal(found(255 - grey, photometric="miniswhite"), np.repeat(grey[..., None], 3, 2))
    transparent = np.dstack((picture, grey))
    file = io.BytesIO()
    Image.fromarray(transparent).save(file, "PNG")
    on_white = found(transparent, photometric="rgb", extrasamples=["unassalpha"])
    assert np.abs(on_white.astype(int) - decode(file.getvalue())).max() <= 1


def test_what_cannot_be_read_in_bands_is_refused_with_a_way_out(tmp_path: Path, picture: Pixels) -> None:
    tifffile = pytest.importorskip("tifffile")
    path = tmp_path / "a.tif"

    def refused(words: str, array: Any, **options: Any) -> None:
        tifffile.imwrite(path, array, **options)
        with pytest.raises(ValueError, match=words) as error:
            opened(path)
        assert str(path) in str(error.value)
        assert "vips tiffsave" in str(error.value)

    refused("32-bit float32", picture[..., 0].astype(np.float32), photometric="minisblack")
    refused("channels lie apart", np.moveaxis(picture, 2, 0), photometric="rgb", planarconfig="separate")
    refused("stored turned", picture, photometric="rgb", extratags=[(274, "H", 1, 6, True)])
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ValueError, match="damaged"):
        opened(path)


def test_a_damaged_tile_is_named(tmp_path: Path, picture: Pixels) -> None:
    tifffile = pytest.importorskip("tifffile")
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, picture, photometric="rgb", tile=(64, 64), compression="deflate")
    with tifffile.TiffFile(path) as file:
        offset = file.pages.first.dataoffsets[5]
    data = bytearray(path.read_bytes())
    data[offset : offset + 40] = bytes(40)
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"damaged: .*a.tif: tile 5: "):
        read_all(path)


def test_the_limit_against_bombs_is_lifted_on_purpose(tmp_path: Path, picture: Pixels) -> None:
    tifffile = pytest.importorskip("tifffile")
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, picture, photometric="rgb", tile=(64, 64))
    with pytest.raises(ValueError, match=r"220×150 pixels; the limit is 1000.*--max-pixels 33000"):
        opened(path, max_pixels=1000)
    assert opened(path, max_pixels=33000).width == 220


@pytest.mark.parametrize("suffix", ["jpg", "png"])
def test_other_images_go_through_libvips(tmp_path: Path, picture: Pixels, suffix: str) -> None:
    pytest.importorskip("pyvips")
    path = tmp_path / f"a.{suffix}"
    Image.fromarray(picture).save(path)
    assert np.abs(read_all(path).astype(int) - decode(path.read_bytes())).max() <= 2
    with pytest.raises(ValueError, match="--max-pixels 33000"):
        opened(path, max_pixels=1000)
    if suffix == "jpg":
        Image.fromarray(picture).save(path, progressive=True)
        with pytest.raises(ValueError, match=r"is progressive, and would be decoded whole. Convert it: vips"):
            opened(path)
    path.write_bytes(b"no image")
    with pytest.raises(ValueError, match="damaged"):
        opened(path)


def test_without_its_readers_the_way_out_is_said(
    tmp_path: Path, picture: Pixels, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any) -> Any:
        if name == "pyvips":
            raise ImportError(name)
        return real(name, *args)

    monkeypatch.setattr(builtins, "__import__", without)
    monkeypatch.setattr("veca.utils.imports.find_spec", lambda name: None)
    Image.fromarray(picture).save(tmp_path / "a.jpg")
    with pytest.raises(ValueError, match=r"libvips, which is not installed. Install it .*vips tiffsave"):
        opened(tmp_path / "a.jpg")
    (tmp_path / "a.tif").write_bytes(b"II*\0")
    with pytest.raises(ValueError, match=r"pip install 'veca\[huge\]'"):
        opened(tmp_path / "a.tif")
