"""Images → shards: the whole stage, restartable at any moment with the same bytes as a result.

A Source is opened and a Plan made, which fixes what image goes where (source.py, plan.py). The folder is
claimed for that plan, and finished shards are counted (records.py). Workers make the others, each as a whole.
At the end index.json and rejects.jsonl follow from the records, here or, when several machines made parts, by
`merge_parts`.
"""

import errno
import json
import math
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from veca.data.decode import BadImage
from veca.data.tars import BrokenArchive
from veca.utils.files import check_writable, in_bytes
from veca_data.archives import stream_images
from veca_data.images import Encoding, pack
from veca_data.listing import Entry, Listing, ListingBuilder, Reject, listed, ranks, sample_key
from veca_data.plan import (
    DEFAULT_SHARD_BYTES,
    OUTSIDE,
    Plan,
    ShardSize,
    StreamTask,
    Task,
    Unit,
    first_of_each,
    folder_splits,
    make_plan,
    split_orders,
)
from veca_data.pool import advance, num_workers, run_tasks, warm_up
from veca_data.records import PARTS, Summary, claim_folder, finish, new_shard, read_record, remove_leftovers
from veca_data.source import open_source, read_entry

DEFAULT_MAX_REJECTS = 0.01

_RULES = {
    "shard_samples": (1, math.inf, "at least 1", "2000"),
    "shard_bytes": (1, math.inf, "at least 1", "256MB"),
    "max_short_side": (16, math.inf, "at least 16, the side of a patch", "864"),
    "quality": (1, 95, "from 1 to 95", "92"),
    "max_rejects": (0, 1, "a share from 0 to 1", "0.01"),
}

_NOTHING = np.zeros(0, dtype=np.int64)


class Part(NamedTuple):
    """One machine's share of the work: every unit whose number leaves `number` when divided by `of`."""

    number: int = 0
    of: int = 1


class Job(NamedTuple):
    """What all tasks of a run share."""

    root: Path
    out: Path
    encoding: Encoding
    seed: int


def make_shards(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    shard_samples: int | None = None,
    shard_bytes: int | None = None,
    val_share: float | None = None,
    max_short_side: int | None = None,
    quality: int | None = None,
    seed: int = 0,
    workers: int | None = None,
    part: Part | None = None,
    max_rejects: float = DEFAULT_MAX_REJECTS,
    annotations: Sequence[Path] = (),
) -> Summary | None:
    """Turn `source` into shards in `out`; returns what they hold, or None for one part of several."""
    _check_options(
        shard_samples=shard_samples,
        shard_bytes=shard_bytes,
        max_short_side=max_short_side,
        quality=quality,
        part=part,
        max_rejects=max_rejects,
    )
    check_writable(Path(out))
    size = ShardSize(shard_samples, None if shard_samples else shard_bytes or DEFAULT_SHARD_BYTES)
    encoding = Encoding(max_short_side, quality)
    processes = num_workers(workers)
    warm_up(processes)
    out = Path(out)
    opened = open_source(source, annotations=tuple(annotations))
    opened.check_whole()
    plan = make_plan(opened, seed=seed, size=size, val_share=val_share, encoding=encoding)
    plan = claim_folder(out, plan)
    if ignored := listed(plan.ignored):
        print(f"Ignored files: {ignored}")
    mine = [unit for number, unit in enumerate(plan.units) if not part or number % part.of == part.number]
    pending = [unit for unit in mine if not _is_finished(out, unit)]
    remove_leftovers(out, (shard for unit in pending for shard in unit.shards))
    if len(pending) < len(mine):
        print(f"{len(mine) - len(pending)} of {len(mine)} units of work are finished already.")
    started = time.monotonic()
    num_bytes = sum(plan.source_bytes(unit) for unit in pending)
    _work(plan, Job(opened.root, out, encoding, seed), pending, num_bytes=num_bytes, workers=processes)
    seconds = time.monotonic() - started
    print(f"Read {in_bytes(num_bytes)} in {seconds:.1f} s ({in_bytes(num_bytes / max(seconds, 1e-9))}/s).")
    if part:
        print(f"Part {part.number}/{part.of} is done. When all parts are: veca data merge {out}")
        return None
    return finish(out, max_rejects=max_rejects)


