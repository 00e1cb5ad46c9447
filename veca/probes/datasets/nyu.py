"""NYUv2: the owners' HDF5 file of labelled frames with a split by number, and two unpacked forms of it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veca.data.folders import list_files
from veca.probes.datasets.finding import files_of
from veca.probes.datasets.mat import open_hdf5, read_mat
from veca.probes.datasets.pairs import MILLIMETRE, FolderPairs, Meaning, find_pairs, is_deep
from veca.probes.datasets.splits import Contents, Depths, ListedSplit, encode

MAX_DEPTH = 10.0  # metres
_EIGHT_BIT_UNIT = 1 / 25.5  # 255 is 10 m


@dataclass(frozen=True)
class _Frames:
    """Some of the frames of one variable of the file, (frames, …, columns, rows)."""

    file: Any  # h5py.File; it locks itself, so threads may share it
    variable: str
    numbers: list[int]  # from 1, as MATLAB counts

    def __len__(self) -> int:
        return len(self.numbers)

    def name(self, place: int) -> str:
        return f"{self.numbers[place]:04d}"

    def frame(self, place: int) -> NDArray[Any]:
        values: NDArray[Any] = self.file[self.variable][self.numbers[place] - 1]
        return values.T  # (rows, columns, …)


class FrameImages(_Frames):
    def read(self, place: int) -> bytes:
        return encode(np.ascontiguousarray(self.frame(place)))


class FrameDepths(_Frames):
    def read(self, place: int) -> NDArray[np.float32]:
        return np.ascontiguousarray(self.frame(place), dtype=np.float32)


def read_labelled_mat(root: Path) -> Contents:
    """The official split of the 1,449 labelled frames; depths are in metres, as filled in by the owners."""
    parts = read_mat(root / "splits.mat")
    file = open_hdf5(root / "nyu_depth_v2_labeled.mat")
    splits = {}
    for split in ("train", "test"):
        numbers = [int(number) for number in np.atleast_1d(parts[f"{split}Ndxs"])]
        splits[split] = ListedSplit(
            FrameImages(file, "images", numbers), FrameDepths(file, "depths", numbers)
        )
    return Contents([], {**splits}, MAX_DEPTH)


def read_nyu_folders(root: Path) -> Contents:
    """NYUv2 as folders of images and depths: 16 bits are millimetres, 8 bits are 1/25.5 m."""
    pairs = find_pairs(root, "depth")
    if not pairs:
        raise FileNotFoundError(f"{root} lacks images and depths of train, or of val and test.")
    names, _ = list_files(root / pairs["train"].targets)
    deep = bool(names) and is_deep(root / pairs["train"].targets / names[0])
    unit = MILLIMETRE if deep else _EIGHT_BIT_UNIT
    return FolderPairs(pairs, Meaning(metres_per_unit=unit, max_depth=MAX_DEPTH))(root)


def read_nyu_scenes(root: Path) -> Contents:
    """The official split as scene folders with rgb_NNNNN.jpg and sync_depth_NNNNN.png."""
    splits = {}
    for split in ("train", "test"):
        names, _ = list_files(root / split)
        images = [name for name in names if Path(name).name.startswith("rgb_")]
        depths = [str(Path(name).with_name(_depth_name(name))) for name in images]
        files_of(root / split, depths, split=split)
        files = files_of(root / split, images, split=split)
        splits[split] = ListedSplit(files, Depths(root / split, depths, MILLIMETRE))
    return Contents([], {**splits}, MAX_DEPTH)


def _depth_name(image: str) -> str:
    return f"sync_depth_{Path(image).stem.removeprefix('rgb_')}.png"
