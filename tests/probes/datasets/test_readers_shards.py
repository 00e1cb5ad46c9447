"""Labels in WebDataset shards, in the ways that people write them."""

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.data import hostile
from tests.data.shards import tiny_jpeg, write_dataset
from tests.probes.datasets.trees import write_classes, write_text
from veca.probes.datasets import open_dataset
from veca_data.pack import make_shards

Members = dict[str, bytes]


def write_tar(path: Path, samples: list[Members]) -> None:
    """Sample n of the tar has the key `path stem / n`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for number, members in enumerate(samples):
            for kind, content in members.items():
                entry = tarfile.TarInfo(f"{path.stem}/{number:03d}.{kind}")
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))


def by_cls(number: int, label: int) -> Members:
    return {"cls": str(label).encode(), "jpg": tiny_jpeg(number)}


def by_json(number: int, **about: object) -> Members:
    return {"jpg": tiny_jpeg(number), "json": json.dumps(about).encode()}


def write_both(root: Path, samples: list[Members]) -> None:
    for split in ("train", "val"):
        write_tar(root / f"{split}-000000.tar", samples)


def labels_of(root: Path) -> tuple[list[str], list[object]]:
    dataset = open_dataset(str(root), task="classify")
    items = dataset.splits["val"]
    return dataset.classes, [items[place].target for place in range(len(items))]


def test_cls_members_over_several_shards(tmp_path: Path) -> None:
    write_tar(tmp_path / "train-000000.tar", [by_cls(0, 2), by_cls(1, 0)])
    write_tar(tmp_path / "train-000001.tar", [by_cls(2, 1)])
    write_tar(tmp_path / "test-0.tar", [by_cls(3, 0), by_cls(4, 1), by_cls(5, 2)])
    dataset = open_dataset(str(tmp_path), task="classify")
    assert dataset.classes == ["0", "1", "2"]
    assert [dataset.splits["train"][place].target for place in range(3)] == [2, 0, 1]
    assert [dataset.splits["train"][place].image for place in range(3)] == [tiny_jpeg(n) for n in range(3)]
    assert dataset.splits["train"][2].name == "train-000001.tar/train-000001/000"


def test_names_of_numbered_classes(tmp_path: Path) -> None:
    write_both(tmp_path, [by_cls(0, 1), by_cls(1, 0)])
    write_text(tmp_path / "classes.txt", ["cat", "dog"])
    assert labels_of(tmp_path) == (["cat", "dog"], [1, 0])
    write_text(tmp_path / "classes.txt", ["cat"])
    with pytest.raises(ValueError, match=r"classes\.txt lacks the classes 1"):
        labels_of(tmp_path)


@pytest.mark.parametrize("field", ["label", "cls"])
def test_labels_in_json(field: str, tmp_path: Path) -> None:
    write_both(tmp_path / "a", [by_json(0, **{field: "dog"}), by_json(1, **{field: "cat"})])
    assert labels_of(tmp_path / "a") == (["cat", "dog"], [1, 0])
    write_both(tmp_path / "b", [by_json(0, **{field: 1}), by_json(1, **{field: 0})])
    assert labels_of(tmp_path / "b") == (["0", "1"], [1, 0])


def test_our_shards_of_class_folders_are_labelled(tmp_path: Path) -> None:
    write_classes(tmp_path / "images", {"cat": 40, "dog": 40})
    make_shards(tmp_path / "images", tmp_path / "shards", val_share=0.3, workers=1)
    dataset = open_dataset(str(tmp_path / "shards"), task="classify")
    assert dataset.classes == ["cat", "dog"]
    assert sum(len(items) for items in dataset.splits.values()) == 80


def test_our_shards_without_folders_have_no_label(make_tiny_shards: Callable[..., Path]) -> None:
    with pytest.raises(ValueError, match=r"has no label: neither a \.cls, nor label or cls in its \.json"):
        open_dataset(str(make_tiny_shards([3], [2])), task="classify")


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ([by_cls(0, 0), by_json(1, label="dog")], "some labels are numbers and some are names: 0, dog"),
        ([{"jpg": tiny_jpeg(0), "cls": b"dog"}], "cls must hold a number; got b'dog'"),
        ([{"cls": b"0"}], r"sample .*000 must have one image; it has \['cls'\]"),
        ([by_cls(0, 0), by_cls(1, 2)], "1 classes have no image: 1"),
    ],
)
def test_bad_samples(samples: list[Members], message: str, tmp_path: Path) -> None:
    write_both(tmp_path, samples)
    with pytest.raises(ValueError, match=message):
        labels_of(tmp_path)


def test_the_classes_that_all_shards_have(tmp_path: Path) -> None:
    write_tar(tmp_path / "train-000000.tar", [by_cls(n, n) for n in range(3)])
    write_tar(tmp_path / "val-000000.tar", [by_cls(3, 2), by_cls(4, 0)])
    dataset = open_dataset(str(tmp_path), task="classify", classes="common")
    assert (dataset.classes, dataset.dropped) == (["0", "2"], ("1",))
    assert [(item.target, item.image) for item in map(dataset.splits["train"].__getitem__, range(2))] == [
        (0, tiny_jpeg(0)),
        (1, tiny_jpeg(2)),
    ]
    assert [dataset.splits["val"][place].target for place in range(2)] == [1, 0]


def test_held_out_shards_are_needed(tmp_path: Path) -> None:
    write_dataset(tmp_path, [2])
    (tmp_path / "train-000000.tar").unlink()
    write_tar(tmp_path / "train-000000.tar", [by_cls(0, 0)])
    with pytest.raises(FileNotFoundError, match=r"must hold train-\*\.tar and val-\*\.tar, or test"):
        open_dataset(str(tmp_path), task="classify")


@pytest.mark.parametrize("kind", hostile.TARS)
def test_damaged_tars_are_named(tmp_path: Path, kind: str) -> None:
    write_both(tmp_path, [by_cls(0, 0), by_cls(1, 1)])
    label = hostile.tar_file("a.cls", b"0")
    (tmp_path / "val-000000.tar").write_bytes(label + hostile.hostile_tar(kind, tiny_jpeg(0)))
    with hostile.bounds(), pytest.raises(ValueError, match=r"val-000000\.tar: damaged archive \("):
        open_dataset(str(tmp_path), task="classify")


@pytest.mark.parametrize("content", [b"[" * 10**5, b"7", b"{"])
def test_json_that_is_none_is_named(tmp_path: Path, content: bytes) -> None:
    write_both(tmp_path, [{"jpg": tiny_jpeg(0), "json": content}])
    with pytest.raises(ValueError, match=r"train-000000\.tar: .*000\.json (is not valid JSON|must hold)"):
        open_dataset(str(tmp_path), task="classify")
