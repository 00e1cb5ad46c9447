"""Readers that many datasets share: class folders, lists of images with a class, CIFAR's records.

A reader takes a dataset's folder and gives its `Contents`. What is missing or does not fit is named, nothing
is passed over. Whether every split has every class is checked when all is read (`keep_classes`).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from veca.data.folders import list_files, read_named
from veca.probes.datasets.splits import Contents, ListedSplit, at_place, encode, with_labels

HELD_OUT = ("val", "test")
Rows = Iterable[tuple[str, int]]  # (image, label)
Classes = Literal["all", "common"]
_SHOWN = 5
_CIFAR_SIDE = 32


@dataclass(frozen=True)
class ClassFolders:
    """SPLIT/CLASS/NAME.jpg, with images at any depth below their class.

    Args:
        splits: split → its folder.
        numeric: classes are called 0, 1, 2, … and stand in that order, not in that of the alphabet.
    """

    splits: Mapping[str, str]
    numeric: bool = False

    def __call__(self, root: Path) -> Contents:
        names = set[str]().union(*(_subfolders(root / folder) for folder in self.splits.values()))
        if not names:
            raise ValueError(f"{root}: there are no class folders in {', '.join(self.splits.values())}.")
        if self.numeric and names != {str(number) for number in range(len(names))}:
            raise ValueError(f"{root}: class folders must be called 0 to {len(names) - 1}.")
        classes = sorted(names, key=int if self.numeric else None)
        rows = {split: self._rows(root, folder, classes) for split, folder in self.splits.items()}
        return labelled(root, classes, rows)

    def _rows(self, root: Path, folder: str, classes: list[str]) -> Iterator[tuple[str, int]]:
        others = sum(not path.is_dir() for path in (root / folder).iterdir())
        for label, name in enumerate(classes):
            if (root / folder / name).is_dir():
                images, strays = list_files(root / folder / name)
                others += strays
                yield from ((f"{folder}/{name}/{image}", label) for image in images)
        say_ignored(root / folder, others, "files are no images of a class folder and are ignored")


@dataclass(frozen=True)
class ListedLabels:
    """One list per split, one image per line: most of the paper's classification sets are shipped that way.

    Args:
        lists: split → its list.
        image: where the image of a line lies; `{}` is the line's first word.
        label: (first word, rest of the line) → the class, by name.
        classes: file with a class per line, in label order; None for the alphabetical order of those found.
    """

    lists: Mapping[str, str]
    image: str
    label: Callable[[str, str], str]
    classes: str | None = None

    def __call__(self, root: Path) -> Contents:
        found = {split: self._lines(root / path) for split, path in self.lists.items()}
        if self.classes is None:
            classes = sorted({label for rows in found.values() for _, label in rows})
        else:
            classes = [line.strip("/") for line in read_lines(root / self.classes)]
        labels = numbered(classes, source=root / (self.classes or ""))
        for split, rows in found.items():
            if unknown := sorted({label for _, label in rows} - set(labels)):
                path = root / self.lists[split]
                raise ValueError(f"{path} has classes that {self.classes} lacks: {first(unknown)}.")
        numbers = {split: [(name, labels[label]) for name, label in rows] for split, rows in found.items()}
        return labelled(root, classes, numbers)

    def _lines(self, path: Path) -> list[tuple[str, str]]:
        words = (line.lstrip("/").partition(" ") for line in read_lines(path))
        return [(self.image.format(word), self.label(word, rest.strip())) for word, _, rest in words]


@dataclass(frozen=True)
class Cifar:
    """CIFAR's binary version: records of `num_labels` bytes, of which the last is the class, and 3 × 32 × 32
    pixels, planes one by one. Its Python version is a pickle, and nothing is unpickled here."""

    files: Mapping[str, Sequence[str]]  # split → its files
    names: str
    num_labels: int

    def __call__(self, root: Path) -> Contents:
        return Contents(
            read_lines(root / self.names), {split: self._split(root, split) for split in self.files}
        )

    def _split(self, root: Path, split: str) -> ListedSplit:
        records = np.concatenate([self._records(root / name) for name in self.files[split]])
        pixels = records[:, self.num_labels :].reshape(-1, 3, _CIFAR_SIDE, _CIFAR_SIDE)
        names = [f"{split}/{place:05d}" for place in range(len(records))]
        labels = records[:, self.num_labels - 1].tolist()
        return with_labels(names, lambda place: encode(pixels[place].transpose(1, 2, 0)), labels)

    def _records(self, path: Path) -> NDArray[np.uint8]:
        if not path.is_file():
            raise FileNotFoundError(f"there is no {path}.")
        length = self.num_labels + 3 * _CIFAR_SIDE**2
        data = np.fromfile(path, dtype=np.uint8)
        if not data.size or data.size % length:
            raise ValueError(f"{path} is no whole number of records of {length} bytes. Download it again.")
        return data.reshape(-1, length)


def labelled(root: Path, classes: list[str], splits: Mapping[str, Rows]) -> Contents:
    """Image files with a class each; those that are not there are an error."""
    found = {}
    for split, rows in splits.items():
        names, labels = [], []
        for name, label in rows:
            names.append(name)
            labels.append(label)
        files_of(root, names, split=split)
        found[split] = with_labels(names, at_place(root, names, read_named), labels)
    return Contents(classes, found)


def keep_classes(contents: Contents, *, kind: Classes, where: str) -> tuple[Contents, list[str]]:
    """What the contents are without the classes that a split lacks, and which these are.

    With `kind` all such a class is an error: a head would be judged on what it cannot have learnt.
    """
    lacking = {}
    for split, items in contents.splits.items():
        if items.labels is None:
            continue
        counts = np.bincount(items.labels, minlength=len(contents.classes))
        if len(counts) > len(contents.classes):
            raise ValueError(
                f"{where}, {split}: there is a label {len(counts) - 1}, "
                f"but only {len(contents.classes)} classes are named."
            )
        lacking[split] = [contents.classes[label] for label in np.flatnonzero(counts == 0)]
    empty = set[str]().union(*lacking.values())
    if not empty:
        return contents, []
    if kind == "all" or len(empty) == len(contents.classes):
        missing = "; ".join(
            f"{split}: {len(names)} classes have no image: {first(names)}"
            for split, names in lacking.items()
            if names
        )
        raise ValueError(
            f"{where}, {missing}. Add images, or take the classes that all splits have: --classes common."
        )
    kept = [name for name in contents.classes if name not in empty]
    labels = {label: kept.index(name) for label, name in enumerate(contents.classes) if name not in empty}
    splits = {split: _only(items, labels) for split, items in contents.splits.items()}
    return contents._replace(classes=kept, splits=splits), sorted(empty)


def _only(items: ListedSplit, labels: dict[int, int]) -> ListedSplit:
    assert items.labels is not None
    places = [place for place, label in enumerate(items.labels) if label in labels]
    kept = [labels[items.labels[place]] for place in places]
    return with_labels([items.names[place] for place in places], lambda at: items.image(places[at]), kept)


def read_lines(path: Path) -> list[str]:
    """The lines of a list without blank ones; FileNotFoundError names the list."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no {path}.")
    lines = path.read_text(encoding="utf-8-sig").splitlines()
    return [line.strip() for line in lines if line.strip()]


