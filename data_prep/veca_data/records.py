"""The working folder `.parts/` of a dataset: what it is to hold, and which shards are done.

    .parts/plan.json             seed, options and shard names; another source, seed or option is refused
    .parts/rejects.jsonl         inputs that were rejected before any shard
    .parts/train-000000.json     Record of a finished shard

Everything here is written whole or not at all, so what is there can be trusted after any crash. Of a shard
the tar comes first, then its offsets, then its record.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from veca.data.index import (
    INDEX_NAME,
    SPLITS,
    ShardIndex,
    ShardInfo,
    index_to_json,
    load_index,
    offsets_name,
)
from veca.utils.files import atomic_path, in_bytes, write_text_atomic
from veca_data.listing import Reject, listed
from veca_data.plan import Plan, StreamTask
from veca_data.writer import SampleWriter

PARTS = ".parts"
REJECTS_NAME = "rejects.jsonl"


class Record(NamedTuple):
    """A finished shard. One without samples has no tar, and does not appear in the index."""

    name: str
    samples: int
    bytes: int
    sha256: str
    source_bytes: int
    rejects: Sequence[Reject]

    @property
    def info(self) -> ShardInfo:
        return ShardInfo(self.name, self.samples, self.bytes, self.sha256)


class Summary(NamedTuple):
    """What a finished dataset holds."""

    out: Path
    splits: dict[str, list[ShardInfo]]
    reasons: Counter[str]  # of rejects

    @property
    def rejects(self) -> int:
        return self.reasons.total()

    @property
    def samples(self) -> int:
        return sum(shard.samples for shards in self.splits.values() for shard in shards)

    def __str__(self) -> str:
        lines = [f"{self.out / INDEX_NAME}"]
        for split, shards in self.splits.items():
            samples, size = sum(shard.samples for shard in shards), sum(shard.bytes for shard in shards)
            sizes = f"{in_bytes(size)}, {in_bytes(size / max(1, samples))} each"
            lines.append(f"  {split:6} {samples:,} samples in {len(shards):,} shards, {sizes}")
        reasons = f" ({listed(self.reasons)})" if self.reasons else ""
        where = f", see {REJECTS_NAME}" if self.reasons and (self.out / REJECTS_NAME).is_file() else ""
        lines.append(f"  rejected {self.rejects:,}{reasons}{where}")
        return "\n".join(lines)


def claim_folder(out: Path, plan: Plan) -> Plan:
    """Make `out` the home of this plan, or refuse; returns the plan with the shard names it had at first."""
    _check_place(out, plan.source.path)
    _check_same(out, plan)
    (out / PARTS).mkdir(parents=True, exist_ok=True)
    _write_rejects(out / PARTS / REJECTS_NAME, plan.rejects)
    plan_path = out / PARTS / "plan.json"
    if plan_path.is_file():
        named = json.loads(plan_path.read_text(encoding="utf-8"))["archives"]
        units = (
            u._replace(names=named[u.stream.name]) if isinstance(u, StreamTask) else u for u in plan.units
        )
        return replace(plan, units=tuple(units))
    body = {
        "seed": plan.seed,
        "options": plan.options,
        "shards": [shard for unit in plan.units for shard in unit.shards],
        "archives": {unit.stream.name: unit.names for unit in plan.units if isinstance(unit, StreamTask)},
    }
    write_text_atomic(plan_path, json.dumps(body, indent=1))
    return plan


@contextmanager
def new_shard(out: Path, shard: str, *, source_bytes: int = 0) -> Iterator[tuple[SampleWriter, list[Reject]]]:
    """A shard in the making, and the list of its rejects; nothing is left of it after an error."""
    rejects: list[Reject] = []
    with atomic_path(out / shard) as temporary, SampleWriter(temporary) as writer:
        yield writer, rejects
    if writer.samples:
        with atomic_path(out / offsets_name(shard)) as temporary, temporary.open("wb") as file:
            np.save(file, writer.offsets)
    else:
        (out / shard).unlink()
    write_record(out, Record(shard, writer.samples, writer.bytes, writer.sha256, source_bytes, rejects))


def remove_leftovers(out: Path, shards: Iterable[str]) -> None:
    """Remove the temporary files that a killed run left of these shards."""
    names = {shard.removesuffix(".tar") for shard in shards}
    for folder in (out, out / PARTS):
        for path in folder.glob(".*.tmp"):
            if path.name.lstrip(".").partition(".")[0] in names:
                path.unlink(missing_ok=True)


def write_record(out: Path, record: Record) -> None:
    write_text_atomic(_record_path(out, record.name), json.dumps(record._asdict()))


def read_record(out: Path, shard: str, *, source_bytes: int | None = None) -> Record | None:
    """The record of a finished shard, if its files are still there (and its source has this size)."""
    path = _record_path(out, shard)
    if not path.is_file():
        return None
    body = json.loads(path.read_text(encoding="utf-8"))
    record = Record(**body | {"rejects": [Reject(*reject) for reject in body["rejects"]]})
    if source_bytes is not None and record.source_bytes != source_bytes:
        return None  # the archive has been replaced since
    if record.samples == 0:
        return record
    tar = out / shard
    whole = tar.is_file() and tar.stat().st_size == record.bytes and (out / offsets_name(shard)).is_file()
    return record if whole else None


def finish(out: Path, *, max_rejects: float) -> Summary:
    """Write rejects.jsonl and index.json from the records of all shards."""
    plan_path = out / PARTS / "plan.json"
    if not plan_path.is_file():
        raise FileNotFoundError(
            f"{out} holds no shards to merge: {plan_path} is missing. Run `shards` first."
        )
    plan = json.loads(plan_path.read_text(encoding="utf-8"))
    shards: list[str] = sorted(plan["shards"])
    missing = [shard for shard in shards if read_record(out, shard) is None]
    if missing:
        raise ValueError(
            f"{len(missing)} of {len(shards)} shards in {out} are not made yet: {', '.join(missing[:3])}"
            f"{', …' if len(missing) > 3 else ''}. Run the remaining parts, then merge again."
        )
    summary = _gather(out, shards)
    share = summary.rejects / max(1, summary.rejects + summary.samples)
    if share > max_rejects or not summary.samples:
        (out / INDEX_NAME).unlink(missing_ok=True)
        above = min(1.0, round(share + 0.005, 2))
        raise RuntimeError(
            f"{summary.rejects:,} of {summary.rejects + summary.samples:,} images were rejected "
            f"({share:.2%}; max_rejects allows {max_rejects:.2%}), so {INDEX_NAME} was not written. "
            f"Look into {out / REJECTS_NAME}; to accept it, run again with --max-rejects {above}."
        )
    index = ShardIndex(seed=plan["seed"], options=plan["options"], splits=summary.splits)
    write_text_atomic(out / INDEX_NAME, index_to_json(index))
    return summary


def _gather(out: Path, shards: list[str]) -> Summary:
    """Collect the records, and write their rejects one shard at a time: there may be a million."""
    splits: dict[str, list[ShardInfo]] = {split: [] for split in SPLITS}
    reasons: Counter[str] = Counter()

    def rejects() -> Iterator[Reject]:
        with (out / PARTS / REJECTS_NAME).open(encoding="ascii") as file:
            yield from (Reject(**json.loads(line)) for line in file)
        for shard in shards:
            record = read_record(out, shard)
            assert record is not None, f"{shard} vanished"
            if record.samples:
                splits[shard.partition("-")[0]].append(record.info)
            yield from record.rejects

    def counted() -> Iterator[Reject]:
        for reject in rejects():
            reasons[reject.kind] += 1
            yield reject

    _write_rejects(out / REJECTS_NAME, counted())
    return Summary(out, {split: infos for split, infos in splits.items() if infos}, reasons)


def _write_rejects(path: Path, rejects: Iterable[Reject]) -> None:
    with atomic_path(path) as temporary, temporary.open("w", encoding="ascii") as file:
        file.writelines(json.dumps(reject._asdict()) + "\n" for reject in rejects)


def _record_path(out: Path, shard: str) -> Path:
    return out / PARTS / f"{shard.removesuffix('.tar')}.json"


def _check_place(out: Path, source: Path) -> None:
    if source.is_dir() and out.resolve().is_relative_to(source.resolve()):
        raise ValueError(
            f"out {out} lies inside the source {source}, so that the next run would find the shards among "
            "the images. Give a folder outside of it."
        )


def _check_same(out: Path, plan: Plan) -> None:
    """Refuse a folder that holds anything else than (a part of) this very dataset."""
    plan_path = out / PARTS / "plan.json"
    there: dict[str, Any] = {}
    if plan_path.is_file():
        body = json.loads(plan_path.read_text(encoding="utf-8"))
        there = {"seed": body["seed"], **body["options"]}
    elif (out / INDEX_NAME).is_file():
        index = load_index(out)
        there = {"seed": index.seed, **index.options}
    elif tars := sorted(path.name for split in SPLITS for path in out.glob(f"{split}-*.tar")):
        raise ValueError(f"out {out} already holds {tars[0]} of unknown origin. Give another folder.")
    else:
        return
    here = {"seed": plan.seed, **plan.options}
    names = [name for name in sorted({*there, *here}) if there.get(name) != here.get(name)]
    if names:
        differences = "; ".join(
            f"{name} is {there.get(name)!r} there and {here.get(name)!r} here" for name in names
        )
        raise ValueError(
            f"out {out} already holds another dataset: {differences}. "
            "Give another folder, or remove that one. (The fingerprint stands for the files of the source.)"
        )
