"""Images with a mask or a depth map each: two folders with the same names, or lists of names.

The folder of anyone, without a name of its own, is laid out as either of ::

    DATA/{train,val,test}/images/NAME.jpg     DATA/{train,val,test}/masks/NAME.png (or depths/)
    DATA/images/{train,val,test}/NAME.jpg     DATA/masks/{train,val,test}/NAME.png (or depth/, semantic/)

with NAME at any depth. Masks need DATA/classes.json, `{"sky": 0, "road": 1}`, or DATA/classes.txt, a name
per line. Depth is 16-bit in millimetres or .npy in metres, unless DATA/depth.json says otherwise:
`{"metres_per_unit": 0.04, "max_depth": 10}`.
"""

import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from veca.backbones import Task
from veca.data.decode import FORMATS
from veca.data.folders import IMAGE_SUFFIXES, list_files, read_named
from veca.probes.datasets.readers import HELD_OUT, files_of, numbered, read_lines, say_ignored
from veca.probes.datasets.splits import IGNORED, Contents, ListedSplit, Target, at_place, first, inside

MILLIMETRE = 0.001
UNKNOWN = -1  # in a table of class ids: a value that the dataset does not have
TARGET_FOLDERS: dict[Task, tuple[str, ...]] = {
    "segment": ("masks", "semantic", "annotations", "labels"),
    "depth": ("depths", "depth"),
}
_TARGET_SUFFIXES = frozenset({".png", ".bmp", ".tif", ".tiff", ".gif", ".npy"})


def read_channel(path: Path) -> NDArray[np.generic]:
    """The values of an image with one channel, as stored: of a palette image the indices."""
    with Image.open(io.BytesIO(read_named(path)), formats=FORMATS) as image:
        if image.mode not in ("L", "P", "I", "I;16", "I;16B"):
            raise ValueError(
                f"{path} has mode {image.mode}; a mask or depth map has one channel of 8 or 16 bits, "
                "not colours."
            )
        return np.array(image)


@dataclass(frozen=True)
class Meaning:
    """What the stored values are: class ids by way of a table, or metres by way of a unit."""

    classes: Sequence[str] = ()
    table: NDArray[np.int64] | None = None  # the class id of each value; None where values are the ids
    metres_per_unit: float = 0.0
    max_depth: float | None = None
    channel: Callable[[Path], NDArray[np.generic]] = read_channel

    def read(self, path: Path) -> Target:
        """Class ids, or metres; 0 and what is no number is unmeasured."""
        values = _read_npy(path) if path.suffix == ".npy" and self.metres_per_unit else self.channel(path)
        if not self.metres_per_unit:
            return values if self.table is None else _look_up(values, self.table, path)
        if values.ndim != 2 or values.dtype.kind not in "uif":
            raise ValueError(f"{path} must hold one number per pixel; got {values.dtype} {values.shape}.")
        metres = values.astype(np.float32) * np.float32(self.metres_per_unit)
        metres[~np.isfinite(metres)] = 0.0
        return metres

    def contents(self, splits: dict[str, ListedSplit]) -> Contents:
        return Contents(list(self.classes), splits, self.max_depth)


class Pair(NamedTuple):
    """Where the images and the targets of a split lie: folders, or templates in which `{}` is a name."""

    images: str
    targets: str


@dataclass(frozen=True)
class FolderPairs:
    """A reader: two folders per split, whose files have the same names but for the ends given here."""

    splits: Mapping[str, Pair]
    meaning: Meaning
    image_end: str = ""  # by default any suffix of an image
    target_end: str = ""

    def __call__(self, root: Path) -> Contents:
        return self.meaning.contents({split: self._split(root, pair) for split, pair in self.splits.items()})

    def _split(self, root: Path, pair: Pair) -> ListedSplit:
        images = _by_key(root / pair.images, self.image_end, IMAGE_SUFFIXES)
        targets = _by_key(root / pair.targets, self.target_end, _TARGET_SUFFIXES)
        alone = sorted(images.keys() ^ targets.keys())
        if alone or not images:
            raise ValueError(
                f"{root / pair.images} and {root / pair.targets} must have files of the same names, at least "
                f"one; {len(images)} and {len(targets)} are there, and without partner: {first(alone)}."
            )
        keys = sorted(images)
        names, maps = [images[key] for key in keys], [targets[key] for key in keys]
        return _pairs(root / pair.images, names, root / pair.targets, maps, self.meaning)


