"""Images → features on the disk: made once per (data, view, backbone), read many times.

Classification sees one view: short side to 9/8 of the resolution R, centre crop of R × R (method, section 6).

Dense probes see windows. The short side becomes R and the long one follows; windows of R × R then cover the
image, each overlapping the last by a third or more. Heads are trained on these windows: features are made
once, so there are no random crops. Judged images are covered the same way ("slide"), or are seen whole,
the long side rounded to patches ("whole").

CACHE/FINGERPRINT/000000.cls.npy      (V, D) float32, the global feature of each view
CACHE/FINGERPRINT/000000.patches.npy  (all patches of the shard, D) float16; dense probes only
CACHE/FINGERPRINT/000000.targets.npy  (V, rows, columns), where heads learn from these views
CACHE/FINGERPRINT/000000.views.npy    (V, 10) int32, one `ViewRecord` a row; written last: the shard is whole
CACHE/FINGERPRINT/about.json          what it is, for the person who wonders

A shard holds the views of a fixed number of items, so any number of devices writes the same files, each every
n-th missing one, and an interrupted extraction goes on with the first shard that is missing. Threads decode
the next batch while the backbone works on this one. Memory: two batches and one shard, whatever the data.
"""

import hashlib
import json
import math
import shutil
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from veca.backbones import Backbone, ProbeFeatures
from veca.data.decode import BadImage, Pixels, decode_pixels
from veca.data.views import centre_view, render_pixels
from veca.probes.datasets.splits import Item, Split
from veca.utils.files import atomic_path, write_text_atomic
from veca.utils.progress import progress_bar

if TYPE_CHECKING:
    from lightning.fabric import Fabric

VERSION = 1  # rises when the same inputs give other files
LABELS_PER_PATCH = 4  # along a side: heads learn from every fourth pixel of a patch of 16
CLASSIFY_ITEMS = 512  # of a shard
DENSE_PIXELS = 16 * 512**2  # of a shard's items: some tens of megabytes of patches
BATCH_PIXELS = 64 * 256**2  # larger views come in smaller batches
MAX_BATCH = 256


class Window(NamedTuple):
    """A rectangle of the resized image, in its pixels."""

    width: int  # of the resized image
    height: int
    left: int
    top: int
    columns: int  # of the window
    rows: int


class SeenView(NamedTuple):
    """What a backbone sees of an item; `target` on the grid of labels when heads learn from this view."""

    pixels: NDArray[np.uint8]  # (3, rows, columns)
    window: Window
    target: NDArray[np.generic] | None = None


@dataclass(frozen=True)
class CentreView:
    """One centre crop of R × R, the validation view of training."""

    resolution: int
    dense: ClassVar[bool] = False  # patches are of no use

    def views(self, item: Item) -> list[SeenView]:
        pixels = _decode(item)
        view = centre_view(size=pixels.size, resolution=self.resolution)
        side = view.resolution
        window = Window(view.width, view.height, view.left, view.top, side, side)
        return [SeenView(render_pixels(pixels, view), window)]

    def rule(self) -> dict[str, object]:
        """Everything that decides the views, as JSON."""
        return {"view": "centre", "resolution": self.resolution}


