"""Readers of labels that many datasets share: class folders, lists, CIFAR's records, WebDataset shards.

A reader takes a dataset's folder and gives its `Contents`. What is missing or does not fit is named, nothing
is passed over. Whether every split has every class is checked when all is read (`keep_classes`).

Shards are train-*.tar and val-*.tar (or test) in one folder. The label of KEY.jpg is the first there is of:

1. KEY.cls, a number: what webdataset users write;
2. `label` or `cls` in KEY.json, a number or a name;
3. the folder of `source` in KEY.json: `veca data shards` writes it, so shards of class folders are labelled.

Numbers are the classes 0, 1, 2, …, named in classes.txt (a name per line) if that lies beside the tars.
Opening reads headers and labels; images are read from their place in the tar. Nothing is unpickled.
"""

import io
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path, PurePosixPath
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from veca.data.folders import MAX_FILE_BYTES, list_files, read_named
from veca.data.reader import IMAGE_KINDS
from veca.data.tars import Header, list_members, open_archive, read_member
from veca.probes.datasets.splits import Contents, ListedSplit, at_place, first, with_labels

HELD_OUT = ("val", "test")
Rows = Iterable[tuple[str, int]]  # (image, label)
Classes = Literal["all", "common"]
_CIFAR_SIDE = 32
_MAX_DIGITS = 9


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
        return labelled(
            root,
            classes,
            {split: ((name, labels[label]) for name, label in rows) for split, rows in found.items()},
        )

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
        splits = {split: self._split(root, split) for split in self.files}
        return Contents(read_lines(root / self.names), splits)

    def _split(self, root: Path, split: str) -> ListedSplit:
        length = self.num_labels + 3 * _CIFAR_SIDE**2
        files = []
        for path in (root / name for name in self.files[split]):
            if not path.is_file():
                raise FileNotFoundError(f"there is no {path}.")
            files.append(np.fromfile(path, dtype=np.uint8))
            if not files[-1].size or files[-1].size % length:
                raise ValueError(
                    f"{path} is no whole number of records of {length} bytes. Download it again."
                )
        records = np.concatenate(files).reshape(-1, length)
        pixels = records[:, self.num_labels :].reshape(-1, 3, _CIFAR_SIDE, _CIFAR_SIDE)
        names = [f"{split}/{place:05d}" for place in range(len(records))]
        labels = records[:, self.num_labels - 1].tolist()
        return with_labels(names, lambda place: encode(pixels[place].transpose(1, 2, 0)), labels)


class _Sample(NamedTuple):
    """One image in a tar, and its label."""

    shard: str
    key: str
    offset: int
    size: int
    label: int | str


def open_shards(root: Path) -> Contents:
    """The labelled samples of all tars in a folder."""
    found = {
        split: [sample for path in sorted(root.glob(f"{split}-*.tar")) for sample in _read_shard(path)]
        for split in ("train", *HELD_OUT)
    }
    found = {split: samples for split, samples in found.items() if samples}
    if "train" not in found or len(found) < 2:
        raise FileNotFoundError(
            f"{root} must hold train-*.tar and val-*.tar, or test-*.tar; has {list(found)}."
        )
    classes = _class_names(root, {sample.label for samples in found.values() for sample in samples})
    labels: dict[int | str, int] = {number: number for number in range(len(classes))}
    labels.update(numbered(classes, source=root))
    return Contents(classes, {split: _in_tars(root, samples, labels) for split, samples in found.items()})


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


def read_lines(path: Path) -> list[str]:
    """The lines of a list without blank ones; FileNotFoundError names the list."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no {path}.")
    lines = path.read_text(encoding="utf-8-sig").splitlines()
    return [line.strip() for line in lines if line.strip()]


def files_of(root: Path, names: list[str], *, split: str) -> None:
    """FileNotFoundError counts and names the files that are not there."""
    missing = [name for name in names if not (root / name).is_file()]
    if missing:
        raise FileNotFoundError(
            f"{len(missing)} of {len(names)} images of {split} are not in {root}: {first(missing)}."
        )


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


def encode(pixels: NDArray[np.uint8]) -> bytes:
    """An image (H, W, 3) as a file: BMP, which costs no time and loses nothing."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "BMP")
    return file.getvalue()


