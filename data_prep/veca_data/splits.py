"""Which split each image belongs to, and the order of images within it.

A source with folders `train/` and `val/` (or `images/train/` …, or `test/`) has splits of its own;
any other gives a seeded share of its images to val.
"""

import os
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from veca.data.index import SPLITS
from veca_data.listing import Listing, Reject

DEFAULT_VAL_SHARE = 0.01
TRAIN, VAL, TEST = (SPLITS.index(split) for split in ("train", "val", "test"))
NO_SPLIT = len(SPLITS)
OUTSIDE = "outside train/, val/ and test/"

Ints = NDArray[np.int64]


def first_of_each(listing: Listing, hashes: NDArray[np.uint64]) -> tuple[NDArray[np.bool_], list[Reject]]:
    """Which entries to keep when a name comes twice: its key would, too."""
    keep = np.ones(len(hashes), dtype=bool)
    order = np.argsort(hashes, kind="stable")
    keep[order[1:][hashes[order][1:] == hashes[order][:-1]]] = False
    twice = [
        Reject(os.fsdecode(listing.raw_name(i)), "the same name comes twice")
        for i in map(int, np.flatnonzero(~keep))
    ]
    return keep, twice


def folder_splits(names: Iterable[bytes]) -> NDArray[np.uint8] | None:
    """The split each name's folder tells (`train/…`, `images/val/…`), or None where folders tell none."""
    known = {split.encode(): code for code, split in enumerate(SPLITS)}
    codes = bytearray()
    for name in names:
        parts = name.split(b"/", 2)
        folder = parts[1] if parts[0] == b"images" and len(parts) == 3 else parts[0]
        codes.append(known.get(folder, NO_SPLIT) if len(parts) > 1 else NO_SPLIT)
    found = set(codes)
    return np.frombuffer(codes, dtype=np.uint8) if TRAIN in found and found & {VAL, TEST} else None


def split_orders(
    rank: NDArray[np.uint64],
    keep: NDArray[np.bool_],
    *,
    codes: NDArray[np.uint8] | None,
    val_share: float,
    at_least_one: bool = True,
) -> dict[str, Ints]:
    """Split → entries by rank. Without splits of its own, the source gives its lowest ranks to val."""
    order = np.argsort(rank, kind="stable")
    order = order[keep[order]]
    if codes is not None:
        splits = {split: order[codes[order] == code] for code, split in enumerate(SPLITS)}
    else:
        splits = {"train": order, "val": order[:0]}
    if val_share and len(splits["train"]):
        train = splits["train"]
        wanted = int(np.searchsorted(rank[train], np.uint64(val_share * 2**64)))
        if at_least_one and len(train) > 1:
            wanted = min(max(round(len(train) * val_share), 1), len(train) - 1)
        splits["val"], splits["train"] = train[:wanted], train[wanted:]
    return {split: indices for split, indices in splits.items() if len(indices)}


def checked_val_share(val_share: float | None, *, has_val: bool) -> float:
    if val_share is None:
        return 0.0 if has_val else DEFAULT_VAL_SHARE
    if has_val:
        raise ValueError(
            f"val_share must be left out for a source with its own val folder; got {val_share}. "
            "Leave it out, or point at the train folder alone."
        )
    if not 0 <= val_share < 1:
        raise ValueError(f"val_share must be at least 0 and below 1; got {val_share}. Try 0.01.")
    return val_share