@dataclass(frozen=True)
class Windows:
    """Windows of R × R that cover the image, or one window of all of it; with the labels to learn from."""

    resolution: int
    patch_size: int
    whole: bool = False
    labelled: bool = False
    dense: ClassVar[bool] = True

    def views(self, item: Item) -> list[SeenView]:
        pixels = _decode(item)
        windows = cover(pixels.size, self.resolution, patch_size=self.patch_size, whole=self.whole)
        resized = _resize(pixels, width=windows[0].width, height=windows[0].height)
        return [self._cut(resized, item, window) for window in windows]

    def rule(self) -> dict[str, object]:
        return {"view": "windows", "labels": LABELS_PER_PATCH, **asdict(self)}

    def _cut(self, rgb: NDArray[np.uint8], item: Item, window: Window) -> SeenView:
        bottom, right = window.top + window.rows, window.left + window.columns
        part = np.ascontiguousarray(rgb[window.top : bottom, window.left : right].transpose(2, 0, 1))
        if not self.labelled:
            return SeenView(part, window)
        assert isinstance(item.target, np.ndarray)
        rows, columns = (LABELS_PER_PATCH * side // self.patch_size for side in (window.rows, window.columns))
        return SeenView(part, window, sample_target(item.target, window, grid=(rows, columns)))


Viewer = CentreView | Windows


def cover(size: tuple[int, int], resolution: int, *, patch_size: int, whole: bool) -> list[Window]:
    """The windows of an image of `size` = (width, height)."""
    short, long = min(size), max(size)
    step = patch_size if whole else 1
    stretched = max(resolution, round(long * resolution / short / step) * step)
    width, height = (stretched, resolution) if size[0] >= size[1] else (resolution, stretched)
    if whole:
        return [Window(width, height, 0, 0, width, height)]
    extra = stretched - resolution
    number = 1 + math.ceil(extra / (resolution * 2 / 3))
    starts = [round(place * extra / max(1, number - 1)) for place in range(number)]
    corners = [(start, 0) if width > height else (0, start) for start in starts]
    return [Window(width, height, left, top, resolution, resolution) for left, top in corners]


def sample_target(
    target: NDArray[np.generic], window: Window, *, grid: tuple[int, int]
) -> NDArray[np.generic]:
    """The target nearest to the centres of `grid` = (rows, columns) equal cells of a window."""
    rows = window.top + (np.arange(grid[0]) + 0.5) * window.rows / grid[0]
    columns = window.left + (np.arange(grid[1]) + 0.5) * window.columns / grid[1]
    height, width = target.shape
    rows = np.minimum(rows * height / window.height, height - 1).astype(np.int64)
    columns = np.minimum(columns * width / window.width, width - 1).astype(np.int64)
    return np.ascontiguousarray(target[rows[:, None], columns])


Seen = list[tuple[int, str, SeenView]]  # item, its name, and what is seen of it
Parts = dict[str, NDArray[np.generic]]  # what is written of some items: cls, patches, targets, views


class ViewRecord(NamedTuple):
    """Where a view lies and how it was cut into patches."""

    item: int
    width: int  # of the resized image
    height: int
    left: int  # of the window, as the next three
    top: int
    columns: int
    rows: int
    grid_rows: int
    grid_columns: int
    has_cls: int

    @property
    def window(self) -> Window:
        return Window(*self[1:7])


@dataclass(frozen=True)
class Store:
    """A folder of shards."""

    folder: Path
    num_items: int
    shard_items: int

    @property
    def num_shards(self) -> int:
        return -(-self.num_items // self.shard_items)

    def items(self, shard: int) -> range:
        start = shard * self.shard_items
        return range(start, min(start + self.shard_items, self.num_items))

    def missing(self) -> list[int]:
        return [number for number in range(self.num_shards) if not self._path(number, "views").exists()]

    def write(self, number: int, parts: Parts) -> None:
        for kind, array in parts.items():
            with atomic_path(self._path(number, kind)) as path, path.open("wb") as file:
                np.save(file, array, allow_pickle=False)

    def num_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.folder.glob("*.npy"))

    def load(self, number: int, kind: str) -> NDArray[np.generic]:
        """Mapped, not read: memory follows what is looked at."""
        array: NDArray[np.generic] = np.load(self._path(number, kind), mmap_mode="r", allow_pickle=False)
        return array

    def _path(self, number: int, kind: str) -> Path:
        return self.folder / f"{number:06d}.{kind}.npy"


class Cached:
    """The features of all views of some splits, one after the other; patches stay on the disk."""

    def __init__(self, *stores: Store) -> None:
        self.stores = stores
        self.records: list[ViewRecord] = []
        self._places: list[tuple[Store, int, int, slice]] = []  # store, shard, row, patches
        self._load = cache(Store.load)
        cls, items = [], 0
        for store in stores:
            for number in range(store.num_shards):
                end = 0
                for row, values in enumerate(store.load(number, "views").tolist()):
                    record = ViewRecord(*values)
                    start, end = end, end + record.grid_rows * record.grid_columns
                    self.records.append(record._replace(item=record.item + items))
                    self._places.append((store, number, row, slice(start, end)))
                cls.append(store.load(number, "cls"))
            items += store.num_items
        self.cls = torch.from_numpy(np.concatenate(cls))

    def __len__(self) -> int:
        return len(self.records)

    def patches(self, view: int) -> Tensor:
        """(N, D) in float32."""
        store, shard, _, rows = self._places[view]
        return torch.from_numpy(self._load(store, shard, "patches")[rows].astype(np.float32))

    def target(self, view: int) -> Tensor:
        store, shard, row, _ = self._places[view]
        return torch.from_numpy(np.array(self._load(store, shard, "targets")[row]))

    def views_of(self, items: NDArray[np.bool_]) -> NDArray[np.int64]:
        """The views of the items where the mask is true."""
        return np.flatnonzero(items[[record.item for record in self.records]])


def open_store(
    cache: Path,
    backbone: Backbone,
    viewer: Viewer,
    *,
    digest: str,
    num_items: int,
    about: str,
    **decides: str,
) -> Store:
    """The place of these features; `digest` is that of the data, `decides` whatever else decides them."""
    parts = {
        "version": VERSION,
        "backbone": backbone.fingerprint(),
        "budget": backbone.budget,
        "data": digest,
        **viewer.rule(),
        **decides,
    }
    shard_items = CLASSIFY_ITEMS
    if viewer.dense:
        shard_items = max(1, min(CLASSIFY_ITEMS, DENSE_PIXELS // viewer.resolution**2))
    store = Store(cache / fingerprint(parts), num_items, shard_items)
    if not (store.folder / "about.json").exists():
        store.folder.mkdir(parents=True, exist_ok=True)
        body = {"features": backbone.name, "of": about, "items": num_items, **parts}
        write_text_atomic(store.folder / "about.json", json.dumps(body, indent=1) + "\n")
    return store


def fingerprint(parts: object) -> str:
    """A short hash of JSON values."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def extract(
    backbone: Backbone, split: Split, store: Store, viewer: Viewer, *, fabric: "Fabric", label: str
) -> None:
    """Make the missing shards of a store; returns when all devices have made theirs."""
    missing = store.missing()
    fabric.barrier()  # everybody has looked before anybody writes
    mine = missing[fabric.global_rank :: fabric.world_size]
    total = sum(len(store.items(number)) for number in mine)
    if missing:
        with progress_bar(label, total, unit="image", quiet=fabric.global_rank > 0) as progress:
            for place, number in enumerate(mine):
                store.write(number, _shard(backbone, split, store.items(number), viewer))
                progress.update(len(store.items(number)))
                if not place:
                    _check_room(store, to_do=len(missing) - fabric.world_size)
    fabric.barrier()


def _shard(backbone: Backbone, split: Split, items: range, viewer: Viewer) -> Parts:
    records, encoded, targets = list[ViewRecord](), list[ProbeFeatures](), list[NDArray[np.generic]]()
    for seen in _batches(split, items, viewer):
        found = _encode(backbone, seen, dense=viewer.dense)
        for (item, _, view), features in zip(seen, found, strict=True):
            records.append(ViewRecord(item, *view.window, *features.grid, int(features.has_cls)))
            if view.target is not None:
                targets.append(view.target)
        encoded += found
    parts: Parts = {"cls": torch.stack([one.cls for one in encoded]).numpy()}
    if patches := [one.patches for one in encoded if one.patches is not None]:
        parts["patches"] = torch.cat(patches).numpy()
    if targets:
        parts["targets"] = np.stack(targets)
    return {**parts, "views": np.array(records, dtype=np.int32)}  # last


def _batches(split: Split, items: range, viewer: Viewer) -> Iterator[Seen]:
    """The views of the items, a batch of items at a time; threads are one batch ahead."""
    size = max(1, min(MAX_BATCH, BATCH_PIXELS // viewer.resolution**2))

    def look(place: int) -> Seen:
        item = split[place]
        return [(place, item.name, view) for view in viewer.views(item)]

    with ThreadPoolExecutor() as pool:
        waiting = list[Future[Seen]]()
        for start in range(0, len(items), size):
            now, waiting = waiting, [pool.submit(look, place) for place in items[start : start + size]]
            if now:
                yield [view for future in now for view in future.result()]
        yield [view for future in waiting for view in future.result()]


def _encode(backbone: Backbone, seen: Seen, *, dense: bool) -> list[ProbeFeatures]:
    """What the backbone says of each view, in the order of `seen`; views of one shape go together."""
    found: dict[int, ProbeFeatures] = {}
    order = sorted(range(len(seen)), key=lambda place: seen[place][2].pixels.shape)
    for (_, rows, columns), group in groupby(order, key=lambda place: seen[place][2].pixels.shape):
        size = max(1, min(MAX_BATCH, BATCH_PIXELS // (rows * columns)))
        places = list(group)
        for start in range(0, len(places), size):
            part = places[start : start + size]
            features = _run(backbone, [seen[place] for place in part], dense=dense)
            found.update(zip(part, features, strict=True))
    return [found[place] for place in range(len(seen))]


def _run(backbone: Backbone, seen: Seen, *, dense: bool) -> list[ProbeFeatures]:
    """The features of views of one shape as they are kept: patches in half precision, or none."""
    features = backbone(torch.from_numpy(np.stack([view.pixels for _, _, view in seen])))
    patches = features.patches.half() if dense and features.patches is not None else None
    finite = features.cls.isfinite().all(dim=1)
    if patches is not None:
        finite &= patches.isfinite().flatten(1).all(dim=1)
    elif dense:
        raise ValueError(f"{backbone.name} has no patch features: dense probes cannot judge it.")
    if not bool(finite.all()):
        _, name, _ = seen[int(finite.int().argmin())]
        raise ValueError(
            f"{backbone.name} gives features that are not finite, first for {name}. Training may have "
            "diverged: take an earlier checkpoint."
        )
    kept: Iterable[Tensor | None] = [None] * len(seen) if patches is None else patches.cpu()
    both = zip(features.cls.float().cpu(), kept, strict=True)
    return [features._replace(cls=cls, patches=each) for cls, each in both]


def _check_room(store: Store, *, to_do: int) -> None:
    """The first shard tells what the others will take."""
    done = store.num_shards - len(store.missing())
    needed = to_do * store.num_bytes() // max(1, done)
    free = shutil.disk_usage(store.folder).free
    if needed > free:
        raise ValueError(
            f"the features need about {needed / 1e9:.1f} GB more, {store.folder} has {free / 1e9:.1f} GB. "
            "Give --cache a folder with more room, or a lower resolution."
        )


def _decode(item: Item) -> Pixels:
    try:
        return decode_pixels(item.image)
    except BadImage as error:
        raise ValueError(f"{item.name}: {error}. Replace or delete it.") from None


def _resize(pixels: Pixels, *, width: int, height: int) -> NDArray[np.uint8]:
    """(height, width, 4): bicubic, antialiased."""
    if pixels.size == (width, height):
        return pixels.rgb
    source = torch.from_numpy(pixels.rgb)[None].permute(0, 3, 1, 2)
    resized = F.interpolate(source, size=(height, width), mode="bicubic", antialias=True)
    rgb: NDArray[np.uint8] = resized.permute(0, 2, 3, 1)[0].numpy()
    return rgb
