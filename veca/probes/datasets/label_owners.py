"""Readers for what only one dataset does: tables and MATLAB files of its owners."""

import csv
import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from veca.data.folders import list_files
from veca.probes.datasets.finding import files_of, labelled, read_lines, say_ignored
from veca.probes.datasets.folders import ClassFolders
from veca.probes.datasets.mat import read_mat
from veca.probes.datasets.splits import Contents, ListedSplit, SeveralLabels

CALTECH_TRAIN = 30  # images per class, the usual protocol
_CALTECH_SEED = 0
_VAL_NUMBER = re.compile(r"ILSVRC2012_val_(\d{8})\.JPEG")

Rows = list[tuple[str, int]]


def read_imagenet(root: Path) -> Contents:
    """ImageNet in class folders."""
    return _by_number(ClassFolders({"train": "train", "val": "val"})(root))


def _by_number(imagenet: Contents) -> Contents:
    """Classes called by their number in the order of WordNet ids, as INv2 and ReaL call them."""
    return imagenet._replace(classes=[str(number) for number in range(len(imagenet.classes))])


def read_kaggle_imagenet(root: Path) -> Contents:
    """ImageNet as Kaggle ships it: training images in class folders, validation labels in a table."""
    data = "ILSVRC/Data/CLS-LOC"
    train = ClassFolders({"train": f"{data}/train"})(root)
    with (root / "LOC_val_solution.csv").open(encoding="utf-8", newline="") as file:
        table = [(row["ImageId"], row["PredictionString"].split()[0]) for row in csv.DictReader(file)]
    labels = {name: label for label, name in enumerate(train.classes)}
    rows = [(f"{data}/val/{name}.JPEG", labels[wnid]) for name, wnid in table]
    val = labelled(root, rows, split="val", classes=train.classes)
    return _by_number(train._replace(splits={**train.splits, "val": val}))


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
    images = files_of(root / "val", [places[number] for number in kept], split="test")
    return Contents(
        [str(n) for n in range(num_classes)], {"test": ListedSplit(images, SeveralLabels(targets))}
    )


def read_places(root: Path) -> Contents:
    """Places365-Standard, small or large images."""
    side = "256" if (root / "data_256").is_dir() else "large"
    classes = [line.split()[0].lstrip("/") for line in read_lines(root / "categories_places365.txt")]
    lists = {
        "train": ("places365_train_standard.txt", f"data_{side}"),
        "val": ("places365_val.txt", f"val_{side}"),
    }
    splits = {}
    for split, (name, folder) in lists.items():
        lines = (line.split() for line in read_lines(root / name))
        rows = ((f"{folder}/{image.lstrip('/')}", int(label)) for image, label in lines)
        splits[split] = labelled(root, rows, split=split, classes=classes)
    return Contents(classes, {**splits})


def read_cars(root: Path) -> Contents:
    """Stanford Cars: the development kit names the class of each file."""
    classes = [str(name) for name in read_mat(root / "devkit/cars_meta.mat")["class_names"]]
    files = {"train": "devkit/cars_train_annos.mat", "test": "cars_test_annos_withlabels.mat"}
    splits = {}
    for split, name in files.items():
        annotations: list[Any] = read_mat(root / name)["annotations"]
        rows = ((f"cars_{split}/{row.fname}", int(getattr(row, "class")) - 1) for row in annotations)
        splits[split] = labelled(root, rows, split=split, classes=classes)
    return Contents(classes, {**splits})


def read_flowers(root: Path) -> Contents:
    """102 Flowers: classes have numbers only."""
    labels = read_mat(root / "imagelabels.mat")["labels"]
    parts = read_mat(root / "setid.mat")
    classes = [str(number) for number in range(1, int(labels.max()) + 1)]
    splits = {}
    for split, name in {"train": "trnid", "val": "valid", "test": "tstid"}.items():
        numbers = np.atleast_1d(parts[name]).tolist()
        rows = ((f"jpg/image_{number:05d}.jpg", int(labels[number - 1]) - 1) for number in numbers)
        splits[split] = labelled(root, rows, split=split, classes=classes)
    return Contents(classes, {**splits})


def read_cub(root: Path) -> Contents:
    """CUB-200-2011: four tables with one line per image or class."""
    images, labels, is_train, names = (
        dict(line.split(maxsplit=1) for line in read_lines(root / f"{name}.txt"))
        for name in ("images", "image_class_labels", "train_test_split", "classes")
    )
    classes = list(names.values())
    places = {number: label for label, number in enumerate(names)}
    rows: dict[str, Rows] = {"train": [], "test": []}
    for number, image in images.items():
        split = "train" if is_train[number] == "1" else "test"
        rows[split].append((f"images/{image}", places[labels[number]]))
    splits = {split: labelled(root, part, split=split, classes=classes) for split, part in rows.items()}
    return Contents(classes, {**splits})


def read_caltech(root: Path) -> Contents:
    """Caltech-101 has no split of its own: 30 images per class to train on, drawn once, the rest to test."""
    classes = sorted(path.name for path in root.iterdir() if path.is_dir())
    if "BACKGROUND_Google" in classes:
        classes.remove("BACKGROUND_Google")
        say_ignored(root, 1, "folder is no class: BACKGROUND_Google")
    rows: dict[str, Rows] = {"train": [], "test": []}
    for label, name in enumerate(classes):
        images, _ = list_files(root / name)
        order = np.random.default_rng([_CALTECH_SEED, label]).permutation(len(images)).tolist()
        for split, places in {"train": order[:CALTECH_TRAIN], "test": order[CALTECH_TRAIN:]}.items():
            rows[split] += [(f"{name}/{images[place]}", label) for place in sorted(places)]
    splits = {split: labelled(root, part, split=split, classes=classes) for split, part in rows.items()}
    return Contents(classes, {**splits})


def read_pickled(root: Path) -> Contents:
    """CIFAR's Python version, which is refused."""
    raise ValueError(
        f"{root} holds CIFAR's Python version, a pickle, and nothing is unpickled here. Get the binary "
        "version from the same page, or class folders train/CLASS and test/CLASS."
    )
