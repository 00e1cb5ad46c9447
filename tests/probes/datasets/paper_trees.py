"""Every named dataset as a tiny tree of its real layout, and what must be found in it."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from tests.probes.datasets.trees import (
    SIZE,
    write_classes,
    write_image,
    write_json,
    write_map,
    write_text,
)
from veca.probes.datasets import CONTEXT_59, VOC
from veca.probes.datasets.splits import IGNORED

ADE_HEADER = "Idx\tRatio\tTrain\tVal\tStuff\tName"


class Expected(NamedTuple):
    """What the tiny tree holds; `firsts` are labels of the first items, or the values of a mask's columns."""

    sizes: dict[str, int]
    num_classes: int
    firsts: dict[str, object]
    delete: str  # a file without which the error must name it


def in1k(root: Path) -> Expected:
    write_classes(root, {"train/n02": 2, "train/n01": 1, "val/n01": 1, "val/n02": 1}, end=".JPEG")
    return Expected({"train": 3, "val": 2}, 2, {"train": [0, 1, 1], "val": [0, 1]}, "val")


def inv2(root: Path) -> Expected:
    counts = {f"imagenetv2-matched-frequency-format-val/{number}": 1 for number in range(12)}
    write_classes(root, counts, end=".jpeg")
    return Expected({"test": 12}, 12, {"test": list(range(12))}, "imagenetv2-matched-frequency-format-val/0")


def real(root: Path) -> Expected:
    write_json(root / "real.json", [[3], [], [1, 999]])
    for number, wnid in ((1, "n02"), (2, "n01"), (3, "n01")):
        write_image(root / f"val/{wnid}/ILSVRC2012_val_{number:08d}.JPEG", 50 * number)
    return Expected({"test": 2}, 1000, {"test": [[3], [1, 999]]}, "val/n02/ILSVRC2012_val_00000001.JPEG")


def places(root: Path) -> Expected:
    write_text(root / "categories_places365.txt", ["/a/airfield 0", "/b/bar 1"])
    write_text(root / "places365_train_standard.txt", ["/b/bar/00000001.jpg 1", "/a/airfield/00000001.jpg 0"])
    write_text(root / "places365_val.txt", ["Places365_val_00000001.jpg 1", "Places365_val_00000002.jpg 0"])
    for name in ("data_256/a/airfield/00000001", "data_256/b/bar/00000001", "val_256/Places365_val_00000001"):
        write_image(root / f"{name}.jpg")
    write_image(root / "val_256/Places365_val_00000002.jpg")
    expected = {"train": [1, 0], "val": [1, 0]}
    return Expected({"train": 2, "val": 2}, 2, expected, "data_256/a/airfield/00000001.jpg")


def food(root: Path) -> Expected:
    top = root / "food-101"
    write_text(top / "meta/classes.txt", ["apple_pie", "waffles"])
    write_text(top / "meta/train.txt", ["apple_pie/10", "waffles/11", "waffles/12"])
    write_text(top / "meta/test.txt", ["waffles/13", "apple_pie/14"])
    for name in ("apple_pie/10", "waffles/11", "waffles/12", "waffles/13", "apple_pie/14"):
        write_image(top / f"images/{name}.jpg")
    expected = {"train": [0, 1, 1], "test": [1, 0]}
    return Expected({"train": 3, "test": 2}, 2, expected, "food-101/images/waffles/13.jpg")


def cifar10(root: Path) -> Expected:
    return _cifar(root / "cifar-10-batches-bin", [f"data_batch_{n}.bin" for n in range(1, 6)], b"")


def cifar100(root: Path) -> Expected:
    return _cifar(root / "cifar-100-binary", ["train.bin"] * 1, b"\x09")


def _cifar(root: Path, train: list[str], coarse: bytes) -> Expected:
    """Two records per file, of classes 0 and 1; the pixel at row 1, column 2 is (10, 20, 30)."""
    pixels = np.zeros((3, 32, 32), dtype=np.uint8)
    pixels[:, 1, 2] = 10, 20, 30
    names, test = ("fine_label_names.txt", "test.bin") if coarse else ("batches.meta.txt", "test_batch.bin")
    write_text(root / names, ["apple", "bear"])
    for name in (*train, test):
        (root / name).write_bytes(b"".join(coarse + bytes([label]) + pixels.tobytes() for label in (0, 1)))
    expected = {"train": [0, 1] * len(train), "test": [0, 1]}
    return Expected({"train": 2 * len(train), "test": 2}, 2, expected, f"{root.name}/{test}")


