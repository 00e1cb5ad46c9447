"""Images named in lists, with their class: most of the paper's classification sets are shipped that way."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from veca.probes.datasets.finding import check_classes, files_of, first, labelled, numbered, read_lines
from veca.probes.datasets.splits import Contents, ListedSplit, SeveralLabels
from veca.probes.types import IGNORED

LabelRule = Callable[[str, str], str]
_PRESENT = {"1": 1, "-1": 0, "0": IGNORED}  # VOC: 0 says difficult, which counts neither way


class ImageList(NamedTuple):
    """One split: a list, and where the image of a line lies; `{}` is the line's first word."""

    path: str
    image: str


@dataclass(frozen=True)
class ListedLabels:
    """A reader: one list per split, one image per line.

    Args:
        lists: split → its list.
        label: (first word, rest of the line) → the class, by name.
        classes: file with a class per line, in label order; None for the alphabetical order of those found.
    """

    lists: Mapping[str, ImageList]
    label: LabelRule
    classes: str | None = None

    def __call__(self, root: Path) -> Contents:
        found = {split: list(self._lines(root, part)) for split, part in self.lists.items()}
        if self.classes is None:
            classes = sorted({label for rows in found.values() for _, label in rows})
        else:
            classes = [line.strip("/") for line in read_lines(root / self.classes)]
        labels = numbered(classes, source=root / (self.classes or ""))
        splits = {}
        for split, rows in found.items():
            unknown = sorted({label for _, label in rows} - set(labels))
            if unknown:
                path = root / self.lists[split].path
                raise ValueError(f"{path} has classes that {self.classes} lacks: {first(unknown)}.")
            splits[split] = labelled(
                root, ((name, labels[label]) for name, label in rows), split=split, classes=classes
            )
        return Contents(classes, {**splits})

    def _lines(self, root: Path, part: ImageList) -> Iterator[tuple[str, str]]:
        for line in read_lines(root / part.path):
            word, _, rest = line.partition(" ")
            word = word.lstrip("/")
            yield part.image.format(word), self.label(word, rest.strip())


def folder_name(word: str, _: str) -> str:
    """abbey/sun_1.jpg → abbey"""
    return word.rpartition("/")[0]


def rest_of_line(_: str, rest: str) -> str:
    return rest


def name_before_number(word: str, _: str) -> str:
    """Egyptian_Mau_12 → Egyptian_Mau"""
    return word.rpartition("_")[0]


@dataclass(frozen=True)
class ListedSeveral:
    """A reader for VOC's multi-label form: for each class, a list of all images with 1, 0 or -1.

    Args:
        splits: the names of the splits; the lists are CLASS_SPLIT.txt.
    """

    classes: tuple[str, ...]
    splits: tuple[str, ...]
    folder: str = "ImageSets/Main"
    image: str = "JPEGImages/{}.jpg"

    def __call__(self, root: Path) -> Contents:
        return Contents(list(self.classes), {split: self._split(root, split) for split in self.splits})

    def _split(self, root: Path, split: str) -> ListedSplit:
        stems: list[str] = []
        columns = []
        for name in self.classes:
            path = root / self.folder / f"{name}_{split}.txt"
            rows = [line.split() for line in read_lines(path)]
            if any(len(row) != 2 or row[1] not in _PRESENT for row in rows):
                raise ValueError(f"{path}: every line must be an image and 1, 0 or -1.")
            if stems and stems != [row[0] for row in rows]:
                raise ValueError(f"{path} lists other images than the classes before it.")
            stems = [row[0] for row in rows]
            columns.append([_PRESENT[row[1]] for row in rows])
        targets = np.array(columns, dtype=np.uint8).T.copy()
        check_classes((targets == 1).sum(0), self.classes, split=f"{root}, {split}")
        names = [self.image.format(stem) for stem in stems]
        return ListedSplit(files_of(root, names, split=split), SeveralLabels(targets))
