"""Datasets of the probes: folders of anyone, shards, and the paper's sets by name.

splits.py            items with their targets by place, read when asked for
readers.py           class folders, lists and records; lists, files and classes are checked
pairs.py             images with a mask or a depth map each
shards.py            WebDataset shards with labels
special_readers.py   what only one owner does
table.py             the named datasets: a row each
"""

from pathlib import Path

from veca.backbones import Task
from veca.probes.datasets.pairs import TARGET_FOLDERS, open_pairs
from veca.probes.datasets.readers import HELD_OUT, Classes, ClassFolders, first, inside, keep_classes
from veca.probes.datasets.shards import has_shards, open_shards
from veca.probes.datasets.splits import Contents, Dataset
from veca.probes.datasets.table import ENTRIES, Entry

_LABELS: tuple[Task, ...] = ("classify", "multilabel")

__all__ = ["ENTRIES", "Classes", "open_dataset"]


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
    if has_shards(root):
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


def _entry(name: str, task: Task) -> Entry:
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
