"""Finding things in a dataset's folder: what is missing or does not fit is named, nothing is passed over."""

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from veca.data.folders import REPEATED_FILE, REPEATED_FOLDER, Found, walk
from veca.probes.datasets.splits import Files, Labels, ListedSplit

IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff"})
HELD_OUT = ("val", "test")
_SHOWN = 5


def read_lines(path: Path) -> list[str]:
    """The lines of a list without blank ones; FileNotFoundError names the list."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no {path}.")
    lines = path.read_text(encoding="utf-8-sig").splitlines()
    return [line.strip() for line in lines if line.strip()]


def list_files(root: Path, suffixes: frozenset[str] = IMAGE_SUFFIXES) -> tuple[list[str], int]:
    """Sorted names of all files below a folder with one of the suffixes, and how many others there are."""
    if not root.is_dir():
        raise FileNotFoundError(f"there is no folder {root}.")
    found, refused, others = find_files(root, suffixes)
    for name, problem in refused:
        print(f"{root / name}: {problem}; not read")
    return [name for name, _ in found], others


def find_files(root: Path, suffixes: frozenset[str] = IMAGE_SUFFIXES) -> tuple[list[Found], list[Found], int]:
    """Files with one of the suffixes, names that are refused, and how many others there are.

    Two links to one file are both given, and the second is marked: in a cache of downloads they are how two
    images have equal masks.
    """
    found, refused, others = list[Found](), list[Found](), 0
    for each in walk(root, lambda name: _suffix(name) in suffixes):
        if each.problem not in (None, REPEATED_FILE, REPEATED_FOLDER):
            refused.append(each)
        elif each.problem != REPEATED_FOLDER and _suffix(each.name) in suffixes:
            found.append(each)
        else:
            others += 1
    return sorted(found, key=lambda each: each.name), sorted(refused, key=lambda each: each.name), others


def files_of(root: Path, names: Sequence[str], *, split: str) -> Files:
    """Image files that are all there; otherwise FileNotFoundError counts and names them."""
    missing = [name for name in names if not (root / name).is_file()]
    if missing:
        raise FileNotFoundError(
            f"{len(missing)} of {len(names)} images of {split} are not in {root}: {first(missing)}."
        )
    return Files(root, names)


def labelled(
    root: Path, rows: Iterable[tuple[str, int]], *, split: str, classes: Sequence[str]
) -> ListedSplit:
    """A split from (image, label) rows; every class must have an image."""
    names, labels = [], []
    for name, label in rows:
        names.append(name)
        labels.append(label)
    check_classes(np.bincount(labels, minlength=len(classes)), classes, split=f"{root}, {split}")
    return ListedSplit(files_of(root, names, split=split), Labels(labels))


def check_classes(counts: NDArray[np.generic], classes: Sequence[str], *, split: str) -> None:
    if len(counts) > len(classes):
        raise ValueError(
            f"{split}: there is a label {len(counts) - 1}, but only {len(classes)} classes are named."
        )
    empty = [name for name, count in zip(classes, counts.tolist(), strict=True) if not count]
    if empty:
        raise ValueError(
            f"{split}: {len(empty)} classes have no image: {first(empty)}. "
            "Add images, or remove the class from all splits."
        )


def numbered(names: Sequence[str], *, source: object) -> dict[str, int]:
    """Name → number, in the given order; a name that occurs twice is an error."""
    labels = {name: label for label, name in enumerate(names)}
    if len(labels) != len(names):
        raise ValueError(f"{source} has a name twice: {first(_repeated(names))}.")
    return labels


def say_ignored(where: object, number: int, what: str) -> None:
    if number:
        print(f"{where}: {number} {what}")


def first(names: Iterable[object]) -> str:
    """The first few of many names, for a message."""
    listed = [str(name) for name in names]
    more = f" and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else ""
    return (", ".join(listed[:_SHOWN]) or "none") + more


def _suffix(name: str) -> str:
    return os.path.splitext(name)[1].lower()  # noqa: PTH122  a Path would cost 2 µs


def _repeated(names: Sequence[str]) -> Iterator[str]:
    seen = set()
    for name in names:
        if name in seen:
            yield name
        seen.add(name)
