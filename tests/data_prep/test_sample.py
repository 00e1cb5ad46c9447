import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from veca_data.sample import FINISHED_NAME, STARTED_NAME, VAL_SHARE, make_sample
from veca_data.scenes import CLASSES

SETTINGS: dict[str, Any] = {"count": 30, "size": 32, "seed": 4}
KINDS = ("images", "semantic", "instances", "depth")


def _content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _read(path: Path) -> NDArray[Any]:
    with Image.open(path) as picture:
        return np.array(picture)


def _times(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*.*")}


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("sample") / "new" / "folder"
    make_sample(out, workers=1, **SETTINGS)
    return out


@pytest.fixture
def copy(sample: Path, tmp_path: Path) -> Path:
    out = tmp_path / "copy"
    for name, content in _content(sample).items():
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_bytes(content)
    return out


def test_files_are_complete_and_named_alike(sample: Path) -> None:
    names = {
        kind: {path.relative_to(sample / kind).with_suffix("") for path in (sample / kind).rglob("*.??g")}
        for kind in KINDS
    }
    assert len(names["images"]) == SETTINGS["count"]
    assert all(names[kind] == names["images"] for kind in KINDS)
    assert len(_content(sample)) == 4 * SETTINGS["count"] + 2, "nothing else may lie around"
    assert {path.parts[0] for path in names["images"]} == {"train", "val"}


def test_splits_and_classes_are_balanced(sample: Path) -> None:
    folders = [path.relative_to(sample / "images").parts for path in (sample / "images").rglob("*.jpg")]
    splits = Counter(split for split, _, _ in folders)
    assert splits == {"train": 24, "val": 6}
    assert Counter(name for _, name, _ in folders) == dict.fromkeys(CLASSES, 3)
    assert max(Counter(name for split, name, _ in folders if split == "val").values()) == 1


def test_written_masks_depth_and_label_agree(sample: Path) -> None:
    ids = json.loads((sample / "classes.json").read_text())
    assert ids == {"background": 0} | {name: number for number, name in enumerate(CLASSES, start=1)}
    for path in (sample / "images").rglob("*.jpg"):
        place = path.relative_to(sample / "images").with_suffix(".png")
        with Image.open(path) as picture:
            assert (picture.mode, picture.size) == ("RGB", (32, 32))
        semantic, instances, depth = (_read(sample / kind / place) for kind in KINDS[1:])
        assert semantic.dtype == instances.dtype == np.uint8
        assert depth.dtype == np.uint16
        assert semantic.shape == instances.shape == depth.shape == (32, 32)
        assert depth.min() > 200
        assert depth.max() < 20_000
        assert Counter(instances[instances > 0].tolist()).most_common(1)[0][0] == 1
        assert set(semantic[instances == 1].tolist()) == {ids[path.parent.name]}
        pairs = set(zip(instances.ravel().tolist(), semantic.ravel().tolist(), strict=True))
        assert len(pairs) == len({number for number, _ in pairs})


def test_settings_are_recorded_last(sample: Path) -> None:
    assert json.loads((sample / FINISHED_NAME).read_text()) == {
        "format": "veca-sample",
        "version": 2,
        **SETTINGS,
        "val_share": VAL_SHARE,
    }
    newest = max(sample.rglob("*"), key=lambda path: path.stat().st_mtime_ns if path.is_file() else 0)
    assert newest.name == FINISHED_NAME


@pytest.mark.parametrize("workers", [2, 3])
def test_any_number_of_workers_gives_the_same_bytes(sample: Path, tmp_path: Path, workers: int) -> None:
    make_sample(tmp_path, workers=workers, **SETTINGS)
    assert _content(tmp_path) == _content(sample)


def test_another_seed_gives_other_pictures(sample: Path, tmp_path: Path) -> None:
    make_sample(tmp_path, workers=1, **SETTINGS | {"seed": 5, "count": 3})
    assert all(
        path.read_bytes() != next(sample.rglob(path.name)).read_bytes() for path in tmp_path.rglob("*.jpg")
    )


def test_a_finished_sample_is_left_alone(copy: Path) -> None:
    before = _times(copy)
    make_sample(copy, **SETTINGS)
    assert _times(copy) == before


def test_an_interrupted_sample_is_completed(sample: Path, copy: Path) -> None:
    (copy / FINISHED_NAME).rename(copy / STARTED_NAME)
    (copy / "classes.json").unlink()
    missing = [*sorted((copy / "images").rglob("*.jpg"))[:5], *sorted((copy / "depth").rglob("*.png"))[-3:]]
    for path in missing:
        path.unlink()
    half = missing[0].with_name(f".{missing[0].name}.123.tmp")
    half.write_bytes(b"half")
    before = _times(copy / "images" / "train" / "cross")
    make_sample(copy, **SETTINGS)
    assert _content(copy) == _content(sample)
    assert _times(copy / "images" / "train" / "cross") == before


def test_a_killed_run_goes_on_where_it_stopped(sample: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    code = f"import pathlib, veca_data.sample as s; s.make_sample(pathlib.Path({str(out)!r}), workers=1, **"
    command = [sys.executable, "-c", f"{code}{SETTINGS!r})"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        while len(list(out.rglob("*.jpg"))) < 5:
            assert process.poll() is None, "ended too early"
            time.sleep(0.01)
        process.kill()
    before = _times(out)
    assert 5 <= len(before) < 4 * SETTINGS["count"]
    assert not (out / FINISHED_NAME).exists()
    make_sample(out, workers=1, **SETTINGS)
    assert _content(out) == _content(sample)
    remade = [path for path, when in _times(out).items() if before.get(path, when) != when]
    assert len(remade) < 4, "only the scene in the making is made again"


@pytest.mark.parametrize("change", [{"count": 31}, {"size": 64}, {"seed": 0}])
@pytest.mark.parametrize("marker", [FINISHED_NAME, STARTED_NAME])
def test_a_folder_of_other_settings_is_refused(copy: Path, change: dict[str, Any], marker: str) -> None:
    (copy / FINISHED_NAME).rename(copy / marker)
    before = _content(copy)
    key, value = next(iter(change.items()))
    message = rf"other settings: {key}={SETTINGS[key]} there, {value} now\. Choose another folder"
    with pytest.raises(ValueError, match=message):
        make_sample(copy, **SETTINGS | change)
    assert _content(copy) == before


def test_a_foreign_folder_a_file_and_a_damaged_marker_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(OSError, match=r"it is no folder. Choose another folder"):
        make_sample(tmp_path / "file", count=1)
    with pytest.raises(ValueError, match=r"not empty.*Choose an empty"):
        make_sample(tmp_path, count=1)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    for damage in ("{", "[]"):
        (tmp_path / FINISHED_NAME).write_text(damage)
        with pytest.raises(ValueError, match=r"is damaged.*Choose another folder"):
            make_sample(tmp_path, count=1)


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ({"count": 0}, r"count must be at least 1; got 0\. Try"),
        ({"size": 31}, r"size must be from 32 to 1024 pixels; got 31\. Try"),
        ({"size": 1025}, r"size must be from 32 to 1024 pixels; got 1025\. Try"),
        ({"seed": -1}, r"seed must not be negative; got -1\. Try"),
        ({"workers": 0}, r"workers must be at least 1; got 0\. Leave it out"),
    ],
)
def test_bad_arguments(tmp_path: Path, argument: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_sample(tmp_path / "out", **{"count": 1, "size": 32} | argument)
    assert not (tmp_path / "out").exists()


def test_all_bad_arguments_are_named_at_once(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"(?s)count.*size.*seed.*workers"):
        make_sample(tmp_path / "out", count=0, size=0, seed=-1, workers=0)