def sun(root: Path) -> Expected:
    top = root / "SUN397"
    write_text(top / "ClassName.txt", ["/a/abbey", "/b/bar/indoor"])
    write_text(top / "Training_01.txt", ["/a/abbey/sun_1.jpg", "/b/bar/indoor/sun_2.jpg"])
    write_text(top / "Testing_01.txt", ["/b/bar/indoor/sun_3.jpg", "/a/abbey/sun_4.jpg"])
    for name in ("a/abbey/sun_1", "b/bar/indoor/sun_2", "b/bar/indoor/sun_3", "a/abbey/sun_4"):
        write_image(top / f"{name}.jpg")
    expected = {"train": [0, 1], "test": [1, 0]}
    return Expected({"train": 2, "test": 2}, 2, expected, "SUN397/Testing_01.txt")


def cars(root: Path) -> Expected:
    savemat = pytest.importorskip("scipy.io").savemat
    (root / "devkit").mkdir()
    names = np.array(["AM General Hummer", "Acura RL"], dtype=object)
    savemat(root / "devkit/cars_meta.mat", {"class_names": names})
    files = {"train": "devkit/cars_train_annos.mat", "test": "cars_test_annos_withlabels.mat"}
    for split, name in files.items():
        kind = [("bbox_x1", "O"), ("class", "O"), ("fname", "O")]
        rows = np.array([(1, 2, "00001.jpg"), (1, 1, "00002.jpg")], dtype=kind)
        savemat(root / name, {"annotations": rows})
        for number in (1, 2):
            write_image(root / f"cars_{split}/{number:05d}.jpg")
    expected = {"train": [1, 0], "test": [1, 0]}
    return Expected({"train": 2, "test": 2}, 2, expected, "cars_test_annos_withlabels.mat")


def aircraft(root: Path) -> Expected:
    top = root / "fgvc-aircraft-2013b/data"
    write_text(top / "variants.txt", ["707-320", "Model B200", "F/A-18"])
    for place, split in enumerate(("train", "val", "test")):
        lines = [f"{place}1 Model B200", f"{place}2 707-320", f"{place}3 F/A-18"]
        write_text(top / f"images_variant_{split}.txt", lines)
        for number in (1, 2, 3):
            write_image(top / f"images/{place}{number}.jpg")
    expected = {key: [1, 0, 2] for key in ("train", "val", "test")}
    sizes = dict.fromkeys(expected, 3)
    return Expected(sizes, 3, {**expected}, "fgvc-aircraft-2013b/data/images/21.jpg")


def voc07(root: Path) -> Expected:
    """Image n shows class n; the last image is difficult for the first class and shows the last one."""
    top = root / "VOCdevkit/VOC2007"
    for split in ("train", "val", "test"):
        for label, name in enumerate(VOC):
            marks = [1 if number == label else -1 for number in range(20)]
            marks.append(0 if label == 0 else 1 if label == 19 else -1)
            lines = [f"{split}{number:02d} {mark:2d}" for number, mark in enumerate(marks)]
            write_text(top / f"ImageSets/Main/{name}_{split}.txt", lines)
        for number in range(21):
            write_image(top / f"JPEGImages/{split}{number:02d}.jpg")
    firsts: dict[str, object] = {split: [[0], [1]] for split in ("train", "val", "test")}
    return Expected(dict.fromkeys(firsts, 21), 20, firsts, "VOCdevkit/VOC2007/ImageSets/Main/dog_val.txt")


def dtd(root: Path) -> Expected:
    for split in ("train", "val", "test"):
        names = [f"banded/banded_{split}.jpg", f"woven/woven_{split}.jpg"]
        write_text(root / f"dtd/labels/{split}1.txt", names)
        for name in names:
            write_image(root / "dtd/images" / name)
    expected: dict[str, object] = {split: [0, 1] for split in ("train", "val", "test")}
    return Expected(dict.fromkeys(expected, 2), 2, expected, "dtd/labels/val1.txt")


def caltech(root: Path) -> Expected:
    counts = {f"101_ObjectCategories/{name}": 33 for name in ("BACKGROUND_Google", "accordion", "brain")}
    write_classes(root / "caltech-101", counts)
    expected = {"train": [0] * 30 + [1] * 30, "test": [0] * 3 + [1] * 3}
    sizes = {"train": 60, "test": 6}
    return Expected(sizes, 2, {**expected}, "caltech-101/101_ObjectCategories/accordion")


