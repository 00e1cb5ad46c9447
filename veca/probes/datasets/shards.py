"""WebDataset shards with one label per image: TRAIN-*.tar and VAL-*.tar (or TEST) in one folder.

The label of KEY.jpg is, whichever there is first:

1. KEY.cls, a number: what webdataset users write;
2. `label` or `cls` in KEY.json, a number or a name;
3. the folder of `source` in KEY.json: `veca data shards` writes it, so shards of class folders are labelled.

Numbers are the classes 0, 1, 2, …, named in classes.txt (a name per line) if that lies beside the tars.
Opening reads headers and labels; images are read from their place in the tar. Nothing is unpickled.
"""

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from veca.data.folders import MAX_FILE_BYTES
from veca.data.reader import IMAGE_KINDS
from veca.data.tars import Header, list_members, open_archive, read_member
from veca.probes.datasets.readers import HELD_OUT, first, numbered, read_lines
from veca.probes.datasets.splits import Contents, ListedSplit, with_labels

Label = int | str
_MAX_DIGITS = 9


class _Place(NamedTuple):
    """One image in a tar."""

    shard: str
    key: str
    offset: int
    size: int


def has_shards(root: Path) -> bool:
    return any(root.glob("train-*.tar"))


def open_shards(root: Path) -> Contents:
    """The labelled samples of all tars in a folder."""
    found = {split: _read_split(root, split) for split in ("train", *HELD_OUT)}
    found = {split: rows for split, rows in found.items() if rows}
    if "train" not in found or len(found) < 2:
        raise FileNotFoundError(
            f"{root} must hold train-*.tar and val-*.tar, or test-*.tar; has {list(found)}."
        )
    classes = _class_names(root, {label for rows in found.values() for _, label in rows})
    labels: dict[Label, int] = {number: number for number in range(len(classes))}
    labels.update(numbered(classes, source=root))
    return Contents(classes, {split: _split(root, rows, labels) for split, rows in found.items()})


def _split(root: Path, rows: list[tuple[_Place, Label]], labels: dict[Label, int]) -> ListedSplit:
    def read(place: int) -> bytes:
        shard, _, offset, size = rows[place][0]
        with open_archive(root / shard) as file:
            return os.pread(file.fileno(), size, offset)

    names = [f"{place.shard}/{place.key}" for place, _ in rows]
    return with_labels(names, read, [labels[label] for _, label in rows])


def _class_names(root: Path, labels: set[Label]) -> list[str]:
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
    known = set(range(len(classes))) if numbers else set(classes)
    if labels - known:
        raise ValueError(f"{listed} lacks the classes {first(sorted(map(str, labels - known)))}.")
    return classes


def _read_split(root: Path, split: str) -> list[tuple[_Place, Label]]:
    return [row for path in sorted(root.glob(f"{split}-*.tar")) for row in _read_shard(path)]


def _read_shard(path: Path) -> Iterator[tuple[_Place, Label]]:
    with open_archive(path) as archive:
        for key, members in _samples(list_members(path, archive)):
            images = [kind for kind in IMAGE_KINDS if kind in members]
            if len(images) != 1:
                raise ValueError(f"{path}: sample {key} must have one image; it has {sorted(members)}.")
            image = members[images[0]]
            if image.size > MAX_FILE_BYTES:
                raise ValueError(
                    f"{path}: {image.name} has {image.size:,} bytes; the limit is {MAX_FILE_BYTES:,}."
                )
            texts: dict[str, bytes] = {
                kind: read_member(path, archive, members[kind]) for kind in ("cls", "json") if kind in members
            }
            label = _label(texts, name=f"{path}: {key}")
            yield _Place(path.name, key, image.place, image.size), label


def _samples(headers: Iterable[Header]) -> Iterator[tuple[str, dict[str, Header]]]:
    """Neighbouring members that share a key: all before the first dot of the file's name."""
    key, members = "", dict[str, Header]()
    for member in headers:
        if not member.is_regular:
            continue
        folder, _, base = member.name.rpartition("/")
        stem, _, kind = base.partition(".")
        if f"{folder}/{stem}" != key and members:
            yield key, members
            members = {}
        key = f"{folder}/{stem}"
        members[kind.lower()] = member
    if members:
        yield key, members


def _label(texts: dict[str, bytes], *, name: str) -> Label:
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
        if isinstance(about.get(field), int | str):
            label: Label = about[field]
            return label
    folder = PurePosixPath(str(about.get("source", ""))).parent.name
    if not folder:
        raise ValueError(
            f"{name} has no label: neither a .cls, nor label or cls in its .json, nor a folder in its source."
        )
    return folder
