"""One reading of a split before any work: is everything there, does it fit, and which data is it?

The digest covers images and targets byte by byte, so features of other data are never taken for these, and
every problem is told at once, before a model runs for hours.
"""

import hashlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from veca.backbones.types import Task
from veca.data.decode import BadImage, decode_pixels, image_size
from veca.probes.types import IGNORED, Dataset, Item, Split
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


class Kept(NamedTuple):
    """Some items of a split: itself a `Split`."""

    whole: Split
    places: list[int]

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, place: int) -> Item:  # type: ignore[override]  # a Split, not a tuple
        return self.whole[self.places[place]]


class _Seen(NamedTuple):
    """What is kept of one item."""

    place: int
    name: str
    digest: bytes = b""
    label: int | NDArray[np.uint8] | None = None
    pixels: NDArray[np.int64] | None = None  # per class, the last entry for ignored ones
    depths: tuple[int, float, float, float] = (0, 0.0, 0.0, 0.0)  # measured, their sum, median and maximum
    size: int = 0  # pixels of the depth map
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
        raise ValueError(
            f"{where}: {len(problems)} of {len(items)} items cannot be used: {_first(problems)}. Mend them."
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
    return line + (f"; absent: {_first(absent)}" if absent else "")


def _read(dataset: Dataset, items: Split, *, label: str, quiet: bool) -> Iterator[_Seen]:
    look = partial(_look, items, task=dataset.task, num_classes=len(dataset.classes))
    with ThreadPoolExecutor() as pool, progress_bar(label, len(items), unit="image", quiet=quiet) as progress:
        for start in range(0, len(items), _CHUNK):  # bounds the answers that wait
            for one in pool.map(look, range(start, min(start + _CHUNK, len(items)))):
                progress.update()
                yield one


def _look(items: Split, place: int, *, task: Task, num_classes: int) -> _Seen:
    try:
        item = items[place]
    except (ValueError, OSError) as error:  # the reader names the file
        return _Seen(place, f"item {place}", problem=str(error))
    digest = hashlib.sha256(item.image)
    digest.update(np.asarray(item.target).tobytes())
    seen = _Seen(place, item.name, digest.digest())
    try:
        decode_pixels(item.image, short_side=_SMALL)
    except BadImage as error:
        return seen._replace(unreadable=str(error))
    if task == "segment":
        return _look_at_mask(item, seen, num_classes)
    if task == "depth":
        return _look_at_depth(item, seen)
    if isinstance(item.target, np.ndarray):
        problem = _several_problem(item.target, num_classes)
        return seen._replace(label=item.target.astype(np.uint8), problem=problem)
    known = 0 <= item.target < num_classes
    return seen._replace(label=item.target, problem="" if known else f"label {item.target} is no class")


def _several_problem(target: NDArray[np.generic], num_classes: int) -> str:
    allowed = bool(np.isin(target, (0, 1, IGNORED)).all())
    fits = target.shape == (num_classes,) and allowed
    return "" if fits else f"labels must be 0, 1 or {IGNORED} for each of {num_classes} classes"


def _look_at_mask(item: Item, seen: _Seen, num_classes: int) -> _Seen:
    assert isinstance(item.target, np.ndarray)
    if problem := _size_problem(item, "mask"):
        return seen._replace(problem=problem)
    ids, numbers = np.unique(item.target, return_counts=True)
    unknown = [int(value) for value in ids if value >= num_classes and value != IGNORED]
    if unknown:
        listed = ", ".join(map(str, unknown[:_SHOWN]))
        return seen._replace(problem=f"mask has unknown ids {listed}; known are 0 to {num_classes - 1}")
    pixels = np.zeros(num_classes + 1, dtype=np.int64)
    pixels[np.where(ids == IGNORED, num_classes, ids).astype(np.int64)] = numbers
    return seen._replace(pixels=pixels)


def _look_at_depth(item: Item, seen: _Seen) -> _Seen:
    assert isinstance(item.target, np.ndarray)
    if problem := _size_problem(item, "depth map"):
        return seen._replace(problem=problem)
    depth = item.target.astype(np.float64)
    if not np.isfinite(depth).all() or depth.min() < 0:
        return seen._replace(problem="depth has values that are negative or not finite; 0 says unmeasured")
    measured = depth[depth > 0]
    seen = seen._replace(size=depth.size)
    if not len(measured):
        return seen
    numbers = float(measured.sum()), float(np.median(measured)), float(measured.max())
    return seen._replace(depths=(len(measured), *numbers))


def _size_problem(item: Item, kind: str) -> str:
    assert isinstance(item.target, np.ndarray)
    width, height = image_size(item.image)
    if item.target.shape == (height, width):
        return ""
    rows, columns = item.target.shape
    return f"its {kind} has {columns}×{rows} pixels, the image {width}×{height}"


def _judge_unreadable(unreadable: dict[str, str], *, total: int, where: str, quiet: bool) -> None:
    """Say what is left out; refuse when it is too much."""
    if not unreadable:
        return
    named = _first(f"{name} ({reason})" for name, reason in unreadable.items())
    summary = f"{where}: {len(unreadable)} of {total} images are unreadable"
    if len(unreadable) > max(1, MAX_UNREADABLE * total) or len(unreadable) == total:
        raise ValueError(f"{summary}, more than {MAX_UNREADABLE:.0%}: {named}. Mend or delete them.")
    if not quiet:
        print(f"{summary} and left out: {named}")


def _summary(seen: list[_Seen], dataset: Dataset, where: str, digest: str) -> Scan:
    if dataset.task == "depth":
        return _depth_scan(seen, dataset, where, digest)
    if dataset.task == "segment":
        totals = np.sum([one.pixels for one in seen if one.pixels is not None], axis=0).tolist()
        return Scan(digest, dict(zip([*dataset.classes, "(ignored)"], totals, strict=True)))
    if isinstance(seen[0].label, np.ndarray):
        targets = torch.from_numpy(np.stack([np.asarray(one.label) for one in seen]))
        found = (targets == 1).sum(0)
    else:
        targets = torch.tensor([one.label for one in seen])
        found = targets.bincount(minlength=len(dataset.classes))
    return Scan(digest, dict(zip(dataset.classes, found.tolist(), strict=True)), targets)


def _depth_scan(seen: list[_Seen], dataset: Dataset, where: str, digest: str) -> Scan:
    measured = [one.depths for one in seen if one.depths[0]]
    if not measured:
        raise ValueError(f"{where}: no pixel has a measured depth; 0 says unmeasured.")
    middle, limit = float(np.median([one[2] for one in measured])), dataset.max_depth or MAX_METRES
    if not MIN_METRES <= middle <= limit:
        unit = "millimetres" if middle > limit else "kilometres, or scaled to 1"
        raise ValueError(
            f"{where}: depth must be in metres; the median of {middle:.4g} looks like {unit}. "
            f"Convert the files, or state their unit (medians from {MIN_METRES} to {limit:g} are accepted)."
        )
    number = sum(count for count, *_ in measured)
    counts = {"measured": number, "unmeasured": sum(one.size for one in seen) - number}
    mean = sum(part for _, part, _, _ in measured) / number
    return Scan(digest, counts, mean_depth=mean, max_depth=max(top for *_, top in measured))


def _first(names: Iterable[str]) -> str:
    listed = list(names)
    more = f"; and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else ""
    return "; ".join(listed[:_SHOWN]) + more
