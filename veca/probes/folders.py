"""Labelled images in class folders: DATA/{train, val or test}/CLASS/NAME.jpg.

Nothing is dropped in silence: a class that one split lacks, or that is empty, is an error; a file that is
no readable image is named and counted.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from veca.data.augment import centre_view, render_pixels
from veca.data.decode import BadImage, decode_pixels
from veca.probes.progress import count_images

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff"})
HELD_OUT = ("val", "test")  # the first that is there is judged
MAX_UNREADABLE = 0.05  # a larger share is no accident
_SMALL = 16  # the check decodes at a fraction of the size; damage anywhere in the file shows all the same
_SHOWN = 5


class LabelledImages(NamedTuple):
    """The images of one split; label i is the class `classes[i]`."""

    split: str
    paths: list[Path]
    labels: list[int]
    classes: list[str]

    def counts(self) -> dict[str, int]:
        found = Counter(self.labels)
        return {name: found[label] for label, name in enumerate(self.classes)}


class Folders(NamedTuple):
    """A train and a held-out split with the same classes, and what was left out of them."""

    train: LabelledImages
    held_out: LabelledImages
    unreadable: dict[str, str]  # path → reason


def read_folders(data: Path) -> Folders:
    """Find, check and count the images of `data`, or of its subfolder images/."""
    root, held_out = _find_splits(data)
    classes = _common_classes(root, held_out)
    listed = [_list_split(root, split, classes) for split in ("train", held_out)]
    unreadable = {str(path): reason for split in listed for path, reason in _find_unreadable(split)}
    _judge_unreadable(unreadable, total=sum(len(split.paths) for split in listed))
    train, judged = (_without(split, unreadable) for split in listed)
    return Folders(train, judged, unreadable)


def read_view(path: Path, resolution: int) -> NDArray[np.uint8]:
    """The validation view of an image file, (3, R, R) uint8: `veca.preprocess` before normalisation."""
    try:
        pixels = decode_pixels(path.read_bytes())
    except BadImage as error:
        raise ValueError(f"{path}: {error}") from None
    return render_pixels(pixels, centre_view(size=pixels.size, resolution=resolution))


def _find_splits(data: Path) -> tuple[Path, str]:
    for root in (data, data / "images"):
        for held_out in HELD_OUT:
            if (root / "train").is_dir() and (root / held_out).is_dir():
                return root, held_out
    found = sorted(path.name for path in data.iterdir())[:8] if data.is_dir() else "no such folder"
    raise FileNotFoundError(
        f"data must hold class folders as DATA/train/CLASS/*.jpg and DATA/val/CLASS/*.jpg (or test); "
        f"{data} has: {found}. `veca-data sample` makes such a set."
    )


def _common_classes(root: Path, held_out: str) -> list[str]:
    """Class names in label order; both splits must have the same."""
    train, judged = (
        {path.name for path in (root / split).iterdir() if path.is_dir() and path.name[0] != "."}
        for split in ("train", held_out)
    )
    if train != judged or not train:
        raise ValueError(
            f"{root}: train and {held_out} must have the same class folders, at least one; "
            f"only in train: {_first(train - judged)}; only in {held_out}: {_first(judged - train)}. "
            "Rename, add or remove folders."
        )
    return sorted(train)


def _list_split(root: Path, split: str, classes: list[str]) -> LabelledImages:
    paths: list[Path] = []
    labels: list[int] = []
    strays = sum(path.name not in classes for path in (root / split).iterdir())
    for label, name in enumerate(classes):
        entries = sorted((root / split / name).iterdir())
        images = [path for path in entries if path.suffix.lower() in SUFFIXES and path.is_file()]
        paths += images
        labels += [label] * len(images)
        strays += len(entries) - len(images)
    if strays:
        print(f"{split}: {strays} entries are no image files of a class folder and are ignored")
    found = LabelledImages(split, paths, labels, classes)
    _check_not_empty(found, root)
    return found


def _find_unreadable(split: LabelledImages) -> Iterator[tuple[Path, str]]:
    """Paths with the reason why they cannot be used."""
    with ThreadPoolExecutor() as pool, count_images(f"check {split.split}", len(split.paths)) as progress:
        for path, reason in zip(split.paths, pool.map(_reason, split.paths), strict=True):
            progress.update()
            if reason:
                yield path, reason


def _judge_unreadable(unreadable: dict[str, str], *, total: int) -> None:
    """Say what is left out; refuse when it is too much."""
    if not unreadable:
        return
    named = _first(f"{path} ({reason})" for path, reason in unreadable.items())
    summary = f"{len(unreadable)} of {total} images are unreadable"
    if len(unreadable) > max(1, MAX_UNREADABLE * total):
        raise ValueError(f"{summary}, more than {MAX_UNREADABLE:.0%}: {named}. Mend or delete them.")
    print(f"{summary} and left out: {named}")


def _reason(path: Path) -> str:
    """Why an image cannot be used; empty when it can."""
    try:
        decode_pixels(path.read_bytes(), short_side=_SMALL)
    except (BadImage, OSError) as error:
        return str(error)
    return ""


def _without(split: LabelledImages, unreadable: dict[str, str]) -> LabelledImages:
    kept = [place for place, path in enumerate(split.paths) if str(path) not in unreadable]
    paths, labels = [split.paths[i] for i in kept], [split.labels[i] for i in kept]
    left = split._replace(paths=paths, labels=labels)
    _check_not_empty(left, "the readable images")
    return left


def _check_not_empty(split: LabelledImages, where: object) -> None:
    empty = [name for name, count in split.counts().items() if not count]
    if empty:
        raise ValueError(
            f"{where}: classes without an image in {split.split}: {_first(empty)}. "
            "Add images, or remove the folder from both splits."
        )


def _first(names: Iterable[str]) -> str:
    """The first few of many names, for a message."""
    listed = sorted(names)
    more = f" and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else ""
    return (", ".join(listed[:_SHOWN]) or "none") + more
