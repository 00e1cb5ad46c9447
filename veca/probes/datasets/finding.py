"""Finding things in a dataset's folder: what is missing or does not fit is named, nothing is passed over."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from veca.probes.datasets.splits import Files, Labels, ListedSplit

HELD_OUT = ("val", "test")
_SHOWN = 5


def read_lines(path: Path) -> list[str]:
    """The lines of a list without blank ones; FileNotFoundError names the list."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no {path}.")
    lines = path.read_text(encoding="utf-8-sig").splitlines()
    return [line.strip() for line in lines if line.strip()]


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


def _repeated(names: Sequence[str]) -> Iterator[str]:
    seen = set()
    for name in names:
        if name in seen:
            yield name
        seen.add(name)