def files_of(root: Path, names: list[str], *, split: str) -> list[str]:
    """Names of files that are all there; otherwise FileNotFoundError counts and names them."""
    missing = [name for name in names if not (root / name).is_file()]
    if missing:
        raise FileNotFoundError(
            f"{len(missing)} of {len(names)} images of {split} are not in {root}: {first(missing)}."
        )
    return names


def numbered(names: Sequence[str], *, source: object) -> dict[str, int]:
    """Name → number, in the given order; a name that occurs twice is an error."""
    labels = {name: label for label, name in enumerate(names)}
    if len(labels) != len(names):
        twice = (name for place, name in enumerate(names) if labels[name] != place)
        raise ValueError(f"{source} has a name twice: {first(twice)}.")
    return labels


def say_ignored(where: object, number: int, what: str) -> None:
    if number:
        print(f"{where}: {number} {what}")


def first(names: Iterable[object], *, separator: str = ", ") -> str:
    """The first few of many names, for a message."""
    listed = [str(name) for name in names]
    more = f" and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else ""
    return (separator.join(listed[:_SHOWN]) or "none") + more


def inside(folder: Path) -> str:
    """What a folder holds, for a message that says what it lacks."""
    return first(sorted(path.name for path in folder.iterdir())) if folder.is_dir() else "no such folder"


def _subfolders(folder: Path) -> set[str]:
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder}.")
    return {path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")}
