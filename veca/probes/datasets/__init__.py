"""Datasets of the probes: folders of anyone, shards, and the paper's sets by name.

splits.py            items with their targets by place, read when asked for; one reading of them before work
readers.py           class folders, lists, records and shards; lists, files and classes are checked
pairs.py             images with a mask or a depth map each
special_readers.py   what only one owner does
named.toml           the named datasets: how each lies on the disk, where to get it, and under which terms
"""

import tomllib
from pathlib import Path
from typing import Any, NamedTuple

from veca.backbones import Task
from veca.probes.datasets import pairs, readers, special_readers
from veca.probes.datasets.pairs import TARGET_FOLDERS, Meaning, open_pairs, table_of
from veca.probes.datasets.readers import HELD_OUT, Classes, keep_classes, open_shards, read_class_folders
from veca.probes.datasets.splits import IGNORED, Contents, Dataset, first, inside


class NamedDataset(NamedTuple):
    """A dataset by name. `tree` shows its files, `source` and `terms` where they come from and what may be
    done with them; `forms` are the ways it lies on the disk (named.toml)."""

    name: str
    task: Task
    terms: str
    tree: str
    source: str
    forms: list[dict[str, Any]]

    def open(self, root: Path) -> Contents:
        """What the folder holds; whatever is missing is named with where to get it."""
        try:
            for form in self.forms:
                inner = Path(form.get("folder", "")).parts
                places = (root.joinpath(*inner[start:]) for start in range(len(inner) + 1))
                for place in places:
                    if (place / form["marker"]).exists():
                        return _read(place, **form)
            markers = " or ".join(str(Path(form.get("folder", ""), form["marker"])) for form in self.forms)
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
            return read_class_folders(place, splits)
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
    if entry.task != task and {entry.task, task} != {"classify", "multilabel"}:
        fitting = [other.name for other in ENTRIES.values() if other.task == task]
        raise ValueError(f"{entry.name} is a dataset to {entry.task}, not to {task}; take {first(fitting)}.")
    return entry


def _read(
    place: Path, read: str, marker: str, folder: str = "", meaning: str | None = None, **options: Any
) -> Contents:
    """Contents of one form, by the reader that it names."""
    if meaning is not None:
        options["meaning"] = _MEANINGS[meaning]
    module = next(module for module in (readers, pairs, special_readers) if hasattr(module, read))
    contents: Contents = getattr(module, read)(place, **options)
    return contents


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")


_NAMED = tomllib.loads((Path(__file__).parent / "named.toml").read_text(encoding="utf-8"))
VOC, CONTEXT_59, CITYSCAPES, CAMVID, COCO_THINGS, COCO_STUFF = map(tuple, _NAMED["classes"].values())
# Values of COCO-Stuff's maps: 80 objects and 91 kinds of stuff, with gaps in the numbering of the objects.
_COCO_VALUES = [value for value in range(182) if value not in (11, 25, 28, 29, 44, 65, 67, 68, 70, 82, 90)]
_STUFF_IDS = {value: label for label, value in enumerate(_COCO_VALUES)}
_OBJECT_IDS = {value: n + 1 if n < len(COCO_THINGS) else 0 for n, value in enumerate(_COCO_VALUES)}
# Cityscapes' labelIds of the 19 classes that count; 255 is the licence plate's −1.
_CITY_VALUES = (7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32, 33)
_CITY_IDS = dict.fromkeys((*range(34), 255), IGNORED) | {value: n for n, value in enumerate(_CITY_VALUES)}
_MEANINGS = {
    "VOC07": Meaning(VOC),
    "VOC12": Meaning(("background", *VOC)),
    "Context-60": Meaning(("background", *CONTEXT_59)),
    "COCO-Stuff": Meaning((*COCO_THINGS, *COCO_STUFF), table_of(_STUFF_IDS | {IGNORED: IGNORED})),
    "COCO-Object": Meaning(("background", *COCO_THINGS), table_of(_OBJECT_IDS | {IGNORED: IGNORED})),
    "Cityscapes": Meaning(CITYSCAPES, table_of(_CITY_IDS)),
    "CamVid": Meaning(CAMVID, table_of({value: value for value in range(11)} | {11: IGNORED})),
}
ENTRIES = {name: NamedDataset(name, **about) for name, about in _NAMED["datasets"].items()}
