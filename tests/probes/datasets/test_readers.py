"""Class folders of anyone: what is found, what is refused, and that nothing goes missing without a word."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.probes.datasets.trees import write_classes
from veca.probes.datasets import open_dataset
from veca.probes.datasets.splits import Dataset

Make = Callable[..., Path]


def labels(dataset: Dataset, split: str) -> list[object]:
    return [dataset.splits[split][place].target for place in range(len(dataset.splits[split]))]


def test_labels_follow_sorted_class_names(make_folders: Make) -> None:
    root = make_folders(train=2, val=1)
    dataset = open_dataset(str(root), task="classify")
    assert dataset.classes == ["blue", "green", "red"]
    assert labels(dataset, "train") == [0, 0, 1, 1, 2, 2]
    assert labels(dataset, "val") == [0, 1, 2]
    item = dataset.splits["train"][3]
    assert (item.name, item.image) == ("train/green/1.png", (root / "train/green/1.png").read_bytes())


def test_all_splits_are_given_and_images_may_lie_below(make_folders: Make, tmp_path: Path) -> None:
    data = make_folders(train=1, val=2, test=3)
    shutil.copytree(data, tmp_path / "set" / "images")
    for root in (data, tmp_path / "set"):
        splits = open_dataset(str(root), task="classify").splits
        assert {split: len(items) for split, items in splits.items()} == {"train": 3, "val": 6, "test": 9}


def test_images_in_folders_of_a_class(tmp_path: Path) -> None:
    write_classes(tmp_path, {"train/cat/old": 1, "train/cat": 1, "val/cat": 1})
    assert len(open_dataset(str(tmp_path), task="classify").splits["train"]) == 2


def test_opening_reads_no_image(tmp_path: Path) -> None:
    for split in ("train", "val"):
        (tmp_path / split / "cat").mkdir(parents=True)
        (tmp_path / split / "cat" / "a.jpg").symlink_to("/dev/null")
    with pytest.raises(FileNotFoundError, match=r"train/cat/a\.jpg"):  # a device is no file
        open_dataset(str(tmp_path), task="classify")
    for split in ("train", "val"):
        (tmp_path / split / "cat" / "a.jpg").unlink()
        (tmp_path / split / "cat" / "a.jpg").write_bytes(b"no image at all")
    assert open_dataset(str(tmp_path), task="classify").splits["val"][0].image == b"no image at all"


def test_missing_splits(tmp_path: Path) -> None:
    (tmp_path / "training").mkdir()
    for data, found in ((tmp_path, "has: training"), (tmp_path / "no", "has: no such folder")):
        with pytest.raises(FileNotFoundError) as error:
            open_dataset(str(data), task="classify")
        assert found in str(error.value)
        assert "DATA/train/CLASS/*.jpg" in str(error.value)
        assert "IN1K, INv2" in str(error.value)


def test_classes_that_differ(make_folders: Make) -> None:
    data = make_folders(train=1, val=1)
    (data / "val" / "red").rename(data / "val" / "rde")
    with pytest.raises(
        ValueError, match="train: 1 classes have no image: rde; val: 1 classes have no image: red"
    ):
        open_dataset(str(data), task="classify")


def test_the_classes_that_all_splits_have(make_folders: Make) -> None:
    data = make_folders(train=2, val=1)
    shutil.rmtree(data / "val" / "green")
    with pytest.raises(ValueError, match=r"val: 1 classes have no image: green.*--classes common"):
        open_dataset(str(data), task="classify")
    dataset = open_dataset(str(data), task="classify", classes="common")
    assert (dataset.classes, dataset.dropped) == (["blue", "red"], ("green",))
    assert labels(dataset, "train") == [0, 0, 1, 1]
    assert labels(dataset, "val") == [0, 1]
    item = dataset.splits["train"][2]
    assert (item.name, item.image) == ("train/red/0.png", (data / "train/red/0.png").read_bytes())
    shutil.rmtree(data / "val")
    write_classes(data, {"val/black": 1})
    with pytest.raises(ValueError, match="val: 3 classes have no image: blue, green, red"):
        open_dataset(str(data), task="classify", classes="common")


def test_empty_class(make_folders: Make) -> None:
    data = make_folders(train=1, val=1)
    (data / "val" / "red" / "0.png").rename(data / "val" / "red" / "0.txt")
    with pytest.raises(ValueError, match="val: 1 classes have no image: red"):
        open_dataset(str(data), task="classify")


def test_other_files_are_counted(make_folders: Make, capsys: pytest.CaptureFixture[str]) -> None:
    data = make_folders(train=1, val=1)
    (data / "train" / "notes.txt").write_text("")
    (data / "train" / "red" / "labels.csv").write_text("")
    assert len(open_dataset(str(data), task="classify").splits["train"]) == 3
    assert f"{data}/train: 2 files are no images of a class folder and are ignored" in capsys.readouterr().out


def test_several_labels_need_a_name(make_folders: Make) -> None:
    with pytest.raises(ValueError, match="several labels per image come from a named dataset, as VOC07:PATH"):
        open_dataset(str(make_folders(train=1, val=1)), task="multilabel")


def test_a_folder_with_a_colon_is_a_folder(tmp_path: Path) -> None:
    write_classes(tmp_path / "a:b", {"train/cat": 1, "test/cat": 1})
    assert open_dataset(str(tmp_path / "a:b"), task="classify").classes == ["cat"]
