"""What is wrong with data is said before work begins, and other data has another digest."""

import numpy as np
import pytest
import torch

from tests.probes.fakes import MemorySplit, coloured, label_items, map_items
from veca.backbones import Task
from veca.probes.datasets.splits import IGNORED, Dataset, Item, describe, scan_split

CLASSES = ["sky", "road", "car"]


def dataset(items: list[Item], task: Task = "segment", **options: float) -> Dataset:
    return Dataset("data", task, [] if task == "depth" else CLASSES, {"train": MemorySplit(items)}, **options)


def mask_item(target: np.ndarray, *, size: tuple[int, int] | None = None) -> Item:
    return Item("frame", coloured(np.zeros(size or target.shape), seed=0), target)


def test_masks_are_counted() -> None:
    mask = np.array([[0, 0, 1], [IGNORED, 1, 1]], dtype=np.uint8)
    scanned = scan_split(dataset([mask_item(mask), mask_item(mask)]), "train")
    assert scanned.counts == {"sky": 4, "road": 6, "car": 0, "(ignored)": 2}
    assert describe(scanned, "segment") == (
        "train: 2 images, 3 classes of 0–6 pixels, 2 pixels ignored; absent: car"
    )


def test_labels_are_counted_and_kept() -> None:
    data = dataset(label_items([2, 0, 2]).items, "classify")
    scanned = scan_split(data, "train")
    assert scanned.counts == {"sky": 1, "road": 0, "car": 2}
    assert scanned.targets is not None
    assert scanned.targets.tolist() == [2, 0, 2]


def test_the_digest_is_that_of_images_and_targets() -> None:
    items = map_items(3, num_classes=3, seed=0, size=(8, 8)).items
    first = scan_split(dataset(items), "train").digest
    assert scan_split(dataset(list(items)), "train").digest == first
    other = items[1].target.copy()
    other[0, 0] = (other[0, 0] + 1) % 3
    changed = [items[0], items[1]._replace(target=other), items[2]]
    assert scan_split(dataset(changed), "train").digest != first
    assert scan_split(dataset(items[::-1]), "train").digest != first


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (mask_item(np.zeros((4, 6), dtype=np.uint8), size=(8, 6)), "its mask has 6×4 pixels, the image 6×8"),
        (mask_item(np.full((4, 6), 7, dtype=np.uint8)), "mask has unknown ids 7; known are 0 to 2"),
    ],
)
def test_masks_that_do_not_fit(item: Item, message: str) -> None:
    good = mask_item(np.zeros((4, 4), dtype=np.uint8))
    with pytest.raises(ValueError, match="data, train: 1 of 2 items cannot be used: frame") as error:
        scan_split(dataset([good, item]), "train")
    assert message in str(error.value)


def test_labels_that_are_no_class() -> None:
    with pytest.raises(ValueError, match="label 3 is no class"):
        scan_split(dataset(label_items([0, 3]).items, "classify"), "train")
    wrong = Item("a", coloured(np.zeros((4, 4)), seed=0), np.array([0, 1], dtype=np.uint8))
    with pytest.raises(ValueError, match="labels must be 0, 1 or 255 for each of 3 classes"):
        scan_split(dataset([wrong], "multilabel"), "train")


def depth_item(metres: list[list[float]]) -> Item:
    target = np.array(metres, dtype=np.float32)
    return Item("frame", coloured(np.zeros(target.shape), seed=0), target)


def test_depth_is_summed_up() -> None:
    scan = scan_split(dataset([depth_item([[0, 2.0], [4.0, 3.0]])], "depth"), "train")
    assert scan.counts == {"measured": 3, "unmeasured": 1}
    assert (scan.mean_depth, scan.max_depth) == (3.0, 4.0)


@pytest.mark.parametrize(
    ("metres", "limit", "message"),
    [
        ([[1500.0, 2300.0]], None, "the median of 1900 looks like millimetres"),
        ([[55.0, 200.0]], 10.0, "looks like millimetres"),
        ([[0.001, 0.004]], 10.0, "looks like kilometres"),
        ([[0.0, 0.0]], None, "no pixel has a measured depth"),
        ([[-1.0, 2.0]], None, "negative or not finite"),
        ([[float("nan"), 2.0]], None, "negative or not finite"),
    ],
)
def test_depth_in_a_wrong_unit(metres: list[list[float]], limit: float | None, message: str) -> None:
    options = {} if limit is None else {"max_depth": limit}
    with pytest.raises(ValueError, match=message):
        scan_split(dataset([depth_item(metres)], "depth", **options), "train")


def test_unreadable_images_are_left_out_and_named(capsys: pytest.CaptureFixture[str]) -> None:
    items = label_items([0, 1, 2, 0]).items
    items[1] = Item("bad.png", items[1].image[:60], 1)
    scanned = scan_split(dataset(items, "classify"), "train")
    assert len(scanned.items) == 3
    assert scanned.items[1].name == items[2].name
    assert list(scanned.unreadable) == ["bad.png"]
    assert torch.equal(scanned.targets, torch.tensor([0, 2, 0]))
    assert "data, train: 1 of 4 images are unreadable and left out: bad.png (" in capsys.readouterr().out


def test_many_unreadable_images_stop() -> None:
    items = [Item(str(i), b"nothing", 0) for i in range(3)]
    with pytest.raises(ValueError, match="3 of 3 images are unreadable, more than 5%"):
        scan_split(dataset(items, "classify"), "train")


def test_nothing_to_read() -> None:
    with pytest.raises(ValueError, match="data, train: there are no images"):
        scan_split(dataset([], "classify"), "train")
