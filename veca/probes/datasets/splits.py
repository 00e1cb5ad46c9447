"""Images and what is known about them, on the disk until asked for.

A split joins two columns: images (files, or records of one large file) and targets (labels, masks, depth
maps). Columns are read by place, from any thread; opening a dataset only makes the lists.
"""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from veca.data.decode import FORMATS
from veca.data.folders import read_named
from veca.probes.types import Item, Split

Target = int | NDArray[np.generic]
UNKNOWN = -1  # in a table of class ids: a value that the dataset does not have


class Contents(NamedTuple):
    """What a reader finds in a folder."""

    classes: list[str]
    splits: dict[str, Split]
    max_depth: float | None = None


class Images(Protocol):
    """Encoded images by place."""

    def __len__(self) -> int: ...

    def name(self, place: int) -> str: ...

    def read(self, place: int) -> bytes: ...


class Targets(Protocol):
    """Targets by place."""

    def __len__(self) -> int: ...

    def read(self, place: int) -> Target: ...


@dataclass(frozen=True)
class ListedSplit:
    """Images with their targets: a `Split`."""

    images: Images
    targets: Targets

    def __post_init__(self) -> None:
        assert len(self.images) == len(self.targets), (len(self.images), len(self.targets))

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, place: int) -> Item:
        return Item(self.images.name(place), self.images.read(place), self.targets.read(place))


@dataclass(frozen=True)
class Files:
    """Image files; names are relative to the root, so that a million of them stay small."""

    root: Path
    names: Sequence[str]

    def __len__(self) -> int:
        return len(self.names)

    def name(self, place: int) -> str:
        return self.names[place]

    def read(self, place: int) -> bytes:
        return read_named(self.root / self.names[place])


@dataclass(frozen=True)
class Labels:
    """One class per image."""

    labels: Sequence[int]

    def __len__(self) -> int:
        return len(self.labels)

    def read(self, place: int) -> int:
        return int(self.labels[place])


@dataclass(frozen=True)
class SeveralLabels:
    """Any number of classes per image: 0, 1 or IGNORED for each, (n, C)."""

    labels: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.labels)

    def read(self, place: int) -> NDArray[np.uint8]:
        row: NDArray[np.uint8] = self.labels[place]
        return row


@dataclass(frozen=True)
class Masks:
    """Class ids as the values of an image with one channel.

    Args:
        table: class id of each value, IGNORED or UNKNOWN; None where values are class ids already.
    """

    root: Path
    names: Sequence[str]
    table: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.names)

    def read(self, place: int) -> NDArray[np.generic]:
        path = self.root / self.names[place]
        values = read_channel(path)
        return values if self.table is None else look_up(values, self.table, path)


@dataclass(frozen=True)
class Depths:
    """Depth maps: an image of whole numbers, or metres in .npy; 0 and what is no number is unmeasured."""

    root: Path
    names: Sequence[str]
    metres_per_unit: float

    def __len__(self) -> int:
        return len(self.names)

    def read(self, place: int) -> NDArray[np.float32]:
        path = self.root / self.names[place]
        values = _read_npy(path) if path.suffix == ".npy" else read_channel(path)
        if values.ndim != 2 or values.dtype.kind not in "uif":
            raise ValueError(f"{path} must hold one number per pixel; got {values.dtype} {values.shape}.")
        metres: NDArray[np.float32] = values.astype(np.float32) * np.float32(self.metres_per_unit)
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
        raise ValueError(f"{path} is not an intact .npy file ({error!r}). Mend or delete it.") from None
    return values


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
