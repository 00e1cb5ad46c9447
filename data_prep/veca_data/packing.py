"""What a worker does: read the images of a task, and write them as finished shards.

A finished shard has its tar, its offsets and its record, in this order; see records.py.
"""

import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from veca.data.decode import BadImage
from veca.data.index import offsets_name
from veca.data.tars import BrokenArchive
from veca.utils.files import atomic_path
from veca_data.images import Encoding, pack
from veca_data.listing import Entry, Listing, Reject, ranks, sample_key
from veca_data.plan import FileTask, StreamTask, Task
from veca_data.pool import advance
from veca_data.records import PARTS, Record, read_record, write_record
from veca_data.sources import read_entry
from veca_data.splits import OUTSIDE, first_of_each, folder_splits, split_orders
from veca_data.tars import spill
from veca_data.writer import SampleWriter

_NOTHING = np.zeros(0, dtype=np.int64)


class Job(NamedTuple):
    """What all tasks of a run share."""

    root: Path
    out: Path
    encoding: Encoding
    seed: int


def run_task(job: Job, task: Task) -> str | None:
    """Make the task's shards; returns a complaint about an archive that cannot be read."""
    if isinstance(task, FileTask):
        size = int(task.listing.sizes.clip(min=0).sum())
        write_shard(
            job,
            task.shard,
            task.listing.entries(),
            lambda entry: read_entry(job.root, entry),
            source_bytes=size,
        )
        return None
    try:
        _pack_stream(job, task)
    except BrokenArchive as error:
        return str(error)
    return None


def write_shard(
    job: Job,
    shard: str,
    entries: Iterable[Entry],
    read: Callable[[Entry], bytes],
    *,
    source_bytes: int,
    rejects: Iterable[Reject] = (),
    passes: int = 1,
) -> None:
    """Write one shard from the images that can be used; this is one of `passes` over them."""
    found = list(rejects)
    with atomic_path(job.out / shard) as temporary, SampleWriter(temporary) as writer:
        for entry in entries:
            advance(max(0, entry.size) // passes)
            try:
                packed = pack(read(entry), job.encoding)
            except BadImage as error:
                found.append(Reject(entry.name, str(error)))
                continue
            about = {"source": entry.name, "width": packed.width, "height": packed.height}
            members = {packed.suffix: packed.data, "json": json.dumps(about).encode()}
            writer.write(sample_key(entry.name), members)
    if writer.samples:
        with atomic_path(job.out / offsets_name(shard)) as temporary, temporary.open("wb") as file:
            np.save(file, writer.offsets)
    else:
        (job.out / shard).unlink()
    write_record(job.out, Record(shard, writer.samples, writer.bytes, writer.sha256, source_bytes, found))


def _pack_stream(job: Job, task: StreamTask) -> None:
    # The file has no name, so that it is gone with the process, however that ends.
    with tempfile.TemporaryFile(dir=job.out / PARTS) as file:
        listing, rejects = spill(job.root / task.stream.name, task.prefix, file)

        def read(entry: Entry) -> bytes:
            return os.pread(file.fileno(), entry.size, entry.place)

        for shard, indices in _stream_slices(listing, task, rejects, seed=job.seed):
            if read_record(job.out, shard, source_bytes=task.stream.size) is None:
                entries = listing.take(indices).entries()
                size = task.stream.size
                write_shard(job, shard, entries, read, source_bytes=size, rejects=rejects, passes=2)
            rejects = []  # they are the archive's, and stand in the record of its first shard


def _stream_slices(
    listing: Listing, task: StreamTask, rejects: list[Reject], *, seed: int
) -> Iterator[tuple[str, NDArray[np.int64]]]:
    """Shard names with their images, shuffled over the archive; adds what stays out to `rejects`."""
    hashes = listing.hashes()
    keep, twice = first_of_each(listing, hashes)
    cut = len(os.fsencode(task.prefix))
    # An archive outside of train/ and val/ may hold these folders itself.
    codes = folder_splits(name[cut:] for name in listing.raw_names()) if task.val_share else None
    share = task.val_share if codes is None else 0
    rank = ranks(hashes, seed=seed)
    orders = split_orders(rank, keep, codes=codes, val_share=share, at_least_one=task.is_only)
    if not task.val_share:
        orders = {split: orders.get("train", _NOTHING) for split in task.names}
    kept = np.zeros(len(listing), dtype=bool)
    for order in orders.values():
        kept[order] = True
    rejects += twice
    rejects += [Reject(listing.entry(int(i)).name, OUTSIDE) for i in np.flatnonzero(keep & ~kept)]
    if only := sorted(set(orders) - set(task.names)):
        raise ValueError(
            f"{task.stream.name} holds a folder {only[0]}/, which a stream cannot split: unpack it first."
        )
    for split, names in task.names.items():
        order = orders.get(split, _NOTHING)
        for number, shard in enumerate(names):
            bounds = (number * len(order) // len(names), (number + 1) * len(order) // len(names))
            yield shard, order[slice(*bounds)]
