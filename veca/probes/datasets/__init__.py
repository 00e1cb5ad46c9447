"""Datasets of the probes: folders of anyone, shards, and the paper's sets by name.

splits.py          images and targets by place, read when asked for
finding.py         lists, files and classes, checked: what is missing is named
folders.py         class folders
lists.py           lists of images with labels, one or several each
pairs.py           images with a mask or a depth map each
shards.py          WebDataset shards with labels
mat.py records.py nyu.py label_owners.py dense_owners.py   what only one owner does
entries.py         what an entry of a named dataset says
classification.py dense.py           the entries
"""

from pathlib import Path

from veca.backbones.types import Task
from veca.probes.datasets.classification import CLASSIFICATION
from veca.probes.datasets.dense import DENSE
from veca.probes.datasets.entries import Entry
from veca.probes.datasets.finding import HELD_OUT, first
from veca.probes.datasets.folders import ClassFolders
from veca.probes.datasets.pairs import TARGET_FOLDERS, open_pairs
from veca.probes.datasets.shards import has_shards, open_shards
from veca.probes.datasets.splits import Contents
from veca.probes.types import Dataset

ENTRIES = {entry.name: entry for entry in (*CLASSIFICATION, *DENSE)}
_LABELS: tuple[Task, ...] = ("classify", "multilabel")

__all__ = ["ENTRIES", "open_dataset"]


def open_dataset(spec: str, *, task: Task) -> Dataset:
    """The dataset that `spec` names, for a task: files are listed and checked, no image is read.

    Args:
        spec: `NAME:PATH` for a dataset with a name of its own (see ENTRIES), else the path of a folder with
            class folders, image and mask or depth folders, a sample set, or shards.
        task: What it is for. To classify, a dataset with several labels per image is given as `multilabel`.
    """
    name, colon, path = spec.partition(":")
    entry = _entry(name) if colon and not Path(spec).exists() else None
    if entry is not None:
        _check_task(entry, task)
        return _dataset(entry.name, entry.task, entry.open(Path(path).expanduser()))
    root = Path(spec).expanduser()
    if task in TARGET_FOLDERS:
        return _dataset(str(root), task, open_pairs(root, task))
    if task == "multilabel":
        raise ValueError(f"several labels per image come from a named dataset, as VOC07:PATH; got {spec!r}.")
    return _dataset(str(root), task, open_shards(root) if has_shards(root) else _open_folders(root))


def _dataset(name: str, task: Task, contents: Contents) -> Dataset:
    return Dataset(name, task, contents.classes, contents.splits, contents.max_depth)


def _entry(name: str) -> Entry:
    """The entry of a name, whatever its case and hyphens."""
    known = {_plain(key): entry for key, entry in ENTRIES.items()}
    if _plain(name) not in known:
        raise ValueError(f"there is no dataset called {name!r}; known are {', '.join(ENTRIES)}.")
    return known[_plain(name)]


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")


def _check_task(entry: Entry, task: Task) -> None:
    if entry.task != task and not (entry.task in _LABELS and task in _LABELS):
        fitting = [other.name for other in ENTRIES.values() if other.task == task]
        raise ValueError(f"{entry.name} is a dataset to {entry.task}, not to {task}; take {first(fitting)}.")


def _open_folders(root: Path) -> Contents:
    for place in (root, root / "images"):
        splits = {split: split for split in ("train", *HELD_OUT) if (place / split).is_dir()}
        if "train" in splits and len(splits) > 1:
            return ClassFolders(splits)(place)
    found = first(sorted(path.name for path in root.iterdir())) if root.is_dir() else "no such folder"
    raise FileNotFoundError(
        f"data must hold class folders as DATA/train/CLASS/*.jpg and DATA/val/CLASS/*.jpg (or test), or "
        f"train-*.tar and val-*.tar; {root} has: {found}. `veca-data sample` makes such a set, and the "
        f"paper's datasets go by name, as CIFAR-10:PATH ({', '.join(ENTRIES)})."
    )
