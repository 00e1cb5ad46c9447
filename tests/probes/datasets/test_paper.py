"""Every named dataset on a tiny tree of its real layout: splits, classes, labels, ids, what is missing."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from tests.probes.datasets.trees import (
    SIZE,
    shade,
    write_classes,
    write_image,
    write_json,
    write_map,
    write_text,
)
from veca.data.decode import decode
from veca.probes.datasets import ENTRIES, open_dataset
from veca.probes.datasets.names import CONTEXT_59, VOC
from veca.probes.types import IGNORED, Dataset

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


def open_named(name: str, root: Path) -> Dataset:
    return open_dataset(f"{name}:{root}", task=ENTRIES[name].task)


def targets(dataset: Dataset, split: str, number: int) -> list[object]:
    """The first targets of a split as plain values: labels, positive classes, or the columns of one map."""
    items = dataset.splits[split]
    if dataset.task in ("segment", "depth"):
        target = np.asarray(items[0].target)
        assert target.shape == (SIZE[1], SIZE[0])
        assert (target == target[0]).all()
        return target[0, :number].tolist()
    found = [items[place].target for place in range(number)]
    return [np.flatnonzero(row == 1).tolist() if isinstance(row, np.ndarray) else row for row in found]


def test_every_entry_is_tested() -> None:
    assert set(TREES) == set(ENTRIES)


@pytest.mark.parametrize("name", TREES)
def test_tree(name: str, tmp_path: Path) -> None:
    expected = TREES[name](tmp_path)
    dataset = open_named(name, tmp_path)
    assert (dataset.name, dataset.task) == (name, ENTRIES[name].task)
    assert {split: len(items) for split, items in dataset.splits.items()} == expected.sizes
    assert len(dataset.classes) == len(set(dataset.classes)) == expected.num_classes
    for split, firsts in expected.firsts.items():
        assert isinstance(firsts, list)
        assert targets(dataset, split, len(firsts)) == firsts
        assert decode(dataset.splits[split][0].image).ndim == 3
    names = {
        dataset.splits[split][place].name for split, size in expected.sizes.items() for place in range(size)
    }
    assert len(names) == sum(expected.sizes.values()) or ENTRIES[name].task in ("segment", "depth")


@pytest.mark.parametrize("name", TREES)
def test_missing_file_is_named_with_where_to_get_it(name: str, tmp_path: Path) -> None:
    expected = TREES[name](tmp_path)
    (tmp_path / expected.delete).rename(tmp_path / "elsewhere")
    with pytest.raises(FileNotFoundError) as error:
        open_named(name, tmp_path)
    message = str(error.value)
    assert message.startswith(f"{name}: ")
    assert ENTRIES[name].source in message
    assert ENTRIES[name].tree in message
    assert Path(expected.delete).name.split("_val_")[0] in message


@pytest.mark.parametrize("name", TREES)
def test_empty_folder(name: str, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=f"Get it from {ENTRIES[name].source[:10]}"):
        open_named(name, tmp_path / "nowhere")


def test_inner_folders_are_found_too(tmp_path: Path) -> None:
    voc12(tmp_path)
    for folder in ("", "VOCdevkit", "VOCdevkit/VOC2012"):
        assert len(open_named("VOC12", tmp_path / folder).splits["val"]) == 1


def test_names_may_be_spelt_loosely(tmp_path: Path) -> None:
    cifar10(tmp_path)
    assert open_dataset(f"cifar10:{tmp_path}", task="classify").name == "CIFAR-10"
    with pytest.raises(ValueError, match="there is no dataset called 'CIFAR-11'; known are IN1K, INv2"):
        open_dataset(f"CIFAR-11:{tmp_path}", task="classify")


def test_task_must_fit(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match="IN1K is a dataset to classify, not to segment; take VOC12, Context"
    ):
        open_dataset(f"IN1K:{tmp_path}", task="segment")
    voc07(tmp_path)
    assert open_dataset(f"VOC07:{tmp_path}", task="classify").task == "multilabel"


def test_voc07_difficult_objects_count_neither_way(tmp_path: Path) -> None:
    voc07(tmp_path)
    target = np.asarray(open_named("VOC07", tmp_path).splits["test"][20].target)
    assert (target[0], target[1], target[19]) == (IGNORED, 0, 1)


def test_real_counts_images_without_label(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    real(tmp_path)
    items = open_named("ReaL", tmp_path).splits["test"]
    assert [shade(items[place].image) for place in range(2)] == [50, 150]
    assert "real.json: 1 images have no label and do not count" in capsys.readouterr().out


def test_kaggle_imagenet(tmp_path: Path) -> None:
    data = tmp_path / "ILSVRC/Data/CLS-LOC"
    write_classes(data, {"train/n01": 1, "train/n02": 1}, end=".JPEG")
    lines = ["ImageId,PredictionString"]
    for number, wnid in ((1, "n02"), (2, "n01")):
        write_image(data / f"val/ILSVRC2012_val_{number:08d}.JPEG")
        lines.append(f"ILSVRC2012_val_{number:08d},{wnid} 85 1 499 272 ")
    write_text(tmp_path / "LOC_val_solution.csv", lines)
    dataset = open_named("IN1K", tmp_path)
    assert dataset.classes == ["0", "1"]
    assert targets(dataset, "val", 2) == [1, 0]


def test_heads_of_imagenet_fit_its_other_test_sets(tmp_path: Path) -> None:
    """Classes are called alike: by their number in the order of WordNet ids."""
    folders = {f"{split}/n{number:08d}": 1 for split in ("train", "val") for number in range(12)}
    write_classes(tmp_path / "in1k", folders)
    inv2(tmp_path / "inv2")
    names = open_named("IN1K", tmp_path / "in1k").classes
    assert names == open_named("INv2", tmp_path / "inv2").classes
    real(tmp_path / "real")
    assert names == open_named("ReaL", tmp_path / "real").classes[:12]


def test_cifar_pixels_and_forms(tmp_path: Path) -> None:
    cifar10(tmp_path)
    image = decode(open_named("CIFAR-10", tmp_path).splits["test"][1].image)
    assert image.shape == (32, 32, 3)
    assert image[1, 2].tolist() == [10, 20, 30]
    write_classes(tmp_path / "tree", {"train/cat": 1, "test/cat": 1})
    assert open_named("CIFAR-10", tmp_path / "tree").classes == ["cat"]
    (tmp_path / "py/cifar-10-batches-py").mkdir(parents=True)
    (tmp_path / "py/cifar-10-batches-py/batches.meta").touch()
    with pytest.raises(ValueError, match="a pickle, and nothing is unpickled here"):
        open_named("CIFAR-10", tmp_path / "py")


def test_cifar_truncated(tmp_path: Path) -> None:
    cifar100(tmp_path)
    path = tmp_path / "cifar-100-binary/test.bin"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"test\.bin is no whole number of records of 3074 bytes"):
        open_named("CIFAR-100", tmp_path)


def test_caltech_split_is_the_same_every_time_and_disjoint(tmp_path: Path) -> None:
    caltech(tmp_path)
    first, again = (open_named("Caltech101", tmp_path).splits for _ in range(2))
    names = [{split[place].name for place in range(len(split))} for split in first.values()]
    assert not names[0] & names[1]
    assert [again["test"][place].name for place in range(6)] == [
        first["test"][place].name for place in range(6)
    ]


def test_context_masks_in_pngs(tmp_path: Path) -> None:
    for split in ("train", "val"):
        write_text(tmp_path / f"ImageSets/SegmentationContext/{split}.txt", ["2008_1"])
    write_image(tmp_path / "JPEGImages/2008_1.jpg")
    write_map(tmp_path / "SegmentationClassContext/2008_1.png", [0, 59])
    dataset = open_named("Context-60", tmp_path)
    assert dataset.classes[1] == "aeroplane"
    assert targets(dataset, "val", 2) == [0, 59]


@pytest.mark.parametrize(("bits", "values"), [(8, [51, 255]), (16, [2000, 10000])])
def test_nyu_folders(tmp_path: Path, bits: int, values: list[int]) -> None:
    for split in ("train", "test"):
        write_image(tmp_path / split / "images/1.jpg")
        write_map(tmp_path / split / "depths/1.png", values, bits=bits)
    dataset = open_named("NYUv2", tmp_path)
    assert dataset.max_depth == 10
    assert targets(dataset, "test", 2) == pytest.approx([2, 10])


def test_nyu_scenes(tmp_path: Path) -> None:
    for split in ("train", "test"):
        write_image(tmp_path / f"official_splits/{split}/kitchen/rgb_00045.jpg")
        write_map(tmp_path / f"official_splits/{split}/kitchen/sync_depth_00045.png", [0, 2500], bits=16)
    dataset = open_named("NYUv2", tmp_path)
    assert targets(dataset, "test", 2) == pytest.approx([0, 2.5])
    (tmp_path / "official_splits/test/kitchen/sync_depth_00045.png").unlink()
    with pytest.raises(FileNotFoundError, match=r"1 of 1 images of test .*: kitchen/sync_depth_00045\.png"):
        open_named("NYUv2", tmp_path)


def test_kitti_eigen_split(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kitti(tmp_path)
    drive = "2011_09_26_drive_0001_sync"
    depth, image = f"{drive}/proj_depth/groundtruth/image_02", f"2011_09_26/{drive}/image_02/data"
    train = [f"{image}/0000000005.png {depth}/0000000005.png 721.5", f"{image}/0000000007.png None 721.5"]
    write_text(tmp_path / "eigen_train_files_with_gt.txt", train)
    line = f"{image}/0000000006.png {depth}/0000000006.png 721.5"
    write_text(tmp_path / "eigen_test_files_with_gt.txt", [line])
    dataset = open_named("KITTI", tmp_path)
    assert (dataset.max_depth, {split: len(items) for split, items in dataset.splits.items()}) == (
        80,
        {"train": 1, "test": 1},
    )
    assert targets(dataset, "test", 3) == [0, 1, 10]
    assert "1 images have no depth map and do not count" in capsys.readouterr().out


def test_unknown_id_is_named(tmp_path: Path) -> None:
    camvid(tmp_path)
    write_map(tmp_path / "testannot/0001.png", [0, 12, 31])
    items = open_named("CamVid", tmp_path).splits["test"]
    with pytest.raises(ValueError, match=r"testannot/0001\.png has unknown ids: 12, 31; known are 12 from 0"):
        items[0]


def test_coco_gap_is_no_class(tmp_path: Path) -> None:
    coco_stuff(tmp_path)
    write_map(tmp_path / "stuffthingmaps_trainval2017/val2017/000000000009.png", [11])
    with pytest.raises(ValueError, match="has unknown ids: 11"):
        open_named("COCO-Stuff", tmp_path).splits["val"][0]


def test_label_without_a_name(tmp_path: Path) -> None:
    places(tmp_path)
    write_text(tmp_path / "categories_places365.txt", ["/a/airfield 0"])
    with pytest.raises(ValueError, match="there is a label 1, but only 1 classes are named"):
        open_named("Places365", tmp_path)
    food(tmp_path)
    write_text(tmp_path / "food-101/meta/classes.txt", ["waffles", "soup"])
    with pytest.raises(
        ValueError, match=r"meta/train\.txt has classes that meta/classes\.txt lacks: apple_pie"
    ):
        open_named("Food101", tmp_path)


def test_matlab_files_need_scipy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "setid.mat").touch()
    (tmp_path / "imagelabels.mat").touch()
    monkeypatch.setitem(sys.modules, "scipy.io", None)
    with pytest.raises(
        ValueError, match=r'which scipy reads; it is not installed. Run `pip install "veca\[pro'
    ):
        open_named("Flowers", tmp_path)


def test_documentation_lists_every_entry() -> None:
    text = (Path(__file__).resolve().parents[3] / "docs" / "probe-datasets.md").read_text(encoding="utf-8")
    for entry in ENTRIES.values():
        row = f"| {entry.name} | {entry.task} | `{entry.tree}` | {entry.source} | {entry.terms} |"
        assert row in text, row


def test_real_needs_all_its_images(tmp_path: Path) -> None:
    real(tmp_path)
    (tmp_path / "real.json").write_text(json.dumps([[1], [2], [3], [4]]))
    with pytest.raises(FileNotFoundError, match=r"must hold the 4 images .* 3 are there"):
        open_named("ReaL", tmp_path)
