"""Readers for what only one dataset does: tables, MATLAB and HDF5 files of its owners.

MATLAB files are data, not code: nothing in them runs. scipy reads the usual ones and h5py those of version
7.3; both come with `pip install "veca[probes]"` and are imported only here.
"""

import csv
import json
import re
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veca.data.folders import list_files, read_named
from veca.probes.datasets.pairs import (
    MILLIMETRE,
    FolderPairs,
    ListedPairs,
    Meaning,
    Pair,
    find_pairs,
    paired,
    table_of,
    unit_of,
)
from veca.probes.datasets.readers import ClassFolders, encode, files_of, labelled, read_lines, say_ignored
from veca.probes.datasets.splits import IGNORED, Contents, ListedSplit, at_place, first

CALTECH_TRAIN = 30  # images per class, the usual protocol
_CALTECH_SEED = 0
_VAL_NUMBER = re.compile(r"ILSVRC2012_val_(\d{8})\.JPEG")
_VOC_MARKS = {"1": 1, "-1": 0, "0": IGNORED}  # 0 says difficult, which counts neither way
_CONTEXT_VALUES = 460
_NYU = Meaning(metres_per_unit=MILLIMETRE, max_depth=10.0)
_NYU_UNIT = 1 / 25.5  # of 8 bits: 255 is 10 m
_KITTI = Meaning(metres_per_unit=1 / 256, max_depth=80.0)


def read_imagenet(root: Path) -> Contents:
    """ImageNet in class folders."""
    return _by_number(ClassFolders({"train": "train", "val": "val"})(root))


def read_kaggle_imagenet(root: Path) -> Contents:
    """ImageNet as Kaggle ships it: training images in class folders, validation labels in a table."""
    data = "ILSVRC/Data/CLS-LOC"
    train = ClassFolders({"train": f"{data}/train"})(root)
    labels = {name: label for label, name in enumerate(train.classes)}
    with (root / "LOC_val_solution.csv").open(encoding="utf-8", newline="") as file:
        rows = [
            (f"{data}/val/{row['ImageId']}.JPEG", labels[row["PredictionString"].split()[0]])
            for row in csv.DictReader(file)
        ]
    val = labelled(root, train.classes, {"val": rows})
    return _by_number(train._replace(splits={**train.splits, **val.splits}))


def _by_number(imagenet: Contents) -> Contents:
    """Classes called by their number in the order of WordNet ids, as INv2 and ReaL call them."""
    return imagenet._replace(classes=[str(number) for number in range(len(imagenet.classes))])


def read_real(root: Path) -> Contents:
    """ReaL's labels of ImageNet's validation images; an image without any counts in no score."""
    path = root / "real.json"
    answers: list[list[int]] = json.loads(path.read_text(encoding="utf-8"))
    names, _ = list_files(root / "val")
    places = {int(match[1]): name for name in names if (match := _VAL_NUMBER.search(name))}
    if set(places) != set(range(1, len(answers) + 1)):
        raise FileNotFoundError(
            f"{root / 'val'} must hold the {len(answers)} images that {path} labels, as "
            f"ILSVRC2012_val_00000001.JPEG, also in class folders; {len(places)} are there."
        )
    kept = [number for number, labels in enumerate(answers, start=1) if labels]
    say_ignored(path, len(answers) - len(kept), "images have no label and do not count, as its authors say")
    num_classes = max(1000, 1 + max(label for labels in answers for label in labels))
    targets = np.zeros((len(kept), num_classes), dtype=np.uint8)
    for row, number in enumerate(kept):
        targets[row, answers[number - 1]] = 1
    images = [places[number] for number in kept]
    classes = [str(number) for number in range(num_classes)]
    return Contents(classes, {"test": _with_rows(root / "val", images, targets, split="test")})


def read_voc07(root: Path, *, classes: Sequence[str]) -> Contents:
    """VOC's multi-label form: for each class and split, a list of all images with 1, 0 or -1."""
    splits = ("train", "val", "test")
    return Contents(list(classes), {split: _voc07(root, split, classes) for split in splits})


def _voc07(root: Path, split: str, classes: Sequence[str]) -> ListedSplit:
    stems: list[str] = []
    columns = []
    for name in classes:
        path = root / f"ImageSets/Main/{name}_{split}.txt"
        rows = [line.split() for line in read_lines(path)]
        if any(len(row) != 2 or row[1] not in _VOC_MARKS for row in rows):
            raise ValueError(f"{path}: every line must be an image and 1, 0 or -1.")
        if stems and stems != [row[0] for row in rows]:
            raise ValueError(f"{path} lists other images than the classes before it.")
        stems = [row[0] for row in rows]
        columns.append([_VOC_MARKS[row[1]] for row in rows])
    targets = np.array(columns, dtype=np.uint8).T.copy()
    if absent := [name for name, seen in zip(classes, (targets == 1).any(0), strict=True) if not seen]:
        raise ValueError(f"{root}, {split}: {len(absent)} classes have no image: {first(absent)}.")
    return _with_rows(root, [f"JPEGImages/{stem}.jpg" for stem in stems], targets, split=split)


