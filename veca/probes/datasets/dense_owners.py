"""Readers of masks and depth maps for what only one dataset does."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from veca.data.folders import list_files
from veca.probes.datasets.finding import files_of, read_lines, say_ignored
from veca.probes.datasets.mat import read_mat
from veca.probes.datasets.names import CONTEXT_59
from veca.probes.datasets.pairs import FolderPairs, Meaning, Pair, table_of
from veca.probes.datasets.splits import Contents, Depths, ListedSplit, look_up
from veca.probes.types import IGNORED

KITTI_MAX = 80.0  # metres
KITTI_UNIT = 1 / 256
_CONTEXT_VALUES = 460


def read_ade(root: Path) -> Contents:
    """ADE20K's scene parsing benchmark: 150 classes from 1, 0 for anything else."""
    lines = read_lines(root / "objectInfo150.txt")[1:]
    classes = [line.split("\t")[-1].strip() for line in lines]
    ids = {label + 1: label for label in range(len(classes))} | {0: IGNORED}
    pairs = {
        "train": Pair("images/training", "annotations/training"),
        "val": Pair("images/validation", "annotations/validation"),
    }
    return FolderPairs(pairs, Meaning(classes, table_of(ids)))(root)


@dataclass(frozen=True)
class ContextMasks:
    """Masks in MATLAB files, one per image, with 459 classes of which 59 count."""

    root: Path
    names: list[str]
    table: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.names)

    def read(self, place: int) -> NDArray[np.uint8]:
        path = self.root / self.names[place]
        return look_up(read_mat(path)["LabelMap"], self.table, path)


def read_context(root: Path) -> Contents:
    """PASCAL-Context as its owners ship it: trainval/*.mat and labels.txt beside VOC2010's images."""
    numbers = {}
    for line in read_lines(root / "labels.txt"):
        number, _, name = line.partition(":")
        numbers[name.strip()] = int(number)
    missing = sorted(set(CONTEXT_59) - set(numbers))
    if missing:
        raise ValueError(f"{root / 'labels.txt'} lacks classes of the 59, e.g. {missing[0]}.")
    ids = {numbers[name]: label for label, name in enumerate(CONTEXT_59, start=1)}
    table = table_of(ids, others=0, size=_CONTEXT_VALUES)
    splits = {}
    for split in ("train", "val"):
        stems = read_lines(root / f"ImageSets/Main/{split}.txt")
        images = files_of(root, [f"JPEGImages/{stem}.jpg" for stem in stems], split=split)
        masks = files_of(root, [f"trainval/{stem}.mat" for stem in stems], split=split)
        splits[split] = ListedSplit(images, ContextMasks(root, list(masks.names), table))
    return Contents(["background", *CONTEXT_59], {**splits})


def read_kitti_eigen(root: Path) -> Contents:
    """The Eigen split: lists of image, depth map and focal length; a line with None has no depth map."""
    splits = {}
    for split in ("train", "test"):
        path = root / f"eigen_{split}_files_with_gt.txt"
        lines = [line.split() for line in read_lines(path)]
        rows = [(line[0], line[1]) for line in lines if line[1] != "None"]
        say_ignored(path, len(lines) - len(rows), "images have no depth map and do not count")
        images = files_of(root / "raw", [image for image, _ in rows], split=split)
        names = [_annotated(root, depth) for _, depth in rows]
        depths = files_of(root / "data_depth_annotated", names, split=split)
        splits[split] = ListedSplit(images, Depths(depths.root, names, KITTI_UNIT))
    return Contents([], {**splits}, KITTI_MAX)


def _annotated(root: Path, name: str) -> str:
    """A depth map of the lists; the owners put drives into train and val."""
    places = (f"train/{name}", f"val/{name}", name)
    return next((place for place in places if (root / "data_depth_annotated" / place).is_file()), name)


def read_kitti(root: Path) -> Contents:
    """The owners' own split: depth maps in train and val, their images in the raw recordings."""
    splits = {}
    for split in ("train", "val"):
        names, _ = list_files(root / "data_depth_annotated" / split)
        images = [_raw_image(name) for name in names]
        depths = Depths(root / "data_depth_annotated" / split, names, KITTI_UNIT)
        splits[split] = ListedSplit(files_of(root / "raw", images, split=split), depths)
    return Contents([], {**splits}, KITTI_MAX)


def _raw_image(depth: str) -> str:
    """DRIVE/proj_depth/groundtruth/image_02/N.png → DATE/DRIVE/image_02/data/N.png"""
    drive, _, _, camera, name = Path(depth).parts
    return f"{drive[:10]}/{drive}/{camera}/data/{name}"
