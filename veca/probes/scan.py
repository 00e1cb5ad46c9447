"""One reading of a split before any work: is everything there, does it fit, and which data is it?

The digest covers images and targets byte by byte, so features of other data are never taken for these, and
every problem is told at once, before a model runs for hours.
"""

import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from veca.backbones import Task
from veca.data.decode import BadImage, decode_pixels, image_size
from veca.probes.datasets.readers import first
from veca.probes.datasets.splits import IGNORED, Dataset, Item, Split
from veca.utils.progress import progress_bar

MAX_METRES = 500.0  # a median beyond this is no distance in a photograph, but a matter of units
MIN_METRES = 0.05
MAX_UNREADABLE = 0.05  # a larger share is no accident
_SMALL = 16  # the check decodes at a fraction of the size; damage anywhere in the file shows all the same
_SHOWN = 5
_CHUNK = 1024


class Scan(NamedTuple):
    """What one split holds."""

    digest: str
    counts: dict[str, int]  # class → images, or pixels of masks; for depth, measured and unmeasured pixels
    targets: Tensor | None = None  # labels (n,) or (n, C) uint8 of a classification
    mean_depth: float = 0.0  # metres, over measured pixels
    max_depth: float = 0.0


class Scanned(NamedTuple):
    """A split without its unreadable images, and what it holds."""

    name: str
    items: Split
    scan: Scan
    unreadable: dict[str, str]  # image → reason

    @property
    def labels(self) -> Tensor:
        """The targets of a classification."""
        assert self.scan.targets is not None
        return self.scan.targets


class Kept(NamedTuple):
    """Some items of a split: itself a `Split`."""

    whole: Split
    places: list[int]

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, place: int) -> Item:  # type: ignore[override]  # a Split, not a tuple
        return self.whole[self.places[place]]


class _Depths(NamedTuple):
    """What is kept of a depth map."""

    size: int  # pixels
    measured: int
    total: float  # metres, over measured pixels, as the next two
    median: float
    largest: float


class _Seen(NamedTuple):
    """What is kept of one item: its label or labels, the pixels of each class and ignored ones, or depths."""

    place: int
    name: str
    digest: bytes = b""
    found: int | NDArray[np.generic] | _Depths = 0
    problem: str = ""  # with the target: stops the probe
    unreadable: str = ""  # image: left out and counted


def scan_split(dataset: Dataset, name: str, *, quiet: bool = False) -> Scanned:
    """Read the split `name` of a dataset once; raises one ValueError for all its problems."""
    items, where = dataset.splits[name], f"{dataset.name}, {name}"
    if not len(items):
        raise ValueError(f"{where}: there are no images.")
    everything = list(_read(dataset, items, label=f"check {name}", quiet=quiet))
    problems = [f"{one.name}: {one.problem}" for one in everything if one.problem]
    if problems:
        named = first(problems, separator="; ")
        raise ValueError(
            f"{where}: {len(problems)} of {len(items)} items cannot be used: {named}. "
            "Fix these files and run again."
        )
    seen = [one for one in everything if not one.unreadable]
    unreadable = {one.name: one.unreadable for one in everything if one.unreadable}
    _judge_unreadable(unreadable, total=len(items), where=where, quiet=quiet)
    scan = _summary(seen, dataset, where, hashlib.sha256(b"".join(one.digest for one in seen)).hexdigest())
    kept = Kept(items, [one.place for one in seen]) if unreadable else items
    return Scanned(name, kept, scan, unreadable)


def describe(scanned: Scanned, task: Task) -> str:
    """One line for the reader: how much of what."""
    number, counts = len(scanned.items), scanned.scan.counts
    if task == "depth":
        return (
            f"{scanned.name}: {number} images, {counts['measured']:,} measured pixels, "
            f"{counts['unmeasured']:,} others"
        )
    each = [count for name, count in counts.items() if name != "(ignored)"]
    spread = f"{min(each):,}–{max(each):,}" if min(each) < max(each) else f"{min(each):,}"
    absent = [name for name, count in counts.items() if not count and name != "(ignored)"]
    line = f"{scanned.name}: {number} images, {len(each)} classes of {spread} "
    line += "pixels" if task == "segment" else "images"
    if task == "segment":
        line += f", {counts['(ignored)']:,} pixels ignored"
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