def _with_rows(root: Path, images: list[str], targets: NDArray[np.uint8], *, split: str) -> ListedSplit:
    """Any number of classes per image: 0, 1 or IGNORED for each, (n, C)."""
    files_of(root, images, split=split)
    return ListedSplit(images, at_place(root, images, read_named), lambda place: targets[place])


def read_places(root: Path) -> Contents:
    """Places365-Standard, small or large images."""
    side = "256" if (root / "data_256").is_dir() else "large"
    classes = [line.split()[0].lstrip("/") for line in read_lines(root / "categories_places365.txt")]
    lists = {"train": ("places365_train_standard.txt", "data"), "val": ("places365_val.txt", "val")}

    def rows(name: str, folder: str) -> Iterator[tuple[str, int]]:
        for line in read_lines(root / name):
            image, label = line.split()
            yield f"{folder}_{side}/{image.lstrip('/')}", int(label)

    return labelled(root, classes, {split: rows(*places) for split, places in lists.items()})


def read_cars(root: Path) -> Contents:
    """Stanford Cars: the development kit names the class of each file."""
    classes = [str(name) for name in read_mat(root / "devkit/cars_meta.mat")["class_names"]]
    files = {"train": "devkit/cars_train_annos.mat", "test": "cars_test_annos_withlabels.mat"}
    tables = {split: read_mat(root / name)["annotations"] for split, name in files.items()}
    rows = {
        split: [(f"cars_{split}/{row.fname}", int(getattr(row, "class")) - 1) for row in table]
        for split, table in tables.items()
    }
    return labelled(root, classes, rows)


def read_flowers(root: Path) -> Contents:
    """102 Flowers: classes have numbers only."""
    labels = read_mat(root / "imagelabels.mat")["labels"]
    parts = read_mat(root / "setid.mat")
    numbers = {"train": parts["trnid"], "val": parts["valid"], "test": parts["tstid"]}
    rows = {
        split: [(f"jpg/image_{n:05d}.jpg", int(labels[n - 1]) - 1) for n in np.atleast_1d(found).tolist()]
        for split, found in numbers.items()
    }
    return labelled(root, [str(number) for number in range(1, int(labels.max()) + 1)], rows)


def read_cub(root: Path) -> Contents:
    """CUB-200-2011: four tables with one line per image or class."""
    images, labels, is_train, names = (
        dict(line.split(maxsplit=1) for line in read_lines(root / f"{name}.txt"))
        for name in ("images", "image_class_labels", "train_test_split", "classes")
    )
    places = {number: label for label, number in enumerate(names)}
    rows: dict[str, list[tuple[str, int]]] = {"train": [], "test": []}
    for number, image in images.items():
        split = "train" if is_train[number] == "1" else "test"
        rows[split].append((f"images/{image}", places[labels[number]]))
    return labelled(root, list(names.values()), rows)


def read_caltech(root: Path) -> Contents:
    """Caltech-101 has no split of its own: 30 images per class to train on, drawn once, the rest to test."""
    classes = sorted(path.name for path in root.iterdir() if path.is_dir())
    if "BACKGROUND_Google" in classes:
        classes.remove("BACKGROUND_Google")
        say_ignored(root, 1, "folder is no class: BACKGROUND_Google")
    rows: dict[str, list[tuple[str, int]]] = {"train": [], "test": []}
    for label, name in enumerate(classes):
        images, _ = list_files(root / name)
        order = np.random.default_rng([_CALTECH_SEED, label]).permutation(len(images)).tolist()
        for split, places in {"train": order[:CALTECH_TRAIN], "test": order[CALTECH_TRAIN:]}.items():
            rows[split] += [(f"{name}/{images[place]}", label) for place in sorted(places)]
    return labelled(root, classes, rows)


def read_pickled(root: Path) -> Contents:
    """CIFAR's Python version, which is refused."""
    raise ValueError(
        f"{root} holds CIFAR's Python version, a pickle, and nothing is unpickled here. Get the binary "
        "version from the same page, or class folders train/CLASS and test/CLASS."
    )


def read_ade(root: Path) -> Contents:
    """ADE20K's scene parsing benchmark: 150 classes from 1, 0 for anything else."""
    classes = [line.split("\t")[-1].strip() for line in read_lines(root / "objectInfo150.txt")[1:]]
    ids = {label + 1: label for label in range(len(classes))} | {0: IGNORED}
    folders = {"train": "training", "val": "validation"}
    pairs = {split: Pair(f"images/{name}", f"annotations/{name}") for split, name in folders.items()}
    return FolderPairs(pairs, Meaning(classes, table_of(ids)))(root)


