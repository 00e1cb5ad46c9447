"""Images with masks or depth maps of anyone."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.data import hostile
from tests.probes.datasets.trees import SIZE, write_image, write_json, write_map, write_text
from veca.backbones import Task
from veca.probes.datasets import open_dataset
from veca.probes.datasets.splits import IGNORED
from veca_data.sample import make_sample
from veca_data.scenes import CLASSES

LAYOUTS = [
    ("{split}/images", "{split}/masks"),
    ("images/{split}", "masks/{split}"),
    ("images/{split}", "semantic/{split}"),
]


def write_pairs(
    root: Path, layout: tuple[str, str] = LAYOUTS[0], *, values: tuple[int, ...] = (0, 1, 255), bits: int = 8
) -> None:
    for split in ("train", "val"):
        for name in ("b", "deep/a"):
            write_image(root / layout[0].format(split=split) / f"{name}.jpg")
            write_map(root / layout[1].format(split=split) / f"{name}.png", values, bits=bits)


def columns(root: Path, task: Task, number: int) -> list[object]:
    target = np.asarray(open_dataset(str(root), task=task).splits["val"][0].target)
    assert target.shape == (SIZE[1], SIZE[0])
    return target[0, :number].tolist()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_and_class_files(layout: tuple[str, str], tmp_path: Path) -> None:
    write_pairs(tmp_path, layout)
    write_text(tmp_path / "classes.txt", ["sky", "road"])
    dataset = open_dataset(str(tmp_path), task="segment")
    assert dataset.classes == ["sky", "road"]
    assert {split: len(items) for split, items in dataset.splits.items()} == {"train": 2, "val": 2}
    assert [dataset.splits["val"][place].name for place in range(2)] == ["b.jpg", "deep/a.jpg"]
    assert columns(tmp_path, "segment", 3) == [0, 1, IGNORED]


def test_ids_with_gaps_become_classes(tmp_path: Path) -> None:
    write_pairs(tmp_path, values=(7, 30, 255))
    write_json(tmp_path / "classes.json", {"road": 30, "sky": 7})
    assert open_dataset(str(tmp_path), task="segment").classes == ["sky", "road"]
    assert columns(tmp_path, "segment", 3) == [0, 1, IGNORED]
    write_map(tmp_path / "val/masks/b.png", [8])
    with pytest.raises(ValueError, match=r"val/masks/b\.png has unknown ids: 8; known are 3 from 7 to 255"):
        columns(tmp_path, "segment", 1)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"sky": "0"}, "must map class names to ids from 0 to 254"),
        ({"sky": 255}, "must map class names to ids from 0 to 254"),
        ({"sky": 1, "road": 1}, "gives two classes the same id"),
        ([1], "must hold a JSON object"),
    ],
)
def test_bad_class_files(body: object, message: str, tmp_path: Path) -> None:
    write_pairs(tmp_path)
    write_json(tmp_path / "classes.json", body)
    with pytest.raises(ValueError, match=message):
        open_dataset(str(tmp_path), task="segment")


def test_masks_without_class_names(tmp_path: Path) -> None:
    write_pairs(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"has neither classes\.json, as .* nor classes\.txt"):
        open_dataset(str(tmp_path), task="segment")
    write_text(tmp_path / "classes.txt", ["sky", "sky"])
    with pytest.raises(ValueError, match=r"classes\.txt has a name twice: sky"):
        open_dataset(str(tmp_path), task="segment")


def test_image_without_partner(tmp_path: Path) -> None:
    write_pairs(tmp_path)
    write_text(tmp_path / "classes.txt", ["sky", "road"])
    (tmp_path / "val/masks/b.png").rename(tmp_path / "val/masks/c.png")
    with pytest.raises(ValueError, match="2 and 2 are there, and without partner: b, c"):
        open_dataset(str(tmp_path), task="segment")


def test_two_images_of_one_name(tmp_path: Path) -> None:
    write_pairs(tmp_path)
    write_text(tmp_path / "classes.txt", ["sky", "road"])
    write_image(tmp_path / "val/images/b.png")
    with pytest.raises(ValueError, match="val/images has a name twice: b"):
        open_dataset(str(tmp_path), task="segment")


def test_mask_in_colours(tmp_path: Path) -> None:
    write_pairs(tmp_path)
    write_text(tmp_path / "classes.txt", ["sky", "road"])
    write_image(tmp_path / "val/masks/b.png")
    with pytest.raises(ValueError, match=r"b\.png has mode RGB; a mask or depth map has one channel"):
        columns(tmp_path, "segment", 1)


def test_no_pairs_at_all(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    with pytest.raises(
        FileNotFoundError, match=r"must hold train/images with train/depths.*there is: photos"
    ):
        open_dataset(str(tmp_path), task="depth")


def test_sixteen_bits_are_millimetres(tmp_path: Path) -> None:
    write_pairs(tmp_path, ("{split}/images", "{split}/depths"), values=(0, 1500), bits=16)
    assert columns(tmp_path, "depth", 2) == pytest.approx([0, 1.5])
    assert open_dataset(str(tmp_path), task="depth").max_depth is None


def test_eight_bits_need_a_unit(tmp_path: Path) -> None:
    write_pairs(tmp_path, ("{split}/images", "{split}/depths"), values=(0, 51))
    with pytest.raises(ValueError, match=r"whose unit only you know. Write it into .*depth\.json.*NYUv2:"):
        open_dataset(str(tmp_path), task="depth")
    write_json(tmp_path / "depth.json", {"metres_per_unit": 0.1, "max_depth": 5})
    assert columns(tmp_path, "depth", 2) == pytest.approx([0, 5.1])
    assert open_dataset(str(tmp_path), task="depth").max_depth == 5
    write_json(tmp_path / "depth.json", {"metres_per_unit": 0})
    with pytest.raises(ValueError, match=r"depth\.json must hold metres_per_unit"):
        open_dataset(str(tmp_path), task="depth")


def test_arrays_are_metres(tmp_path: Path) -> None:
    for split in ("train", "val"):
        write_image(tmp_path / f"images/{split}/a.jpg")
        (tmp_path / f"depth/{split}").mkdir(parents=True)
        depth = np.full((SIZE[1], SIZE[0]), 2.5)
        depth[:, :2] = np.nan, np.inf
        np.save(tmp_path / f"depth/{split}/a.npy", depth)
    assert columns(tmp_path, "depth", 3) == [0, 0, 2.5]
    np.save(tmp_path / "depth/val/a.npy", np.zeros((3, 4, 1)))
    with pytest.raises(ValueError, match=r"must hold one number per pixel; got float64 \(3, 4, 1\)"):
        columns(tmp_path, "depth", 1)


def test_pickled_array_is_refused(tmp_path: Path) -> None:
    for split in ("train", "val"):
        write_image(tmp_path / f"images/{split}/a.jpg")
        (tmp_path / f"depth/{split}").mkdir(parents=True)
        np.save(tmp_path / f"depth/{split}/a.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match=r"a\.npy is not an intact \.npy file .*Python objects"):
        columns(tmp_path, "depth", 1)


def test_sample_set_serves_every_task(tmp_path: Path) -> None:
    make_sample(tmp_path / "s", count=2 * len(CLASSES), size=32, val_share=0.5, workers=1)
    labels = open_dataset(str(tmp_path / "s"), task="classify")
    masks = open_dataset(str(tmp_path / "s"), task="segment")
    depths = open_dataset(str(tmp_path / "s"), task="depth")
    assert masks.classes == ["background", *CLASSES]
    for dataset in (labels, masks, depths):
        assert {split: len(items) for split, items in dataset.splits.items()} == dict.fromkeys(
            ("train", "val"), len(CLASSES)
        )
    item, mask, depth = (dataset.splits["val"][3] for dataset in (labels, masks, depths))
    assert item.image == mask.image == depth.image
    assert masks.classes.index(labels.classes[int(np.asarray(item.target))]) in np.asarray(mask.target)
    name = mask.name.removesuffix(".jpg")
    stored = np.asarray(Image.open(tmp_path / f"s/depth/val/{name}.png"))
    np.testing.assert_allclose(np.asarray(depth.target), stored / 1000, rtol=1e-6)
    assert 0.5 < float(np.median(stored / 1000)) < 50


@pytest.mark.parametrize("task", ["segment", "depth"])
def test_small_real_sets(shared_data: Path, task: Task) -> None:
    name, counts = {"segment": ("camvid", (40, 20)), "depth": ("nyuv2", (60, 30))}[task]
    dataset = open_dataset(f"{name}:{shared_data / name}", task=task)
    assert (len(dataset.splits["train"]), len(dataset.splits["test"])) == counts
    target = np.asarray(dataset.splits["test"][0].target)
    if task == "segment":
        assert set(np.unique(target)) <= {*range(11), IGNORED}
    else:
        assert 1 < float(np.median(target)) < 10


@pytest.mark.parametrize("kind", hostile.SPECIAL)
@pytest.mark.parametrize("place", ["train/images/b.jpg", "train/masks/b.png"])
def test_what_is_no_regular_file_is_named_when_it_is_read(tmp_path: Path, place: str, kind: str) -> None:
    write_pairs(tmp_path)
    write_text(tmp_path / "classes.txt", "sky\nroad")
    (tmp_path / place).unlink()
    what, make = hostile.SPECIAL[kind]
    make(tmp_path / place)
    with hostile.bounds():
        train = open_dataset(str(tmp_path), task="segment").splits["train"]
        with pytest.raises(ValueError, match=rf"{place}: not-a-file: it is {what}"):
            train[0]


def test_equal_masks_may_be_links_to_one_file(tmp_path: Path) -> None:
    """As in a cache of downloads, which keeps equal files once."""
    write_pairs(tmp_path)
    write_text(tmp_path / "classes.txt", "sky\nroad")
    for split in ("train", "val"):
        masks = tmp_path / split / "masks"
        (masks / "b.png").rename(tmp_path / split / "blob")
        (masks / "deep/a.png").unlink()
        for name in ("b.png", "deep/a.png"):
            (masks / name).symlink_to(tmp_path / split / "blob")
    assert len(open_dataset(str(tmp_path), task="segment").splits["train"]) == 2


@pytest.mark.parametrize("shape", [(2**40,), (10**6, 10**6), (-5, 5)])
def test_an_array_that_claims_more_than_it_has_is_named(tmp_path: Path, shape: tuple[int, ...]) -> None:
    for split in ("train", "val"):
        write_image(tmp_path / f"images/{split}/a.jpg")
        (tmp_path / f"depth/{split}").mkdir(parents=True)
        with (tmp_path / f"depth/{split}/a.npy").open("wb") as file:
            np.lib.format.write_array_header_1_0(
                file, {"descr": "<f8", "fortran_order": False, "shape": shape}
            )
    with hostile.bounds(), pytest.raises(ValueError, match=r"a\.npy is not an intact \.npy file"):
        columns(tmp_path, "depth", 1)