def _subfolders(folder: Path) -> set[str]:
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder}.")
    return {path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")}


def _only(items: ListedSplit, labels: dict[int, int]) -> ListedSplit:
    assert items.labels is not None
    places = [place for place, label in enumerate(items.labels) if label in labels]
    kept = [labels[items.labels[place]] for place in places]
    return with_labels([items.names[place] for place in places], lambda at: items.image(places[at]), kept)


def _in_tars(root: Path, samples: list[_Sample], labels: dict[int | str, int]) -> ListedSplit:
    def read(place: int) -> bytes:
        with open_archive(root / samples[place].shard) as file:
            return os.pread(file.fileno(), samples[place].size, samples[place].offset)

    names = [f"{sample.shard}/{sample.key}" for sample in samples]
    return with_labels(names, read, [labels[sample.label] for sample in samples])


def _class_names(root: Path, labels: set[int | str]) -> list[str]:
    """Names in label order; labels are all numbers, or all names."""
    numbers = {label for label in labels if isinstance(label, int)}
    if numbers and numbers != labels:
        raise ValueError(
            f"{root}: some labels are numbers and some are names: {first(sorted(map(str, labels)))}."
        )
    listed = root / "classes.txt"
    classes = read_lines(listed) if listed.is_file() else []
    if not classes:
        classes = [str(n) for n in range(max(numbers) + 1)] if numbers else sorted(map(str, labels))
    if unknown := labels - (set(range(len(classes))) if numbers else set(classes)):
        raise ValueError(f"{listed} lacks the classes {first(sorted(map(str, unknown)))}.")
    return classes


def _read_shard(path: Path) -> Iterator[_Sample]:
    with open_archive(path) as archive:
        headers = (header for header in list_members(path, archive) if header.is_regular)
        for key, neighbours in groupby(headers, key=lambda header: _key_and_kind(header)[0]):
            members = {_key_and_kind(header)[1]: header for header in neighbours}
            images = [members[kind] for kind in IMAGE_KINDS if kind in members]
            if len(images) != 1:
                raise ValueError(f"{path}: sample {key} must have one image; it has {sorted(members)}.")
            image = images[0]
            if image.size > MAX_FILE_BYTES:
                raise ValueError(
                    f"{path}: {image.name} has {image.size:,} bytes; the limit is {MAX_FILE_BYTES:,}."
                )
            texts: dict[str, bytes] = {
                kind: read_member(path, archive, members[kind]) for kind in ("cls", "json") if kind in members
            }
            label = _label(texts, name=f"{path}: {key}")
            yield _Sample(path.name, key, image.place, image.size, label)


def _key_and_kind(header: Header) -> tuple[str, str]:
    """Members of a sample share all before the first dot of the file's name."""
    folder, _, base = header.name.rpartition("/")
    stem, _, kind = base.partition(".")
    return f"{folder}/{stem}", kind.lower()


def _label(texts: dict[str, bytes], *, name: str) -> int | str:
    if "cls" in texts:
        text = texts["cls"].strip()
        if not text.isdigit() or len(text) > _MAX_DIGITS:
            raise ValueError(f"{name}.cls must hold a number; got {text[:20]!r}.")
        return int(text)
    try:
        about = json.loads(texts.get("json", b"{}"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name}.json is not valid JSON: {error}.") from None
    if not isinstance(about, dict):
        raise ValueError(f"{name}.json must hold a JSON object.")
    for field in ("label", "cls"):
        label = about.get(field)
        if isinstance(label, int | str):
            return label
    folder = PurePosixPath(str(about.get("source", ""))).parent.name
    if not folder:
        raise ValueError(
            f"{name} has no label: neither a .cls, nor label or cls in its .json, nor a folder in its source."
        )
    return folder