def merge_parts(out: str | os.PathLike[str], *, max_rejects: float = DEFAULT_MAX_REJECTS) -> Summary:
    """Write index.json and rejects.jsonl when all shards are made."""
    _check_options(max_rejects=max_rejects)
    return finish(Path(out), max_rejects=max_rejects)


def _check_options(*, part: Part | None = None, **values: float | None) -> None:
    """One error that names every value that is wrong."""
    given = {name: value for name, value in values.items() if value is not None}
    problems = []
    for name, (low, high, rule, suggestion) in _RULES.items():
        if name in given and not low <= given[name] <= high:
            problems.append(f"{name} must be {rule}; got {given[name]}. Try {suggestion}.")
    if "shard_samples" in given and "shard_bytes" in given:
        problems.append("give shard_samples or shard_bytes, not both.")
    if part is not None and not 0 <= part.number < part.of:
        last = f"Of {max(1, part.of)} parts the last is {max(1, part.of) - 1}/{max(1, part.of)}."
        problems.append(f"part must be i/n with i from 0 to n-1; got {part.number}/{part.of}. {last}")
    if problems:
        raise ValueError("\n".join(problems))


def _is_finished(out: Path, unit: Unit) -> bool:
    size = unit.stream.size if isinstance(unit, StreamTask) else None
    return all(read_record(out, shard, source_bytes=size) is not None for shard in unit.shards)


def _work(plan: Plan, job: Job, pending: list[Unit], *, num_bytes: int, workers: int) -> None:
    tasks = (plan.task(unit) for unit in pending)
    try:
        results = run_tasks(
            partial(run_task, job),
            tasks,
            workers=min(workers, max(1, len(pending))),
            total_bytes=num_bytes,
            label="shards",
        )
        broken = [complaint for complaint in results if complaint]
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise RuntimeError(
            f"the disk of {job.out} is full. Finished shards are kept: make room, and run it again."
        ) from None
    if broken:
        broken.append("All other shards are kept: replace the archives, and run the same command again.")
        raise RuntimeError("\n".join(broken))


def run_task(job: Job, task: Task) -> str | None:
    """Make the task's shards; returns a complaint about an archive that cannot be read."""
    try:
        if isinstance(task, StreamTask):
            _pack_stream(job, task)
        else:
            size = int(task.listing.sizes.clip(min=0).sum())
            read = partial(read_entry, job.root)
            write_shard(job, task.shard, task.listing.entries(), read, source_bytes=size)
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
    with new_shard(job.out, shard, source_bytes=source_bytes) as (writer, found):
        found += rejects
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


def _pack_stream(job: Job, task: StreamTask) -> None:
    # Its images are copied once and shuffled from there: memory stays flat, the shuffle covers all of them.
    # The file has no name, so that it is gone with the process, however that ends.
    with tempfile.TemporaryFile(dir=job.out / PARTS) as file:
        listing, rejects = _spill(job.root / task.stream.name, task.prefix, file)

        def read(entry: Entry) -> bytes:
            return os.pread(file.fileno(), entry.size, entry.place)

        for shard, indices in _stream_slices(listing, task, rejects, seed=job.seed):
            if read_record(job.out, shard, source_bytes=task.stream.size) is None:
                entries = listing.take(indices).entries()
                size = task.stream.size
                write_shard(job, shard, entries, read, source_bytes=size, rejects=rejects, passes=2)
            rejects = []  # they are the archive's, and stand in the record of its first shard


def _spill(path: Path, prefix: str, file: IO[bytes]) -> tuple[Listing, list[Reject]]:
    """Copy the images of a compressed tar into `file`, and list them by position there."""
    builder, rejects = ListingBuilder(), []
    place = 0
    for member, data in stream_images(path, prefix):
        if member.problem is not None:
            rejects.append(Reject(member.name, member.problem))
            continue
        advance(len(data) // 2)  # the other half when they are written to shards
        file.write(data)
        builder.add(member.name, size=len(data), place=place)
        place += len(data)
    file.flush()
    return builder.finish(), rejects


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
