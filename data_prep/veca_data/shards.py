"""Images → shards: the whole stage, restartable at any moment with the same bytes as a result.

The plan fixes which image goes where (plan.py); workers make whole shards (packing.py); finished ones
are recorded and never made twice (records.py); at the end index.json and rejects.jsonl follow from the
records, here or, when several machines made parts, by `merge_parts`.
"""

import errno
import os
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from veca_data.images import Encoding
from veca_data.packing import Job, run_task
from veca_data.plan import DEFAULT_SHARD_BYTES, Plan, ShardSize, StreamTask, Unit, make_plan
from veca_data.pool import num_workers, run_tasks, warm_up
from veca_data.records import Summary, claim_folder, finish, read_record
from veca_data.sources import open_source

DEFAULT_MAX_REJECTS = 0.01


class Part(NamedTuple):
    """One machine's share of the work: every unit whose number leaves `number` when divided by `of`."""

    number: int = 0
    of: int = 1


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
    size, encoding = _checked_size(shard_samples, shard_bytes), _checked_encoding(max_short_side, quality)
    _check_share(max_rejects)
    processes = num_workers(workers)
    part = _checked_part(part) if part else None
    warm_up(processes)
    out = Path(out)
    opened = open_source(source, annotations=tuple(annotations))
    opened.check_whole()
    plan = make_plan(opened, seed=seed, size=size, val_share=val_share, encoding=encoding)
    plan = claim_folder(out, plan)
    _say_ignored(plan)
    mine = [unit for number, unit in enumerate(plan.units) if not part or number % part.of == part.number]
    pending = [unit for unit in mine if not _is_finished(out, unit)]
    _remove_leftovers(out, pending)
    if len(pending) < len(mine):
        print(f"{len(mine) - len(pending)} of {len(mine)} units of work are finished already.")
    started = time.monotonic()
    _work(plan, out, pending, encoding=encoding, workers=processes)
    done_bytes = sum(plan.source_bytes(unit) for unit in pending)
    _say_speed(done_bytes, time.monotonic() - started)
    if part:
        print(f"Part {part.number}/{part.of} is done. When all parts are: veca-data merge {out}")
        return None
    return merge_parts(out, max_rejects=max_rejects)


def merge_parts(out: str | os.PathLike[str], *, max_rejects: float = DEFAULT_MAX_REJECTS) -> Summary:
    """Write index.json and rejects.jsonl when all shards are made."""
    _check_share(max_rejects)
    return finish(Path(out), max_rejects=max_rejects)


def _work(plan: Plan, out: Path, pending: list[Unit], *, encoding: Encoding, workers: int) -> None:
    job = Job(plan.source.root, out, encoding, plan.seed)
    total = sum(plan.source_bytes(unit) for unit in pending)
    tasks = (plan.task(unit) for unit in pending)
    try:
        results = run_tasks(
            partial(run_task, job),
            tasks,
            workers=min(workers, max(1, len(pending))),
            total_bytes=total,
            label="shards",
        )
        broken = [complaint for complaint in results if complaint]
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise RuntimeError(
            f"the disk of {out} is full. Finished shards are kept: make room, and run the same command again."
        ) from None
    if broken:
        raise RuntimeError(
            "\n".join(
                [*broken, "All other shards are kept: replace the archives, and run the same command again."]
            )
        )


def _is_finished(out: Path, unit: Unit) -> bool:
    size = unit.stream.size if isinstance(unit, StreamTask) else None
    return all(read_record(out, shard, source_bytes=size) is not None for shard in unit.shards)


def _remove_leftovers(out: Path, pending: list[Unit]) -> None:
    """Remove the temporary files that a killed run left of the shards to be made now."""
    shards = {shard.removesuffix(".tar") for unit in pending for shard in unit.shards}
    for folder in (out, out / ".parts"):
        for path in folder.glob(".*.tmp"):
            if path.name.lstrip(".").partition(".")[0] in shards:
                path.unlink(missing_ok=True)


def _checked_size(samples: int | None, size: int | None) -> ShardSize:
    if samples is not None and size is not None:
        raise ValueError("give shard_samples or shard_bytes, not both.")
    if samples is not None and samples < 1:
        raise ValueError(f"shard_samples must be at least 1; got {samples}. Try 2000.")
    if size is not None and size < 1:
        raise ValueError(f"shard_bytes must be at least 1; got {size}. Try 256MB.")
    return ShardSize(samples, None if samples else size or DEFAULT_SHARD_BYTES)


def _checked_encoding(max_short_side: int | None, quality: int | None) -> Encoding:
    if max_short_side is not None and max_short_side < 16:
        raise ValueError(
            f"max_short_side must be at least 16, the side of a patch; got {max_short_side}. Try 864."
        )
    if quality is not None and not 1 <= quality <= 95:
        raise ValueError(f"quality must be from 1 to 95; got {quality}. Try 92.")
    return Encoding(max_short_side, quality)


def _checked_part(part: Part) -> Part:
    if part.of < 1 or not 0 <= part.number < part.of:
        raise ValueError(
            f"part must be i/n with i from 0 to n-1; got {part.number}/{part.of}. "
            f"Of {max(1, part.of)} parts the last is {max(1, part.of) - 1}/{max(1, part.of)}."
        )
    return part


def _check_share(max_rejects: float) -> None:
    if not 0 <= max_rejects <= 1:
        raise ValueError(f"max_rejects must be a share from 0 to 1; got {max_rejects}. Try 0.01.")


def _say_ignored(plan: Plan) -> None:
    if plan.ignored:
        listed = ", ".join(f"{count:,} {kind}" for kind, count in plan.ignored.most_common(6) if count)
        print(f"Ignored files: {listed}")


def _say_speed(size: int, seconds: float) -> None:
    print(f"Read {size / 1e9:.2f} GB in {seconds:.1f} s ({size / 1e6 / max(seconds, 1e-9):.0f} MB/s).")