@dataclass(frozen=True)
class ListedPairs:
    """A reader: a list of names per split, and where the image and the target of a name lie."""

    lists: Mapping[str, str]
    pair: Pair
    meaning: Meaning

    def __call__(self, root: Path) -> Contents:
        splits = {}
        for split, path in self.lists.items():
            names = read_lines(root / path)
            images, targets = ([template.format(name) for name in names] for template in self.pair)
            splits[split] = paired(root, images, root, targets, self.meaning, split=split)
        return self.meaning.contents(splits)


def paired(
    root: Path, images: list[str], target_root: Path, targets: list[str], meaning: Meaning, *, split: str
) -> ListedSplit:
    """Images with a file of targets each; those that are not there are an error."""
    files_of(root, images, split=split)
    files_of(target_root, targets, split=split)
    return _pairs(root, images, target_root, targets, meaning)


def open_pairs(root: Path, task: Task) -> Contents:
    """The folder of anyone; see the top of this file."""
    splits = find_pairs(root, task)
    if not splits:
        words = ", ".join(TARGET_FOLDERS[task])
        raise FileNotFoundError(
            f"{root} must hold train/images with train/{TARGET_FOLDERS[task][0]}, or images/train with "
            f"{TARGET_FOLDERS[task][0]}/train (targets may be called {words}), and the same for val or test; "
            f"there is: {inside(root)}."
        )
    meaning = _mask_meaning(root) if task == "segment" else _depth_meaning(root, splits["train"])
    return FolderPairs(splits, meaning)(root)


def find_pairs(root: Path, task: Task) -> dict[str, Pair]:
    """The folders of each split; empty unless train and a held-out split are there."""
    for word in TARGET_FOLDERS[task]:
        for template in ("{split}/{kind}", "{kind}/{split}"):
            found = {}
            for split in ("train", *HELD_OUT):
                pair = Pair(*(template.format(split=split, kind=kind) for kind in ("images", word)))
                if all((root / folder).is_dir() for folder in pair):
                    found[split] = pair
            if "train" in found and len(found) > 1:
                return found
    return {}


def unit_of(folder: Path, *, shallow: float) -> float:
    """Metres per unit of depth maps of 16 bits, which are millimetres; of those of 8 bits it is `shallow`."""
    names, _ = list_files(folder, _TARGET_SUFFIXES)
    if not names:
        return shallow
    if names[0].endswith(".npy"):
        return 1.0
    with Image.open(io.BytesIO(read_named(folder / names[0])), formats=FORMATS) as image:
        return MILLIMETRE if image.mode.startswith("I") else shallow


def table_of(ids: Mapping[int, int], *, others: int = UNKNOWN, size: int = 256) -> NDArray[np.int64]:
    """The class id of each stored value; `others` for values that `ids` does not name."""
    table = np.full(size, others, dtype=np.int64)
    table[list(ids)] = list(ids.values())
    return table


def _look_up(values: NDArray[np.generic], table: NDArray[np.int64], path: Path) -> NDArray[np.uint8]:
    """Class ids of stored values; a value that is not in the table is an error that names it."""
    places = values.astype(np.int64)
    ids = table[np.minimum(places, len(table) - 1)]
    wrong = (ids == UNKNOWN) | (places >= len(table))
    if wrong.any():
        listed = ", ".join(map(str, np.unique(places[wrong])[:5].tolist()))
        known = np.flatnonzero(table != UNKNOWN)
        raise ValueError(
            f"{path} has unknown ids: {listed}; known are {len(known)} from {known[0]} to {known[-1]}. "
            "It may be of another dataset, or of another version of this one."
        )
    return ids.astype(np.uint8)


