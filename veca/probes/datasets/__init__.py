"""Datasets of the probes: folders of anyone, shards, and the paper's sets by name.

splits.py            items with their targets by place, read when asked for; one reading of them before work
readers.py           class folders, lists, records and shards; lists, files and classes are checked
pairs.py             images with a mask or a depth map each
special_readers.py   what only one owner does
named.toml           the named datasets: how each lies on the disk, where to get it, and under which terms
"""

import tomllib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from veca.backbones import Task
from veca.probes.datasets import special_readers as special
from veca.probes.datasets.pairs import (
    TARGET_FOLDERS,
    FolderPairs,
    ListedPairs,
    Meaning,
    Pair,
    open_pairs,
    table_of,
)
from veca.probes.datasets.readers import (
    HELD_OUT,
    Cifar,
    Classes,
    ClassFolders,
    ListedLabels,
    keep_classes,
    open_shards,
)
from veca.probes.datasets.splits import IGNORED, Contents, Dataset, first, inside

_LABELS: tuple[Task, ...] = ("classify", "multilabel")


class Form(NamedTuple):
    """One way a dataset lies on the disk.

    `marker` is a path that only this form has. `folder` is what the owner's archive unpacks to: its parent,
    itself and all between are accepted as the dataset's path.
    """

    marker: str
    read: Callable[[Path], Contents]
    folder: str = ""

    def find(self, root: Path) -> Path | None:
        parts = Path(self.folder).parts
        places = (root.joinpath(*parts[start:]) for start in range(len(parts) + 1))
        return next((place for place in places if (place / self.marker).exists()), None)


class NamedDataset(NamedTuple):
    """A dataset by name. `tree` shows its files, `source` and `terms` where they come from and what may be
    done with them."""

    name: str
    task: Task
    terms: str
    tree: str
    source: str
    forms: list[Form]

    def open(self, root: Path) -> Contents:
        """What the folder holds; whatever is missing is named with where to get it."""
        try:
            for form in self.forms:
                if (place := form.find(root)) is not None:
                    return form.read(place)
            markers = " or ".join(str(Path(form.folder, form.marker)) for form in self.forms)
            raise FileNotFoundError(f"{root} has no {markers}; there is: {inside(root)}.")
        except FileNotFoundError as error:
            raise FileNotFoundError(
                f"{self.name}: {error} Expected is {self.tree}. Get it from {self.source}."
            ) from None


def open_dataset(spec: str, *, task: Task, classes: Classes = "all") -> Dataset:
    """The dataset that `spec` names, for a task: files are listed and checked, no image is read.

    Args:
        spec: `NAME:PATH` for a dataset with a name of its own (see ENTRIES), else the path of a folder with
            class folders, image and mask or depth folders, a sample set, or shards.
        task: What it is for. To classify, a dataset with several labels per image is given as `multilabel`.
        classes: Every split must have all classes, or the common ones are kept; the others are `dropped`.
    """
    name, colon, path = spec.partition(":")
    if colon and not Path(spec).exists():
        entry = _entry(name, task)
        name, task, contents = entry.name, entry.task, entry.open(Path(path).expanduser())
    else:
        root = Path(spec).expanduser()
        name, contents = str(root), _open_folder(root, task)
    contents, dropped = keep_classes(contents, kind=classes, where=spec)
    return Dataset(name, task, *contents, dropped=tuple(dropped))


def _open_folder(root: Path, task: Task) -> Contents:
    if task in TARGET_FOLDERS:
        return open_pairs(root, task)
    if task == "multilabel":
        raise ValueError(f"several labels per image come from a named dataset, as VOC07:PATH; got '{root}'.")
    if any(root.glob("train-*.tar")):
        return open_shards(root)
    for place in (root, root / "images"):
        splits = {split: split for split in ("train", *HELD_OUT) if (place / split).is_dir()}
        if "train" in splits and len(splits) > 1:
            return ClassFolders(splits)(place)
    raise FileNotFoundError(
        f"data must hold class folders as DATA/train/CLASS/*.jpg and DATA/val/CLASS/*.jpg (or test), or "
        f"train-*.tar and val-*.tar; {root} has: {inside(root)}. `veca data sample` makes such a set, and "
        f"the paper's datasets go by name, as CIFAR-10:PATH ({', '.join(ENTRIES)})."
    )