def pets(root: Path) -> Expected:
    parts = {"trainval": ("Egyptian_Mau_1", "pug_2"), "test": ("pug_3", "Egyptian_Mau_4")}
    for split, names in parts.items():
        write_text(root / f"annotations/{split}.txt", [f"{name} 1 1 1" for name in names])
        for name in names:
            write_image(root / f"images/{name}.jpg")
    expected = {"train": [0, 1], "test": [1, 0]}
    return Expected({"train": 2, "test": 2}, 2, {**expected}, "images/pug_3.jpg")


def cub(root: Path) -> Expected:
    top = root / "CUB_200_2011"
    images = ["001.Albatross/a.jpg", "001.Albatross/b.jpg", "002.Gull/c.jpg", "002.Gull/d.jpg"]
    write_text(top / "images.txt", [f"{n} {name}" for n, name in enumerate(images, start=1)])
    write_text(top / "image_class_labels.txt", ["1 1", "2 1", "3 2", "4 2"])
    write_text(top / "train_test_split.txt", ["1 0", "2 1", "3 1", "4 0"])
    write_text(top / "classes.txt", ["1 001.Albatross", "2 002.Gull"])
    for name in images:
        write_image(top / "images" / name)
    expected = {"train": [0, 1], "test": [0, 1]}
    return Expected({"train": 2, "test": 2}, 2, {**expected}, "CUB_200_2011/classes.txt")


def flowers(root: Path) -> Expected:
    savemat = pytest.importorskip("scipy.io").savemat
    savemat(root / "imagelabels.mat", {"labels": np.array([[2, 1, 1, 2, 1, 2]], dtype=np.uint8)})
    parts = {"trnid": [[1, 2]], "valid": [[3, 4]], "tstid": [[6, 5]]}
    savemat(root / "setid.mat", {name: np.array(ids, dtype=np.uint16) for name, ids in parts.items()})
    for number in range(1, 7):
        write_image(root / f"jpg/image_{number:05d}.jpg")
    expected = {"train": [1, 0], "val": [0, 1], "test": [1, 0]}
    return Expected(dict.fromkeys(expected, 2), 2, {**expected}, "jpg/image_00006.jpg")


def voc12(root: Path) -> Expected:
    top = root / "VOCdevkit/VOC2012"
    for split in ("train", "val"):
        write_text(top / f"ImageSets/Segmentation/{split}.txt", [f"2007_{split}"])
        write_image(top / f"JPEGImages/2007_{split}.jpg")
        write_map(top / f"SegmentationClass/2007_{split}.png", [0, 20, 255], palette=True)
    expected: dict[str, object] = {key: [0, 20, IGNORED] for key in ("train", "val")}
    return Expected(dict.fromkeys(expected, 1), 21, expected, "VOCdevkit/VOC2012/JPEGImages/2007_val.jpg")


def context(root: Path) -> Expected:
    savemat = pytest.importorskip("scipy.io").savemat
    top = root / "VOCdevkit/VOC2010"
    names = ["accordion", *CONTEXT_59]
    write_text(top / "labels.txt", [f"{number}: {name}" for number, name in enumerate(names, start=1)])
    (top / "trainval").mkdir()
    row = np.resize(np.array([0, 1, 2, 60], dtype=np.uint16), SIZE[0])
    for split in ("train", "val"):
        write_text(top / f"ImageSets/Main/{split}.txt", [f"2008_{split}"])
        write_image(top / f"JPEGImages/2008_{split}.jpg")
        savemat(top / f"trainval/2008_{split}.mat", {"LabelMap": np.tile(row, (SIZE[1], 1))})
    expected: dict[str, object] = {key: [0, 0, 1, 59] for key in ("train", "val")}
    return Expected(dict.fromkeys(expected, 1), 60, expected, "VOCdevkit/VOC2010/trainval/2008_val.mat")


def ade(root: Path) -> Expected:
    top = root / "ADEChallengeData2016"
    lines = [f"{n}\t0.1\t1\t1\t0\tclass {n}, other name" for n in range(1, 151)]
    write_text(top / "objectInfo150.txt", [ADE_HEADER, *lines])
    for split in ("training", "validation"):
        write_image(top / f"images/{split}/ADE_1.jpg")
        write_map(top / f"annotations/{split}/ADE_1.png", [0, 1, 150])
    expected: dict[str, object] = {key: [IGNORED, 0, 149] for key in ("train", "val")}
    return Expected(dict.fromkeys(expected, 1), 150, expected, "ADEChallengeData2016/objectInfo150.txt")