def read_context(root: Path, *, names: Sequence[str]) -> Contents:
    """PASCAL-Context as its owners ship it: masks of 459 classes in trainval/*.mat, of which 59 count."""
    words = (line.partition(":") for line in read_lines(root / "labels.txt"))
    numbers = {name.strip(): int(number) for number, _, name in words}
    if missing := sorted(set(names) - set(numbers)):
        raise ValueError(f"{root / 'labels.txt'} lacks classes of the 59, e.g. {missing[0]}.")
    ids = {numbers[name]: label for label, name in enumerate(names, start=1)}
    table = table_of(ids, others=0, size=_CONTEXT_VALUES)
    meaning = Meaning(("background", *names), table, channel=lambda path: read_mat(path)["LabelMap"])
    lists = {split: f"ImageSets/Main/{split}.txt" for split in ("train", "val")}
    return ListedPairs(lists, Pair("JPEGImages/{}.jpg", "trainval/{}.mat"), meaning)(root)


def read_kitti_eigen(root: Path) -> Contents:
    """The Eigen split: lists of image, depth map and focal length; a line with None has no depth map."""
    depths, splits = root / "data_depth_annotated", {}
    for split in ("train", "test"):
        path = root / f"eigen_{split}_files_with_gt.txt"
        lines = [line.split() for line in read_lines(path)]
        rows = [(line[0], line[1]) for line in lines if line[1] != "None"]
        say_ignored(path, len(lines) - len(rows), "images have no depth map and do not count")
        images, maps = [image for image, _ in rows], [_annotated(depths, name) for _, name in rows]
        splits[split] = paired(root / "raw", images, depths, maps, _KITTI, split=split)
    return _KITTI.contents(splits)


def _annotated(depths: Path, name: str) -> str:
    """A depth map of the lists; the owners put drives into train and val."""
    places = (f"train/{name}", f"val/{name}", name)
    return next((place for place in places if (depths / place).is_file()), name)


def read_kitti(root: Path) -> Contents:
    """The owners' own split: depth maps in train and val, their images in the raw recordings."""
    splits = {}
    for split in ("train", "val"):
        depths = root / "data_depth_annotated" / split
        names, _ = list_files(depths)
        images = []
        for name in names:  # DRIVE/proj_depth/groundtruth/image_02/N.png → DATE/DRIVE/image_02/data/N.png
            drive, _, _, camera, file = Path(name).parts
            images.append(f"{drive[:10]}/{drive}/{camera}/data/{file}")
        splits[split] = paired(root / "raw", images, depths, names, _KITTI, split=split)
    return _KITTI.contents(splits)


def read_nyu_mat(root: Path) -> Contents:
    """The official split of the 1,449 labelled frames; depths are in metres, as filled in by the owners."""
    parts = read_mat(root / "splits.mat")
    path = root / "nyu_depth_v2_labeled.mat"
    file = _module("h5py", path).File(path, "r")  # locks itself, so threads may share it; axes are reversed

    def frames(numbers: list[int]) -> ListedSplit:
        def frame(variable: str, place: int) -> NDArray[Any]:
            return np.ascontiguousarray(file[variable][numbers[place] - 1].T)  # (rows, columns, …)

        return ListedSplit(
            [f"{number:04d}" for number in numbers],
            lambda place: encode(frame("images", place)),
            lambda place: frame("depths", place).astype(np.float32),
        )

    found = {split: np.atleast_1d(parts[f"{split}Ndxs"]).astype(int) for split in ("train", "test")}
    return _NYU.contents({split: frames(numbers.tolist()) for split, numbers in found.items()})


def read_nyu_folders(root: Path) -> Contents:
    """NYUv2 as folders of images and depths: 16 bits are millimetres, 8 bits are 1/25.5 m."""
    pairs = find_pairs(root, "depth")
    if not pairs:
        raise FileNotFoundError(f"{root} lacks images and depths of train, or of val and test.")
    unit = unit_of(root / pairs["train"].targets, shallow=_NYU_UNIT)
    return FolderPairs(pairs, Meaning(metres_per_unit=unit, max_depth=_NYU.max_depth))(root)


def read_nyu_scenes(root: Path) -> Contents:
    """The official split as scene folders with rgb_NNNNN.jpg and sync_depth_NNNNN.png."""
    splits = {}
    for split in ("train", "test"):
        names, _ = list_files(root / split)
        images = [name for name in names if Path(name).name.startswith("rgb_")]
        depths = [re.sub(r"rgb_([^/]*)\.\w+$", r"sync_depth_\1.png", name) for name in images]
        splits[split] = paired(root / split, images, root / split, depths, _NYU, split=split)
    return _NYU.contents(splits)


def read_mat(path: Path) -> dict[str, Any]:
    """The variables of a .mat file; structures have their fields as attributes."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no {path}.")
    load: Callable[..., dict[str, Any]] = _module("scipy.io", path).loadmat
    return load(path, squeeze_me=True, struct_as_record=False)


def _module(name: str, path: Path) -> Any:
    try:
        return import_module(name)
    except ImportError:
        raise ValueError(
            f"{path} is a MATLAB file, which {name.partition('.')[0]} reads; it is not installed. "
            'Run `pip install "veca[probes]"`.'
        ) from None