def _measure(item: Item, task: Task, num_classes: int) -> int | NDArray[np.generic] | _Depths:
    """What counts of a target; ValueError says what is wrong with it."""
    target = item.target
    if not isinstance(target, np.ndarray):
        if not 0 <= target < num_classes:
            raise ValueError(f"label {target} is no class")
        return target
    if task == "segment":
        return _class_pixels(item.image, target, num_classes)
    if task == "depth":
        return _depths(item.image, target)
    if target.shape != (num_classes,) or not np.isin(target, (0, 1, IGNORED)).all():
        raise ValueError(f"labels must be 0, 1 or {IGNORED} for each of {num_classes} classes")
    return target.astype(np.uint8)


def _class_pixels(image: bytes, mask: NDArray[np.generic], num_classes: int) -> NDArray[np.int64]:
    _check_size(image, mask, "mask")
    ids, numbers = np.unique(mask, return_counts=True)
    unknown = [int(value) for value in ids if value >= num_classes and value != IGNORED]
    if unknown:
        listed = ", ".join(map(str, unknown[:_SHOWN]))
        raise ValueError(f"mask has unknown ids {listed}; known are 0 to {num_classes - 1}")
    pixels = np.zeros(num_classes + 1, dtype=np.int64)
    pixels[np.where(ids == IGNORED, num_classes, ids).astype(np.int64)] = numbers
    return pixels


def _depths(image: bytes, depth: NDArray[np.generic]) -> _Depths:
    _check_size(image, depth, "depth map")
    metres = depth.astype(np.float64)
    if not np.isfinite(metres).all() or metres.min() < 0:
        raise ValueError("depth has values that are negative or not finite; 0 says unmeasured")
    measured = metres[metres > 0]
    if not len(measured):
        return _Depths(metres.size, 0, 0.0, 0.0, 0.0)
    numbers = float(measured.sum()), float(np.median(measured)), float(measured.max())
    return _Depths(metres.size, len(measured), *numbers)


def _check_size(image: bytes, target: NDArray[np.generic], kind: str) -> None:
    width, height = image_size(image)
    if target.shape != (height, width):
        rows, columns = target.shape
        raise ValueError(f"its {kind} has {columns}×{rows} pixels, the image {width}×{height}")


def _judge_unreadable(unreadable: dict[str, str], *, total: int, where: str, quiet: bool) -> None:
    """Say what is left out; refuse when it is too much."""
    if not unreadable:
        return
    named = first((f"{name} ({reason})" for name, reason in unreadable.items()), separator="; ")
    summary = f"{where}: {len(unreadable)} of {total} images are unreadable"
    if len(unreadable) > max(1, MAX_UNREADABLE * total) or len(unreadable) == total:
        raise ValueError(f"{summary}, more than {MAX_UNREADABLE:.0%}: {named}. Replace or delete them.")
    if not quiet:
        print(f"{summary} and left out: {named}")


def _summary(seen: list[_Seen], dataset: Dataset, where: str, digest: str) -> Scan:
    found = [one.found for one in seen]
    if dataset.task == "depth":
        return _depth_scan([one for one in found if isinstance(one, _Depths)], dataset, where, digest)
    targets = torch.from_numpy(np.stack([np.asarray(one) for one in found]))
    if dataset.task == "segment":
        totals = targets.sum(0).tolist()
        return Scan(digest, dict(zip([*dataset.classes, "(ignored)"], totals, strict=True)))
    counts = (targets == 1).sum(0) if targets.ndim == 2 else targets.bincount(minlength=len(dataset.classes))
    return Scan(digest, dict(zip(dataset.classes, counts.tolist(), strict=True)), targets)


def _depth_scan(maps: list[_Depths], dataset: Dataset, where: str, digest: str) -> Scan:
    measured = [one for one in maps if one.measured]
    if not measured:
        raise ValueError(f"{where}: no pixel has a measured depth; 0 says unmeasured.")
    middle, limit = float(np.median([one.median for one in measured])), dataset.max_depth or MAX_METRES
    if not MIN_METRES <= middle <= limit:
        unit = "millimetres" if middle > limit else "kilometres, or scaled to 1"
        raise ValueError(
            f"{where}: depth must be in metres; the median of {middle:.4g} looks like {unit}. "
            f"Convert the files, or state their unit (medians from {MIN_METRES} to {limit:g} are accepted)."
        )
    number = sum(one.measured for one in measured)
    counts = {"measured": number, "unmeasured": sum(one.size for one in maps) - number}
    mean = sum(one.total for one in measured) / number
    return Scan(digest, counts, mean_depth=mean, max_depth=max(one.largest for one in measured))
