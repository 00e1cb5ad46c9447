"""Images → features on the disk. Memory: two batches and one shard, whatever the size of the data.

Threads read and decode the next batch while the backbone works on this one. With several devices, each
takes every n-th missing shard.
"""

import shutil
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import groupby
from typing import NamedTuple

import numpy as np
import torch
from lightning.fabric import Fabric
from torch import Tensor

from veca.backbones.types import Backbone, ProbeFeatures
from veca.probes.store import Record, Shard, Store
from veca.probes.types import Split
from veca.probes.views import View, Viewer
from veca.utils.progress import progress_bar

BATCH_PIXELS = 64 * 256**2  # larger views come in smaller batches
MAX_BATCH = 256

Seen = list[tuple[int, str, View]]  # item, its name, and what is seen of it


class Encoded(NamedTuple):
    """What a backbone says of one view."""

    cls: Tensor  # (D,)
    patches: Tensor | None  # (N, D) in half precision
    grid: tuple[int, int]
    has_cls: bool


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
    encoded: list[Encoded] = []
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


def _encode(backbone: Backbone, seen: Seen, *, dense: bool) -> list[Encoded]:
    """Views of one shape go together; the answer is in the order of `seen`."""
    found: dict[int, Encoded] = {}
    order = sorted(range(len(seen)), key=lambda place: seen[place][2].pixels.shape)
    for (_, rows, columns), group in groupby(order, key=lambda place: seen[place][2].pixels.shape):
        size = max(1, min(MAX_BATCH, BATCH_PIXELS // (rows * columns)))
        places = list(group)
        for start in range(0, len(places), size):
            part = places[start : start + size]
            features = backbone(torch.from_numpy(np.stack([seen[place][2].pixels for place in part])))
            _check(backbone, features, [seen[place][1] for place in part], dense=dense)
            found.update(zip(part, _single(features, dense=dense), strict=True))
    return [found[place] for place in range(len(seen))]


def _single(features: ProbeFeatures, *, dense: bool) -> Iterator[Encoded]:
    cls = features.cls.float().cpu()
    patches = features.patches.half().cpu() if dense and features.patches is not None else [None] * len(cls)
    for vector, tokens in zip(cls, patches, strict=True):
        yield Encoded(vector, tokens, features.grid, features.has_cls)


def _check(backbone: Backbone, features: ProbeFeatures, names: list[str], *, dense: bool) -> None:
    if dense and features.patches is None:
        raise ValueError(f"{backbone.name} has no patch features: dense probes cannot judge it.")
    finite = features.cls.isfinite().all(dim=1)
    if dense and features.patches is not None:
        finite &= features.patches.half().isfinite().flatten(1).all(dim=1)  # as they are kept
    if not bool(finite.all()):
        bad = names[int(finite.int().argmin())]
        raise ValueError(
            f"{backbone.name} gives features that are not finite, first for {bad}. Training may have "
            "diverged: take an earlier checkpoint."
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