def coco(root: Path, firsts: list[int], num_classes: int) -> Expected:
    for split in ("train2017", "val2017"):
        write_image(root / split / "000000000009.jpg")
        write_map(root / f"stuffthingmaps_trainval2017/{split}/000000000009.png", [0, 12, 89, 91, 181, 255])
    expected: dict[str, object] = dict.fromkeys(("train", "val"), firsts)
    sizes = dict.fromkeys(expected, 1)
    return Expected(sizes, num_classes, expected, "stuffthingmaps_trainval2017/val2017")


def coco_stuff(root: Path) -> Expected:
    return coco(root, [0, 11, 79, 80, 170, IGNORED], 171)


def coco_object(root: Path) -> Expected:
    return coco(root, [1, 12, 80, 0, 0, IGNORED], 81)


def cityscapes(root: Path) -> Expected:
    for split in ("train", "val"):
        write_image(root / f"leftImg8bit/{split}/ulm/ulm_0_leftImg8bit.png")
        write_map(root / f"gtFine/{split}/ulm/ulm_0_gtFine_labelIds.png", [0, 7, 26, 29, 33])
        write_map(root / f"gtFine/{split}/ulm/ulm_0_gtFine_instanceIds.png", [0])
    expected: dict[str, object] = {key: [IGNORED, 0, 13, IGNORED, 18] for key in ("train", "val")}
    return Expected(dict.fromkeys(expected, 1), 19, expected, "leftImg8bit/val")


def camvid(root: Path) -> Expected:
    for split in ("train", "test"):
        write_image(root / f"{split}/0001.png")
        write_map(root / f"{split}annot/0001.png", [0, 10, 11])
    expected: dict[str, object] = {key: [0, 10, IGNORED] for key in ("train", "test")}
    return Expected(dict.fromkeys(expected, 1), 11, expected, "testannot")


def nyu(root: Path) -> Expected:
    """Three frames in the axes of h5py, (frame, channel, column, row); the second is for testing."""
    h5py, savemat = pytest.importorskip("h5py"), pytest.importorskip("scipy.io").savemat
    savemat(root / "splits.mat", {"trainNdxs": np.array([[1], [3]]), "testNdxs": np.array([[2]])})
    width, height = SIZE
    with h5py.File(root / "nyu_depth_v2_labeled.mat", "w") as file:
        shades = np.array([10, 20, 30], dtype=np.uint8).reshape(3, 1, 1, 1)
        file["images"] = np.broadcast_to(shades, (3, 3, width, height))
        columns = np.resize(np.array([1.5, 9.0], dtype=np.float32), width)
        file["depths"] = np.broadcast_to(columns[:, None], (3, width, height))
    firsts: dict[str, object] = {"train": [1.5, 9.0], "test": [1.5, 9.0]}
    return Expected({"train": 2, "test": 1}, 0, firsts, "splits.mat")


def kitti(root: Path) -> Expected:
    drive = "2011_09_26_drive_0001_sync"
    for split, number in (("train", 5), ("val", 6)):
        name = f"{number:010d}.png"
        write_image(root / f"raw/2011_09_26/{drive}/image_02/data/{name}")
        folder = root / f"data_depth_annotated/{split}/{drive}/proj_depth/groundtruth/image_02"
        write_map(folder / name, [0, 256, 2560], bits=16)
    firsts: dict[str, object] = {key: [0.0, 1.0, 10.0] for key in ("train", "val")}
    missing = f"raw/2011_09_26/{drive}/image_02/data/0000000006.png"
    return Expected(dict.fromkeys(firsts, 1), 0, firsts, missing)


TREES: dict[str, Callable[[Path], Expected]] = {
    "IN1K": in1k,
    "INv2": inv2,
    "ReaL": real,
    "Places365": places,
    "Food101": food,
    "CIFAR-10": cifar10,
    "CIFAR-100": cifar100,
    "SUN397": sun,
    "Cars": cars,
    "Aircraft": aircraft,
    "VOC07": voc07,
    "DTD": dtd,
    "Caltech101": caltech,
    "Pets": pets,
    "CUB": cub,
    "Flowers": flowers,
    "VOC12": voc12,
    "Context-60": context,
    "ADE20K": ade,
    "COCO-Stuff": coco_stuff,
    "COCO-Object": coco_object,
    "Cityscapes": cityscapes,
    "CamVid": camvid,
    "NYUv2": nyu,
    "KITTI": kitti,
}