def _read_npy(path: Path) -> NDArray[np.generic]:
    data = read_named(path)
    try:
        # A view of the bytes that are there: np.load would make room for whatever the header claims.
        file = io.BytesIO(data)
        version = np.lib.format.read_magic(file)
        read_header = (
            np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        )
        shape, in_columns, dtype = read_header(file)
        if dtype.hasobject:
            raise ValueError("it holds Python objects, which are not read")
        order: Literal["F", "C"] = "F" if in_columns else "C"
        values: NDArray[np.generic] = np.ndarray(shape, dtype, data, offset=file.tell(), order=order)
    except Exception as error:  # a damaged header makes NumPy's parser fail in any way there is
        raise ValueError(f"{path} is not an intact .npy file ({error!r}). Replace or delete it.") from None
    return values


def _pairs(
    root: Path, images: list[str], target_root: Path, targets: list[str], meaning: Meaning
) -> ListedSplit:
    return ListedSplit(
        images, at_place(root, images, read_named), at_place(target_root, targets, meaning.read)
    )


def _by_key(folder: Path, end: str, suffixes: frozenset[str]) -> dict[str, str]:
    """Names without their end → names; two images of one name are an error."""
    names, others = list_files(folder, suffixes)
    if end:  # a dataset with several files per image: the others are known and of no use here
        return {name.removesuffix(end): name for name in names if name.endswith(end)}
    say_ignored(folder, others, "files are no images and are ignored")
    stems = [str(Path(name).with_suffix("")) for name in names]
    numbered(stems, source=folder)
    return dict(zip(stems, names, strict=True))


def _mask_meaning(root: Path) -> Meaning:
    listed, with_ids = root / "classes.txt", root / "classes.json"
    if listed.is_file():
        return Meaning(classes=list(numbered(read_lines(listed), source=listed)))
    if not with_ids.is_file():
        raise FileNotFoundError(
            f'masks need class names: {root} has neither classes.json, as {{"sky": 0, "road": 1}}, nor '
            "classes.txt with a name per line, the first for id 0."
        )
    ids = _read_json(with_ids)
    if not ids or not all(type(value) is int and 0 <= value < IGNORED for value in ids.values()):
        raise ValueError(f"{with_ids} must map class names to ids from 0 to {IGNORED - 1}.")
    classes = sorted(ids, key=lambda name: ids[name])
    if len(set(ids.values())) != len(ids):
        raise ValueError(f"{with_ids} gives two classes the same id.")
    table = table_of({ids[name]: label for label, name in enumerate(classes)} | {IGNORED: IGNORED})
    return Meaning(classes=classes, table=table)


def _depth_meaning(root: Path, pair: Pair) -> Meaning:
    path = root / "depth.json"
    if path.is_file():
        body = _read_json(path)
        unit, limit = body.get("metres_per_unit", 0), body.get("max_depth")
        if not _positive(unit) or not (limit is None or _positive(limit)):
            raise ValueError(f"{path} must hold metres_per_unit, and may hold max_depth; both are positive.")
        return Meaning(metres_per_unit=float(unit), max_depth=limit)
    if unit := unit_of(root / pair.targets, shallow=0.0):
        return Meaning(metres_per_unit=unit)
    raise ValueError(
        f"{root / pair.targets} holds 8-bit depth, whose unit only you know. Write it into {path}, e.g. "
        '{"metres_per_unit": 0.0392, "max_depth": 10} where 255 is 10 m; for the 8-bit form of NYUv2 give '
        f"NYUv2:{root}."
    )


def _positive(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


def _read_json(path: Path) -> dict[str, Any]:
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON: {error}.") from None
    if not isinstance(body, dict):
        raise ValueError(f"{path} must hold a JSON object.")
    return body
