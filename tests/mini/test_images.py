"""Which images the miniature takes, and what is placed of them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from veca.data.decode import decode
from veca.mini.images import Square, choose_images, num_views, place_images
from veca.mini.plan import Settings


def photos_and_scenes(tmp_path: Path) -> tuple[Path, Settings]:
    """16 photos whose pixels tell their place, 60 + 9 scenes, and settings that make 3 pieces of a photo."""
    photos, out = tmp_path / "photos", tmp_path / "out"
    for folder, count in (
        (photos, 16),
        (out / "sample/images/train/a", 60),
        (out / "sample/images/val/a", 9),
    ):
        folder.mkdir(parents=True)
        for number in range(count):
            Image.fromarray(np.full((48, 64, 3), 8 * number % 256, np.uint8)).save(
                folder / f"{number:03d}.jpg"
            )
    settings = Settings(
        photos=str(photos), cifar=None, camvid=None, steps=1, seeds=(1,), train_scenes=42, photo_pieces=42
    )
    return out, settings


def test_photos_are_split_before_they_are_cut(tmp_path: Path) -> None:
    out, settings = photos_and_scenes(tmp_path)
    images = choose_images(out, settings)
    sides = {
        side: {piece.path for name, piece in images.pieces.items() if name.startswith(side)}
        for side in ("train/", "val/")
    }
    assert not sides["train/"] & sides["val/"]
    assert images.count("val/photo") == 2
    assert images.count("train/photo") == 14
    assert images.count("train/square") == 28
    assert images.count("train/") == 84
    assert num_views(settings, images) == settings.num_views // 84


def test_many_photos_are_not_cut(tmp_path: Path) -> None:
    out, settings = photos_and_scenes(tmp_path)
    images = choose_images(out, replace(settings, photo_pieces=14))
    assert images.count("train/photo") == 14
    assert images.count("train/square") == 0


def test_pieces_are_placed_once_and_show_their_photo(tmp_path: Path) -> None:
    out, settings = photos_and_scenes(tmp_path)
    images = choose_images(out, settings)
    place_images(out / "images", images)
    assert (out / "images/train/photo-00000-00.jpg").resolve() == tmp_path / "photos/001.jpg"
    shapes = set()
    for name, piece in images.pieces.items():
        if piece.square is not None:
            pixels = decode((out / "images" / name).read_bytes())
            shapes.add(pixels.shape)
            assert 6 <= pixels.shape[0] == pixels.shape[1] <= 48
            np.testing.assert_allclose(pixels, decode(piece.path.read_bytes())[0, 0, 0], atol=2)
    assert len(shapes) > 14  # of 28: two squares of a photo differ, and so do those of two photos
    before = {path: path.lstat().st_mtime_ns for path in (out / "images").rglob("*.jpg")}
    place_images(out / "images", choose_images(out, settings))
    assert before == {path: path.lstat().st_mtime_ns for path in (out / "images").rglob("*.jpg")}


def test_a_photo_that_cannot_be_read_is_left_to_the_shards(tmp_path: Path) -> None:
    out, settings = photos_and_scenes(tmp_path)
    (tmp_path / "photos/001.jpg").write_bytes(b"no image")
    place_images(out / "images", choose_images(out, settings))
    assert (out / "images/train/square-00000-01.jpg").resolve() == tmp_path / "photos/001.jpg"


def test_a_square_lies_inside_and_reaches_both_ends() -> None:
    pixels = np.arange(30 * 50 * 3).reshape(30, 50, 3)
    np.testing.assert_array_equal(Square(1.0, 0.0, 0.5).cut(pixels), pixels[:, :30])
    last = np.nextafter(1.0, 0.0)
    np.testing.assert_array_equal(Square(0.2, last, last).cut(pixels), pixels[24:, 44:])
    np.testing.assert_array_equal(Square(0.001, 0.0, 0.0).cut(pixels), pixels[:1, :1])


def test_a_folder_without_photos_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there are no images"):
        choose_images(tmp_path, Settings(photos=str(tmp_path), cifar=None, camvid=None, steps=1, seeds=(1,)))