def _entry(name: str, task: Task) -> NamedDataset:
    """The entry of a name, whatever its case and hyphens."""
    known = {_plain(key): entry for key, entry in ENTRIES.items()}
    if _plain(name) not in known:
        raise ValueError(f"there is no dataset called {name!r}; known are {', '.join(ENTRIES)}.")
    entry = known[_plain(name)]
    if entry.task != task and not (entry.task in _LABELS and task in _LABELS):
        fitting = [other.name for other in ENTRIES.values() if other.task == task]
        raise ValueError(f"{entry.name} is a dataset to {entry.task}, not to {task}; take {first(fitting)}.")
    return entry


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")


_NAMED = tomllib.loads((Path(__file__).parent / "named.toml").read_text(encoding="utf-8"))
VOC, CONTEXT_59, CITYSCAPES, CAMVID, COCO_THINGS, COCO_STUFF = map(tuple, _NAMED["classes"].values())


def _splits(path: str, words: str) -> dict[str, str]:
    """split → its list or folder, for words as `train val=validation`: split, and the owners' name for it."""
    pairs = (word.partition("=") for word in words.split())
    return {split: path.format(name or split) for split, _, name in pairs}


def _folders(images: str, targets: str, words: str) -> dict[str, Pair]:
    return {split: Pair(images.format(split), targets.format(split)) for split in words.split()}


def _voc(lists: str, masks: str, names: tuple[str, ...]) -> ListedPairs:
    pair = Pair("JPEGImages/{}.jpg", f"{masks}/{{}}.png")
    splits = _splits(f"ImageSets/{lists}/{{}}.txt", "train val")
    return ListedPairs(splits, pair, Meaning(("background", *names)))


def _folder(word: str, _: str) -> str:
    """abbey/sun_1.jpg → abbey"""
    return word.rpartition("/")[0]


