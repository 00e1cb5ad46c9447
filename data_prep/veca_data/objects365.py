"""Objects365's annotation files: which images they list that the disk does not have.

The training file has several gigabytes, so names are found by a search through the text, never by
loading it. `images[].file_name` reads `images/v1/patch8/objects365_v1_00420917.jpg`; on disk only
`patch8/…` (or, flattened, the file's own name) is the same.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from veca.data.folders import check_regular
from veca_data.listing import Listing, Reject

_NAME = re.compile(rb'"file_name"\s*:\s*("(?:[^"\\]|\\.)*")')
_CHUNK = 2**22
_OVERLAP = 2**13  # longer than any name


def is_annotation_name(name: str) -> bool:
    return re.search(r"(^|/)zhiyuan_objv2_(train|val)\.json$", name) is not None


def missing_images(listing: Listing, annotations: Iterable[Path]) -> Iterator[Reject]:
    """A reject for each image that an annotation file lists and the source lacks."""
    present = np.sort(_hashes(_tail(os.fsdecode(name)) for name in listing.raw_names()))
    for path in annotations:
        names = file_names(path)
        while batch := list(islice(names, 65_536)):
            tails = [_last_two(name) for name in batch]
            nested = _is_in(present, _hashes(tails))
            flat = _is_in(present, _hashes(tail.rpartition("/")[2] for tail in tails))
            for i in np.flatnonzero(~(nested | flat)):
                yield Reject(tails[i], f"listed in {path.name}, but not in the source")


def file_names(path: Path) -> Iterator[str]:
    """The `file_name` values of a COCO-style JSON file, in flat memory."""
    found = False
    check_regular(path)
    with path.open("rb") as file:
        text = b""
        while chunk := file.read(_CHUNK):
            text += chunk
            end = 0
            for match in _NAME.finditer(text):
                found, end = True, match.end()
                yield json.loads(match[1])
            # A name may straddle two chunks: keep what comes after the last match, but not all of it.
            text = text[max(end, len(text) - _OVERLAP) :]
    if not found:
        raise ValueError(
            f'annotations {path} list no images: no "file_name" in it. Is it the COCO-style JSON?'
        )


def _tail(name: str) -> str:
    """What the annotations and the disk have in common: `patchN/name`, or the name where it is flattened."""
    tail = _last_two(name)
    return tail if tail.startswith("patch") else tail.rpartition("/")[2]


def _last_two(name: str) -> str:
    return "/".join(name.split("/")[-2:])


def _hashes(names: Iterable[str]) -> NDArray[np.uint64]:
    values = bytearray()
    for name in names:
        values += hashlib.blake2b(os.fsencode(name), digest_size=8).digest()
    return np.frombuffer(values, dtype=np.uint64)


def _is_in(ordered: NDArray[np.uint64], values: NDArray[np.uint64]) -> NDArray[np.bool_]:
    places = np.searchsorted(ordered, values).clip(max=len(ordered) - 1)
    return np.asarray(ordered[places] == values)
