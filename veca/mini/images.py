"""Which images the miniature distils: photos, squares cut out of them, and scenes of the sample set.

A hundred photos are soon known by heart. Where there are few, each is also cut into random squares, small
and large, so that the students meet more than they can remember. Photos for validation are not cut.
"""

import math
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import simplejpeg
from numpy.typing import NDArray

from veca.data.augment import sample_generator
from veca.data.decode import BadImage, decode
from veca.mini.plan import Settings
from veca.utils.files import atomic_path

VAL_EVERY = 8  # one photo in so many is for validation
WHOLE_EVERY = 4  # one piece in so many is the whole photo
QUALITY = 95  # of the JPEG of a square
SUFFIXES = (".jpg", ".jpeg", ".png", ".webp")


class Square(NamedTuple):
    """A part of an image, in shares, so that it is known before the image is opened."""

    side: float  # of the short side
    left: float  # of the room beside it
    top: float

    def cut(self, pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
        height, width, _ = pixels.shape
        side = max(1, round(self.side * min(height, width)))
        left, top = int(self.left * (width - side + 1)), int(self.top * (height - side + 1))
        return pixels[top : top + side, left : left + side]


class Piece(NamedTuple):
    """An image file, or a square of it."""

    path: Path
    square: Square | None = None


class Images(NamedTuple):
    """What to place in the folder of images, by name."""

    pieces: dict[str, Piece]

    def count(self, start: str) -> int:
        return sum(name.startswith(start) for name in self.pieces)


def choose_images(out: Path, settings: Settings) -> Images:
    """Every VAL_EVERY-th photo, and val scenes, are for validation; the others for training."""
    photos = _photos(settings)
    train = [path for place, path in enumerate(photos) if place % VAL_EVERY]
    held = [path for place, path in enumerate(photos) if not place % VAL_EVERY]
    pieces = {f"val/photo-{place:05d}{path.suffix}": Piece(path) for place, path in enumerate(held)}
    times = max(1, round(settings.photo_pieces / len(train))) if train else 0
    for place, path in enumerate(train):
        pieces |= dict(_piece(path, f"{place:05d}-{again:02d}", settings, again) for again in range(times))
    for split, count in (("train", settings.train_scenes), ("val", settings.val_scenes)):
        scenes = _spread(sorted((out / "sample/images" / split).rglob("*.jpg")), count)
        pieces |= {f"{split}/scene-{path.stem}.jpg": Piece(path) for path in scenes}
    return Images(pieces)


def place_images(folder: Path, images: Images) -> None:
    """Links to whole images, files of squares; what is there already is kept."""
    for name, (path, square) in images.pieces.items():
        place = folder / name
        if place.is_symlink() or place.exists():
            continue
        place.parent.mkdir(parents=True, exist_ok=True)
        pixels = None if square is None else _pixels(path)
        if square is None or pixels is None:
            place.symlink_to(path.resolve())
        else:
            data = simplejpeg.encode_jpeg(np.ascontiguousarray(square.cut(pixels)), quality=QUALITY)
            with atomic_path(place) as temporary:
                temporary.write_bytes(data)


def num_views(settings: Settings, images: Images) -> int:
    """Views per training image, such that the teacher has the same work whatever the photos."""
    return max(1, settings.num_views // max(1, images.count("train/")))


def _piece(path: Path, number: str, settings: Settings, again: int) -> tuple[str, Piece]:
    if again % WHOLE_EVERY == 0:
        return f"train/photo-{number}{path.suffix}", Piece(path)
    size, left, top = sample_generator(0, again, path.name).random(3).tolist()
    side = math.exp(size * math.log(settings.smallest_square))
    return f"train/square-{number}.jpg", Piece(path, Square(side, left, top))


@lru_cache(maxsize=1)  # all squares of a photo follow each other
def _pixels(path: Path) -> NDArray[np.uint8] | None:
    """None for a photo that cannot be read: whole, it is refused by name when shards are made."""
    try:
        return decode(path.read_bytes())
    except BadImage:
        return None


def _photos(settings: Settings) -> list[Path]:
    if settings.photos is None:
        return []
    folder = Path(settings.photos)
    found = sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES)
    if not found:
        raise ValueError(f"photos = {folder}: there are no images ({', '.join(SUFFIXES)}) in it.")
    return _spread(found, settings.max_photos)


def _spread(paths: list[Path], count: int) -> list[Path]:
    """`count` of the paths, evenly spread; all where there are fewer."""
    if len(paths) <= count:
        return paths
    return [paths[place * len(paths) // count] for place in range(count)]
