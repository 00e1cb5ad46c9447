"""Class folders: what is found, what is refused, and that nothing goes missing without a word."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from veca import preprocess
from veca.data.pixels import normalise
from veca.probes.folders import read_folders, read_view

Make = Callable[..., Path]


def test_labels_follow_sorted_class_names(make_folders: Make) -> None:
    folders = read_folders(make_folders(train=2, val=1))
    assert folders.train.classes == folders.held_out.classes == ["blue", "green", "red"]
    assert folders.train.labels == [0, 0, 1, 1, 2, 2]
    assert [path.parent.name for path in folders.held_out.paths] == ["blue", "green", "red"]


def test_images_subfolder_and_val_before_test(make_folders: Make, tmp_path: Path) -> None:
    data = make_folders(train=1, val=2, test=3)
    shutil.copytree(data, tmp_path / "set" / "images")
    for root in (data, tmp_path / "set"):
        held_out = read_folders(root).held_out
        assert (held_out.split, len(held_out.paths)) == ("val", 6)


def test_view_is_the_validation_view(make_folders: Make) -> None:
    path = make_folders(train=1, val=1) / "train" / "red" / "0.png"
    view = torch.from_numpy(np.array(read_view(path, 32)))[None]
    torch.testing.assert_close(normalise(view), preprocess(path, resolution=32))


def test_missing_splits(tmp_path: Path) -> None:
    (tmp_path / "training").mkdir()
    for data, found in ((tmp_path, "['training']"), (tmp_path / "no", "no such folder")):
        with pytest.raises(FileNotFoundError) as error:
            read_folders(data)
        assert found in str(error.value)
        assert "DATA/train/CLASS/*.jpg" in str(error.value)


def test_classes_that_differ(make_folders: Make) -> None:
    data = make_folders(train=1, val=1)
    (data / "val" / "red").rename(data / "val" / "rde")
    with pytest.raises(ValueError, match="only in train: red; only in val: rde"):
        read_folders(data)


def test_empty_class(make_folders: Make) -> None:
    data = make_folders(train=1, val=1)
    (data / "val" / "red" / "0.png").rename(data / "val" / "red" / "0.txt")
    with pytest.raises(ValueError, match="classes without an image in val: red"):
        read_folders(data)


def test_one_unreadable_image_is_named_and_counted(
    make_folders: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    data = make_folders(train=3, val=1)
    bad = data / "train" / "green" / "1.png"
    bad.write_bytes(bad.read_bytes()[:200])
    folders = read_folders(data)
    assert folders.train.counts() == {"blue": 3, "green": 2, "red": 3}
    assert list(folders.unreadable) == [str(bad)]
    printed = capsys.readouterr().out
    assert f"1 of 12 images are unreadable and left out: {bad} (truncated" in printed


def test_many_unreadable_images_stop(make_folders: Make) -> None:
    data = make_folders(train=3, val=1)
    for name in ("0.png", "1.png"):
        (data / "train" / "red" / name).write_bytes(b"nothing")
    with pytest.raises(ValueError, match="2 of 12 images are unreadable, more than 5%"):
        read_folders(data)


def test_class_of_unreadable_images_stops(make_folders: Make) -> None:
    data = make_folders(train=1, val=1)
    (data / "train" / "red" / "0.png").write_bytes(b"nothing")
    with pytest.raises(ValueError, match="the readable images: classes without an image in train: red"):
        read_folders(data)


def test_other_files_are_counted(make_folders: Make, capsys: pytest.CaptureFixture[str]) -> None:
    data = make_folders(train=1, val=1)
    (data / "train" / "notes.txt").write_text("")
    (data / "train" / "red" / "labels.csv").write_text("")
    assert len(read_folders(data).train.paths) == 3
    assert "train: 2 entries are no image files of a class folder and are ignored" in capsys.readouterr().out


def test_view_of_a_bad_file_names_it(tmp_path: Path) -> None:
    (tmp_path / "bad.jpg").write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"bad\.jpg: not-an-image"):
        read_view(tmp_path / "bad.jpg", 32)
