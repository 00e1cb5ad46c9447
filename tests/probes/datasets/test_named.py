"""Every named dataset on a tiny tree of its real layout: splits, classes, labels, ids, what is missing."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.probes.datasets.paper_trees import (
    TREES,
    caltech,
    camvid,
    cifar10,
    cifar100,
    coco_stuff,
    food,
    inv2,
    kitti,
    places,
    real,
    voc07,
    voc12,
)
from tests.probes.datasets.trees import (
    SIZE,
    shade,
    write_classes,
    write_image,
    write_map,
    write_text,
)
from veca.data.decode import decode
from veca.probes.datasets import ENTRIES, open_dataset
from veca.probes.datasets.splits import IGNORED, Dataset


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
