"""What the datasets of the probes hand on: items with their targets, in splits, on the disk until asked for.

A split is a list of names and two functions of the place in it, which give the image and its target. They
are called from any thread; opening a dataset only makes the lists.
"""

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from veca.backbones import Task
from veca.data.decode import FORMATS
from veca.data.folders import read_named

T = TypeVar("T")
Target = int | NDArray[np.generic]
IGNORED = 255  # a label or mask value that counts neither for training nor for the score
UNKNOWN = -1  # in a table of class ids: a value that the dataset does not have


class Item(NamedTuple):
    """One example as it lies on the disk.

    `target` is, by task: a label (int); 0, 1 or IGNORED per class (C,) uint8; class ids (H, W) uint8 or
    uint16 with IGNORED where there is none; metres (H, W) float32, 0 where nothing was measured.
    """

    name: str
    image: bytes  # the encoded file
    target: Target


class Split(Protocol):
    """The examples of one split; nothing is read before it is asked for."""

    def __len__(self) -> int: ...

    def __getitem__(self, place: int) -> Item: ...


class Dataset(NamedTuple):
    """A labelled dataset with the splits it has: `train`, and `val` or `test` or both."""

    name: str
    task: Task
    classes: list[str]  # empty for depth
    splits: Mapping[str, Split]
    max_depth: float | None = None  # metres; farther measurements do not count
    dropped: tuple[str, ...] = ()  # classes that some split lacks, left out as asked for


@dataclass(frozen=True)
class ListedSplit:
    """A `Split`; `labels` where each image has one class, so that they are counted without reading images."""

    names: Sequence[str]
    image: Callable[[int], bytes]
    target: Callable[[int], Target]
    labels: Sequence[int] | None = None

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, place: int) -> Item:
        return Item(self.names[place], self.image(place), self.target(place))


class Contents(NamedTuple):
    """What a reader finds in a folder."""

    classes: list[str]
    splits: dict[str, ListedSplit]
    max_depth: float | None = None


def at_place(root: Path, names: Sequence[str], read: Callable[[Path], T]) -> Callable[[int], T]:
    """Reads file n of a list; names are relative to the root, so that a million of them stay small."""
    return lambda place: read(root / names[place])


def with_labels(names: Sequence[str], image: Callable[[int], bytes], labels: Sequence[int]) -> ListedSplit:
    """A split with one class per image."""
    assert len(names) == len(labels), (len(names), len(labels))
    return ListedSplit(names, image, lambda place: int(labels[place]), labels)


def read_mask(path: Path, *, table: NDArray[np.int64] | None = None) -> NDArray[np.generic]:
    """Class ids as the values of an image with one channel; `table` gives the id of each value."""
    values = read_channel(path)
    return values if table is None else look_up(values, table, path)


def read_depth(path: Path, *, metres_per_unit: float) -> NDArray[np.float32]:
    """An image of whole numbers, or metres in .npy; 0 and what is no number is unmeasured."""
    values = _read_npy(path) if path.suffix == ".npy" else read_channel(path)
    if values.ndim != 2 or values.dtype.kind not in "uif":
        raise ValueError(f"{path} must hold one number per pixel; got {values.dtype} {values.shape}.")
    metres: NDArray[np.float32] = values.astype(np.float32) * np.float32(metres_per_unit)
    metres[~np.isfinite(metres)] = 0.0
    return metres


def read_channel(path: Path) -> NDArray[np.generic]:
    """The values of an image with one channel, as stored: of a palette image the indices."""
    with Image.open(io.BytesIO(read_named(path)), formats=FORMATS) as image:
        if image.mode not in ("L", "P", "I", "I;16", "I;16B"):
            raise ValueError(
                f"{path} has mode {image.mode}; a mask or depth map has one channel of 8 or 16 bits, "
                "not colours."
            )
        return np.array(image)


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


def table_of(ids: Mapping[int, int], *, others: int = UNKNOWN, size: int = 256) -> NDArray[np.int64]:
    """The class id of each stored value; `others` for values that `ids` does not name."""
    table = np.full(size, others, dtype=np.int64)
    for value, label in ids.items():
        table[value] = label
    return table


def look_up(values: NDArray[np.generic], table: NDArray[np.int64], path: Path) -> NDArray[np.uint8]:
    """Class ids of stored values; a value that is not in the table is an error that names it."""
    inside = values.astype(np.int64)
    ids = table[np.minimum(inside, len(table) - 1)]
    wrong = (ids == UNKNOWN) | (inside >= len(table))
    if wrong.any():
        listed = ", ".join(map(str, np.unique(inside[wrong])[:5].tolist()))
        known = np.flatnonzero(table != UNKNOWN)
        raise ValueError(
            f"{path} has unknown ids: {listed}; known are {len(known)} from {known[0]} to {known[-1]}. "
            "It may be of another dataset, or of another version of this one."
        )
    return ids.astype(np.uint8)


def encode(pixels: NDArray[np.uint8]) -> bytes:
    """An image (H, W, 3) as a file: BMP, which costs no time and loses nothing."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "BMP")
    return file.getvalue()
