"""CIFAR's binary version: fixed-size records of label bytes and 3 × 32 × 32 pixels, planes one by one.

Its Python version is a pickle, and nothing is unpickled here.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from veca.probes.datasets.finding import check_classes, read_lines
from veca.probes.datasets.splits import Contents, Labels, ListedSplit, encode

_SIDE = 32
_PIXELS = 3 * _SIDE**2


@dataclass(frozen=True)
class RecordImages:
    """Images in the rows of a matrix, as its file holds them."""

    rows: NDArray[np.uint8]  # (n, 3 · 32 · 32)
    split: str

    def __len__(self) -> int:
        return len(self.rows)

    def name(self, place: int) -> str:
        return f"{self.split}/{place:05d}"

    def read(self, place: int) -> bytes:
        return encode(self.rows[place].reshape(3, _SIDE, _SIDE).transpose(1, 2, 0))


@dataclass(frozen=True)
class Cifar:
    """A reader: records of `num_labels` bytes, of which the last is the class, and the pixels."""

    train: tuple[str, ...]
    test: tuple[str, ...]
    names: str
    num_labels: int

    def __call__(self, root: Path) -> Contents:
        classes = read_lines(root / self.names)
        files = {"train": self.train, "test": self.test}
        splits = {split: self._split(root, split, names, classes) for split, names in files.items()}
        return Contents(classes, {**splits})

    def _split(self, root: Path, split: str, names: tuple[str, ...], classes: list[str]) -> ListedSplit:
        rows = np.concatenate([self._records(root / name) for name in names])
        labels = rows[:, self.num_labels - 1].tolist()
        check_classes(np.bincount(labels, minlength=len(classes)), classes, split=f"{root}, {split}")
        return ListedSplit(RecordImages(rows[:, self.num_labels :], split), Labels(labels))

    def _records(self, path: Path) -> NDArray[np.uint8]:
        if not path.is_file():
            raise FileNotFoundError(f"there is no {path}.")
        length = self.num_labels + _PIXELS
        data = np.fromfile(path, dtype=np.uint8)
        if not data.size or data.size % length:
            raise ValueError(f"{path} is no whole number of records of {length} bytes. Download it again.")
        return data.reshape(-1, length)
