"""What a dataset hands on: items with their targets, in splits, on the disk until asked for.

Before any work a split is read once: is everything there, does it fit, and which data is it? The digest
covers images and targets byte by byte, so features of other data are never taken for these, and every problem
is told at once, before a model runs for hours.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Subset

from veca.backbones import Task
from veca.data.decode import BadImage, decode_pixels, image_size
from veca.utils.progress import progress_bar

T = TypeVar("T")
Target = int | NDArray[np.generic]
IGNORED = 255  # a label or mask value that counts neither for training nor for the score
MAX_METRES = 500.0  # a median beyond this is no distance in a photograph, but a matter of units
MIN_METRES = 0.05
MAX_UNREADABLE = 0.05  # a larger share is no accident
_SMALL = 16  # the check decodes at a fraction of the size; damage anywhere in the file shows all the same
_SHOWN = 5
_CHUNK = 1024


class Item(NamedTuple):
    """One example as it lies on the disk.

    `target` is, by task: a label (int); 0, 1 or IGNORED per class (C,) uint8; class ids (H, W) uint8 or
    uint16 with IGNORED where there is none; metres (H, W) float32, 0 where nothing was measured.
    """

    name: str
    image: bytes  # the encoded file
    target: Target


class Split(Protocol):
    """The examples of one split; nothing is read before it is asked for, from any thread."""

    def __len__(self) -> int: ...

    def __getitem__(self, place: int) -> Item: ...


class Dataset(NamedTuple):
    """A labelled dataset with the splits it has: `train`, and `val` or `test` or both."""

    name: str
    task: Task
    classes: list[str]  # empty for depth
    splits: Mapping[str, Split]
    max_depth: float | None = None  # metres; farther measurements do not count
    dropped: tuple[str, ...] = ()  # classes that some split lacks, left out as asked for


@dataclass(frozen=True)
class ListedSplit:
    """A `Split`; `labels` where each image has one class, so that they are counted without reading images."""

    names: Sequence[str]
    image: Callable[[int], bytes]
    target: Callable[[int], Target]
    labels: Sequence[int] | None = None

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, place: int) -> Item:
        return Item(self.names[place], self.image(place), self.target(place))


class Contents(NamedTuple):
    """What a reader finds in a folder."""

    classes: list[str]
    splits: dict[str, ListedSplit]
    max_depth: float | None = None


class Scanned(NamedTuple):
    """A split without its unreadable images, and what it holds."""

    name: str
    items: Split
    unreadable: dict[str, str]  # image → reason
    digest: str
    counts: dict[str, int]  # class → images, or pixels of masks; for depth, measured and unmeasured pixels
    targets: Tensor | None = None  # labels (n,) or (n, C) uint8 of a classification
    mean_depth: float = 0.0  # metres, over measured pixels
    max_depth: float = 0.0

    @property
    def labels(self) -> Tensor:
        """The targets of a classification."""
        assert self.targets is not None
        return self.targets


class _Seen(NamedTuple):
    """What is kept of one item."""

    place: int
    name: str
    digest: bytes = b""
    found: NDArray[np.generic] = np.zeros(0)  # see _measure
    problem: str = ""  # with the target: stops the probe
    unreadable: str = ""  # image: left out and counted


def at_place(root: Path, names: Sequence[str], read: Callable[[Path], T]) -> Callable[[int], T]:
    """Reads file n of a list; names are relative to the root, so that a million of them stay small."""
    return lambda place: read(root / names[place])


def with_labels(names: Sequence[str], image: Callable[[int], bytes], labels: Sequence[int]) -> ListedSplit:
    """A split with one class per image."""
    assert len(names) == len(labels), (len(names), len(labels))
    return ListedSplit(names, image, lambda place: int(labels[place]), labels)


def first(names: Iterable[object], *, separator: str = ", ") -> str:
    """The first few of many names, for a message."""
    listed = [str(name) for name in names]
    more = f" and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else ""
    return (separator.join(listed[:_SHOWN]) or "none") + more


def inside(folder: Path) -> str:
    """What a folder holds, for a message that says what it lacks."""
    return first(sorted(path.name for path in folder.iterdir())) if folder.is_dir() else "no such folder"


def scan_split(dataset: Dataset, name: str, *, quiet: bool = False) -> Scanned:
    """Read the split `name` of a dataset once; raises one ValueError for all its problems."""
    items, where = dataset.splits[name], f"{dataset.name}, {name}"
    if not len(items):
        raise ValueError(f"{where}: there are no images.")
    everything = list(_read(dataset, items, label=f"check {name}", quiet=quiet))
    if problems := [f"{one.name}: {one.problem}" for one in everything if one.problem]:
        raise ValueError(
            f"{where}: {len(problems)} of {len(items)} items cannot be used: "
            f"{first(problems, separator='; ')}. Fix these files and run again."
        )
    unreadable = {one.name: one.unreadable for one in everything if one.unreadable}
    if unreadable:
        _judge_unreadable(unreadable, total=len(items), where=where, quiet=quiet)
        everything = [one for one in everything if not one.unreadable]
        items = Subset(items, [one.place for one in everything])  # type: ignore[arg-type]  # any sequence
    digest = hashlib.sha256(b"".join(one.digest for one in everything)).hexdigest()
    scanned = Scanned(name, items, unreadable, digest, {})
    found = torch.from_numpy(np.stack([one.found for one in everything]))
    if dataset.task == "depth":
        return _sum_up_depths(scanned, found, dataset, where)
    if dataset.task == "segment":
        totals = found.sum(0).tolist()
        return scanned._replace(counts=dict(zip([*dataset.classes, "(ignored)"], totals, strict=True)))
    counts = (found == 1).sum(0) if found.ndim == 2 else found.bincount(minlength=len(dataset.classes))
    return scanned._replace(counts=dict(zip(dataset.classes, counts.tolist(), strict=True)), targets=found)


def describe(scanned: Scanned, task: Task) -> str:
    """One line for the reader: how much of what."""
    line, counts = f"{scanned.name}: {len(scanned.items)} images, ", dict(scanned.counts)
    if task == "depth":
        return f"{line}{counts['measured']:,} measured pixels, {counts['unmeasured']:,} others"
    ignored = counts.pop("(ignored)", None)
    least, most = min(counts.values()), max(counts.values())
    line += f"{len(counts)} classes of " + (f"{least:,}–{most:,}" if least < most else f"{least:,}")
    line += " images" if ignored is None else f" pixels, {ignored:,} pixels ignored"
    absent = [name for name, count in counts.items() if not count]
    return line + (f"; absent: {first(absent)}" if absent else "")


def _read(dataset: Dataset, items: Split, *, label: str, quiet: bool) -> Iterator[_Seen]:
    look = partial(_look, items, task=dataset.task, num_classes=len(dataset.classes))
    with ThreadPoolExecutor() as pool, progress_bar(label, len(items), unit="image", quiet=quiet) as progress:
        for start in range(0, len(items), _CHUNK):  # bounds the answers that wait
            for one in pool.map(look, range(start, min(start + _CHUNK, len(items)))):
                progress.update()
                yield one


def _look(items: Split, place: int, *, task: Task, num_classes: int) -> _Seen:
    seen = _Seen(place, f"item {place}")
    try:
        item = items[place]
        digest = hashlib.sha256(item.image)
        digest.update(np.asarray(item.target).tobytes())
        seen = seen._replace(name=item.name, digest=digest.digest())
        try:
            decode_pixels(item.image, short_side=_SMALL)
        except BadImage as error:
            return seen._replace(unreadable=str(error))
        return seen._replace(found=_measure(item, task, num_classes))
    except (ValueError, OSError) as error:
        return seen._replace(problem=str(error))


def _measure(item: Item, task: Task, num_classes: int) -> NDArray[np.generic]:
    """What counts of a target: its label or labels; the pixels of each class and those ignored; or of depths
    the pixels, those measured, and their sum, median and largest. ValueError says what is wrong with it."""
    target = item.target
    if not isinstance(target, np.ndarray):
        if not 0 <= target < num_classes:
            raise ValueError(f"label {target} is no class")
        return np.asarray(target)
    if task not in ("segment", "depth"):
        if target.shape != (num_classes,) or not np.isin(target, (0, 1, IGNORED)).all():
            raise ValueError(f"labels must be 0, 1 or {IGNORED} for each of {num_classes} classes")
        return target.astype(np.uint8)
    width, height = image_size(item.image)
    if target.shape != (height, width):
        kind, (rows, columns) = "mask" if task == "segment" else "depth map", target.shape
        raise ValueError(f"its {kind} has {columns}×{rows} pixels, the image {width}×{height}")
    return _class_pixels(target, num_classes) if task == "segment" else _depths(target)


def _class_pixels(mask: NDArray[np.generic], num_classes: int) -> NDArray[np.int64]:
    ids, numbers = np.unique(mask, return_counts=True)
    if unknown := [int(value) for value in ids if value >= num_classes and value != IGNORED]:
        listed = ", ".join(map(str, unknown[:_SHOWN]))
        raise ValueError(f"mask has unknown ids {listed}; known are 0 to {num_classes - 1}")
    pixels = np.zeros(num_classes + 1, dtype=np.int64)
    pixels[np.where(ids == IGNORED, num_classes, ids).astype(np.int64)] = numbers
    return pixels


def _depths(depth: NDArray[np.generic]) -> NDArray[np.float64]:
    metres = depth.astype(np.float64)
    if not np.isfinite(metres).all() or metres.min() < 0:
        raise ValueError("depth has values that are negative or not finite; 0 says unmeasured")
    measured = metres[metres > 0]
    numbers = (measured.sum(), np.median(measured), measured.max()) if len(measured) else (0, 0, 0)
    return np.array([metres.size, len(measured), *numbers], dtype=np.float64)


def _judge_unreadable(unreadable: dict[str, str], *, total: int, where: str, quiet: bool) -> None:
    """Say what is left out; refuse when it is too much."""
    named = first((f"{name} ({reason})" for name, reason in unreadable.items()), separator="; ")
    summary = f"{where}: {len(unreadable)} of {total} images are unreadable"
    if len(unreadable) > max(1, MAX_UNREADABLE * total) or len(unreadable) == total:
        raise ValueError(f"{summary}, more than {MAX_UNREADABLE:.0%}: {named}. Replace or delete them.")
    if not quiet:
        print(f"{summary} and left out: {named}")


def _sum_up_depths(scanned: Scanned, found: Tensor, dataset: Dataset, where: str) -> Scanned:
    pixels, measured, totals, medians, largest = found.T
    number = int(measured.sum())
    if not number:
        raise ValueError(f"{where}: no pixel has a measured depth; 0 says unmeasured.")
    middle, limit = float(np.median(medians[measured > 0])), dataset.max_depth or MAX_METRES
    if not MIN_METRES <= middle <= limit:
        unit = "millimetres" if middle > limit else "kilometres, or scaled to 1"
        raise ValueError(
            f"{where}: depth must be in metres; the median of {middle:.4g} looks like {unit}. "
            f"Convert the files, or state their unit (medians from {MIN_METRES} to {limit:g} are accepted)."
        )
    counts = {"measured": number, "unmeasured": int(pixels.sum()) - number}
    mean = sum(totals.tolist()) / number
    return scanned._replace(counts=counts, mean_depth=mean, max_depth=float(largest.max()))