# Values of COCO-Stuff's maps: 80 objects and 91 kinds of stuff, with gaps in the numbering of the objects.
_COCO_VALUES = [value for value in range(182) if value not in (11, 25, 28, 29, 44, 65, 67, 68, 70, 82, 90)]
_STUFF_IDS = {value: label for label, value in enumerate(_COCO_VALUES)}
_OBJECT_IDS = {value: n + 1 if n < len(COCO_THINGS) else 0 for n, value in enumerate(_COCO_VALUES)}
_STUFF = Meaning((*COCO_THINGS, *COCO_STUFF), table_of(_STUFF_IDS | {IGNORED: IGNORED}))
_OBJECT = Meaning(("background", *COCO_THINGS), table_of(_OBJECT_IDS | {IGNORED: IGNORED}))
# Cityscapes' labelIds of the 19 classes that count; 255 is the licence plate's −1.
_CITY_VALUES = (7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32, 33)
_CITY_IDS = dict.fromkeys((*range(34), 255), IGNORED) | {value: n for n, value in enumerate(_CITY_VALUES)}
_CLASSES_TREE = Form("train", ClassFolders(_splits("{}", "train test")))
_CIFAR_10 = {"train": [f"data_batch_{n}.bin" for n in range(1, 6)], "test": ["test_batch.bin"]}
_CIFAR_100 = {"train": ["train.bin"], "test": ["test.bin"]}
_FOOD = ListedLabels(_splits("meta/{}.txt", "train test"), "images/{}.jpg", _folder, "meta/classes.txt")
_SUN = ListedLabels(_splits("{}_01.txt", "train=Training test=Testing"), "{}", _folder, "ClassName.txt")
_AIRCRAFT = ListedLabels(
    _splits("images_variant_{}.txt", "train val test"), "images/{}.jpg", lambda _, rest: rest, "variants.txt"
)
_DTD = ListedLabels(_splits("labels/{}1.txt", "train val test"), "images/{}", _folder)
_PETS = ListedLabels(
    _splits("annotations/{}.txt", "train=trainval test"),
    "images/{}.jpg",
    lambda word, _: word.rpartition("_")[0],  # Egyptian_Mau_12 → Egyptian_Mau
)
_COCO = _folders("{}2017", "stuffthingmaps_trainval2017/{}2017", "train val")
_CAMVID = FolderPairs(
    _folders("{}", "{}annot", "train test"),
    Meaning(CAMVID, table_of({value: value for value in range(11)} | {11: IGNORED})),
)
_CITYSCAPES = FolderPairs(
    _folders("leftImg8bit/{}", "gtFine/{}", "train val"),
    Meaning(CITYSCAPES, table_of(_CITY_IDS)),
    image_end="_leftImg8bit.png",
    target_end="_gtFine_labelIds.png",
)
_FORMS: dict[str, list[Form]] = {
    "IN1K": [Form("LOC_val_solution.csv", special.read_kaggle_imagenet), Form("val", special.read_imagenet)],
    "INv2": [Form("0", ClassFolders({"test": "."}, numeric=True), "imagenetv2-matched-frequency-format-val")],
    "ReaL": [Form("real.json", special.read_real)],
    "Places365": [Form("places365_val.txt", special.read_places)],
    "Food101": [Form("meta/train.txt", _FOOD, "food-101")],
    "CIFAR-10": [
        Form("batches.meta.txt", Cifar(_CIFAR_10, "batches.meta.txt", 1), "cifar-10-batches-bin"),
        Form("batches.meta", special.read_pickled, "cifar-10-batches-py"),
        _CLASSES_TREE,
    ],
    "CIFAR-100": [
        Form("fine_label_names.txt", Cifar(_CIFAR_100, "fine_label_names.txt", 2), "cifar-100-binary"),
        Form("meta", special.read_pickled, "cifar-100-python"),
        _CLASSES_TREE,
    ],
    "SUN397": [Form("Training_01.txt", _SUN, "SUN397")],
    "Cars": [Form("devkit", special.read_cars, "stanford_cars")],
    "Aircraft": [Form("variants.txt", _AIRCRAFT, "fgvc-aircraft-2013b/data")],
    "VOC07": [Form("ImageSets/Main", partial(special.read_voc07, classes=VOC), "VOCdevkit/VOC2007")],
    "DTD": [Form("labels/train1.txt", _DTD, "dtd")],
    "Caltech101": [Form("accordion", special.read_caltech, "caltech-101/101_ObjectCategories")],
    "Pets": [Form("annotations/trainval.txt", _PETS)],
    "CUB": [Form("train_test_split.txt", special.read_cub, "CUB_200_2011")],
    "Flowers": [Form("setid.mat", special.read_flowers)],
    "VOC12": [Form("SegmentationClass", _voc("Segmentation", "SegmentationClass", VOC), "VOCdevkit/VOC2012")],
    "Context-60": [
        Form(
            "SegmentationClassContext",
            _voc("SegmentationContext", "SegmentationClassContext", CONTEXT_59),
            "VOCdevkit/VOC2010",
        ),
        Form("labels.txt", partial(special.read_context, names=CONTEXT_59), "VOCdevkit/VOC2010"),
    ],
    "ADE20K": [Form("annotations", special.read_ade, "ADEChallengeData2016")],
    "COCO-Stuff": [Form("stuffthingmaps_trainval2017", FolderPairs(_COCO, _STUFF))],
    "COCO-Object": [Form("stuffthingmaps_trainval2017", FolderPairs(_COCO, _OBJECT))],
    "Cityscapes": [Form("gtFine", _CITYSCAPES)],
    "CamVid": [Form("trainannot", _CAMVID)],
    "NYUv2": [
        Form("nyu_depth_v2_labeled.mat", special.read_nyu_mat),
        Form("train/images", special.read_nyu_folders),
        Form("train", special.read_nyu_scenes, "official_splits"),
    ],
    "KITTI": [
        Form("eigen_train_files_with_gt.txt", special.read_kitti_eigen),
        Form("data_depth_annotated", special.read_kitti),
    ],
}
ENTRIES = {
    name: NamedDataset(name, forms=_FORMS[name], **about) for name, about in _NAMED["datasets"].items()
}
