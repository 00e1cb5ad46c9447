"""Images → features on the disk: made once per (data, view, backbone), read many times.

CACHE/FINGERPRINT/000000.cls.npy      (V, D) float32, the global feature of each view
CACHE/FINGERPRINT/000000.patches.npy  (all patches of the shard, D) float16; dense probes only
CACHE/FINGERPRINT/000000.targets.npy  (V, rows, columns), where heads learn from these views
CACHE/FINGERPRINT/000000.views.npy    (V, 10) int32, one `Record` a row; written last: the shard is whole
CACHE/FINGERPRINT/about.json          what it is, for the person who wonders

A shard holds the views of a fixed number of items, so any number of devices writes the same files, each every
n-th missing one, and an interrupted extraction goes on with the first shard that is missing. Threads decode
the next batch while the backbone works on this one. Memory: two batches and one shard, whatever the data.
"""

import hashlib
import json
import shutil
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from lightning.fabric import Fabric
from numpy.typing import NDArray
from torch import Tensor

from veca.backbones import ProbeFeatures
from veca.backbones.models import Backbone
from veca.probes.datasets.splits import Split
from veca.probes.views import View, Viewer, Window
from veca.utils.files import atomic_path, write_text_atomic
from veca.utils.progress import progress_bar

VERSION = 1  # rises when the same inputs give other files
CLASSIFY_ITEMS = 512  # of a shard
DENSE_PIXELS = 16 * 512**2  # of a shard's items: some tens of megabytes of patches
BATCH_PIXELS = 64 * 256**2  # larger views come in smaller batches
MAX_BATCH = 256

Seen = list[tuple[int, str, View]]  # item, its name, and what is seen of it


class Record(NamedTuple):
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


class Shard(NamedTuple):
    """What is written of some items."""

    records: list[Record]
    cls: NDArray[np.float32]
    patches: NDArray[np.float16] | None
    targets: NDArray[np.generic] | None


@dataclass(frozen=True)
class Store:
    """A folder of shards; `about` says what decides its content."""

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

    def write(self, number: int, shard: Shard) -> None:
        parts = {"cls": shard.cls, "patches": shard.patches, "targets": shard.targets}
        parts["views"] = np.array(shard.records, dtype=np.int32)  # last
        for kind, array in parts.items():
            if array is not None:
                with atomic_path(self._path(number, kind)) as path, path.open("wb") as file:
                    np.save(file, array, allow_pickle=False)

    def read(self) -> "Cached":
        return Cached(self)

    def num_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.folder.glob("*.npy"))

    def load(self, number: int, kind: str) -> NDArray[np.generic]:
        """Mapped, not read: memory follows what is looked at."""
        array: NDArray[np.generic] = np.load(self._path(number, kind), mmap_mode="r", allow_pickle=False)
        return array

    def _path(self, number: int, kind: str) -> Path:
        return self.folder / f"{number:06d}.{kind}.npy"


class _Place(NamedTuple):
    """Where the features of a view lie."""

    store: Store
    shard: int
    row: int
    start: int  # of its patches
    end: int


class Cached:
    """The features of all views of some splits, one after the other; patches stay on the disk."""

    def __init__(self, *stores: Store) -> None:
        self.stores = stores
        self.records: list[Record] = []
        self._places: list[_Place] = []
        cls, items = [], 0
        for store in stores:
            for number in range(store.num_shards):
                table = [Record(*row) for row in store.load(number, "views").tolist()]
                self.records += [record._replace(item=record.item + items) for record in table]
                ends = np.cumsum([record.grid_rows * record.grid_columns for record in table]).tolist()
                starts = [0, *ends[:-1]]
                self._places += [
                    _Place(store, number, *at) for at in zip(range(len(table)), starts, ends, strict=True)
                ]
                cls.append(store.load(number, "cls"))
            items += store.num_items
        self.cls = torch.from_numpy(np.concatenate(cls))
        self._open: dict[tuple[Store, int, str], NDArray[np.generic]] = {}

    def __len__(self) -> int:
        return len(self.records)

    def patches(self, view: int) -> Tensor:
        """(N, D) in float32."""
        place = self._places[view]
        return torch.from_numpy(self._array(place, "patches")[place.start : place.end].astype(np.float32))

    def target(self, view: int) -> Tensor:
        place = self._places[view]
        return torch.from_numpy(np.array(self._array(place, "targets")[place.row]))

    def views_of(self, items: NDArray[np.bool_]) -> NDArray[np.int64]:
        """The views of the items where the mask is true."""
        return np.flatnonzero(items[[record.item for record in self.records]])

    def _array(self, place: _Place, kind: str) -> NDArray[np.generic]:
        key = place.store, place.shard, kind
        if key not in self._open:
            self._open[key] = place.store.load(place.shard, kind)
        return self._open[key]


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
    backbone: Backbone, split: Split, store: Store, viewer: Viewer, *, fabric: Fabric, label: str
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


@torch.no_grad()
def _shard(backbone: Backbone, split: Split, items: range, viewer: Viewer) -> Shard:
    records: list[Record] = []
    encoded: list[ProbeFeatures] = []
    targets = []
    for seen in _batches(split, items, viewer):
        found = _encode(backbone, seen, dense=viewer.dense)
        for (item, _, view), features in zip(seen, found, strict=True):
            records.append(Record(item, *view.window, *features.grid, int(features.has_cls)))
            if view.target is not None:
                targets.append(view.target)
        encoded += found
    patches = [one.patches for one in encoded if one.patches is not None]
    return Shard(
        records,
        torch.stack([one.cls for one in encoded]).numpy(),
        torch.cat(patches).numpy() if patches else None,
        np.stack(targets) if targets else None,
    )


def _batches(split: Split, items: range, viewer: Viewer) -> Iterator[Seen]:
    """The views of the items, a batch of items at a time; threads are one batch ahead."""
    size = max(1, min(MAX_BATCH, BATCH_PIXELS // viewer.resolution**2))

    def look(place: int) -> Seen:
        item = split[place]
        return [(place, item.name, view) for view in viewer.views(item)]

    with ThreadPoolExecutor() as pool:
        waiting: list[Future[Seen]] = []
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
            for row, place in enumerate(part):
                patches = None if features.patches is None else features.patches[row]
                found[place] = features._replace(cls=features.cls[row], patches=patches)
    return [found[place] for place in range(len(seen))]


def _run(backbone: Backbone, seen: Seen, *, dense: bool) -> ProbeFeatures:
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
    return features._replace(
        cls=features.cls.float().cpu(), patches=None if patches is None else patches.cpu()
    )


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
