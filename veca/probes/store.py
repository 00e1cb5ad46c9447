"""Features on the disk: made once per (data, view, backbone), read many times.

CACHE/FINGERPRINT/000000.cls.npy      (V, D) float32, the global feature of each view
CACHE/FINGERPRINT/000000.patches.npy  (all patches of the shard, D) float16; dense probes only
CACHE/FINGERPRINT/000000.targets.npy  (V, rows, columns), where heads learn from these views
CACHE/FINGERPRINT/000000.views.npy    (V, 10) int32, one `Record` a row; written last: the shard is whole
CACHE/FINGERPRINT/about.json          what it is, for the person who wonders

A shard holds the views of a fixed number of items, so any number of devices writes the same files, and an
interrupted extraction goes on with the first shard that is missing.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from veca.backbones.types import Backbone
from veca.probes.views import Viewer, Window
from veca.utils.files import atomic_path, write_text_atomic

VERSION = 1  # rises when the same inputs give other files
CLASSIFY_ITEMS = 512  # of a shard
DENSE_PIXELS = 16 * 512**2  # of a shard's items: some tens of megabytes of patches


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
                self._places += _places(store, number, table)
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

    def _array(self, place: "_Place", kind: str) -> NDArray[np.generic]:
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


class _Place(NamedTuple):
    """Where the features of a view lie."""

    store: Store
    shard: int
    row: int
    start: int  # of its patches
    end: int


def _places(store: Store, shard: int, records: list[Record]) -> list[_Place]:
    ends = np.cumsum([record.grid_rows * record.grid_columns for record in records]).tolist()
    return [
        _Place(store, shard, row, start, end)
        for row, (start, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True))
    ]
