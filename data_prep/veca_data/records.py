"""A dataset in the making: its shards, and the working folder `.parts/` that says which of them are done.

    .parts/plan.json             seed, options and shard names; another source, seed or option is refused
    .parts/rejects.jsonl         inputs that were rejected before any shard
    .parts/train-000000.json     Record of a finished shard

Everything here is written whole or not at all, so what is there can be trusted after any crash. Of a shard
the tar comes first, then its offsets, then its record. Equal samples give equal bytes: every field of a tar's
headers is fixed.
"""

import hashlib
import json
import os
import tarfile
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

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
from veca_data.plan import Plan
from veca_data.source import Reject, listed

PARTS = ".parts"
REJECTS_NAME = "rejects.jsonl"

_PLAN_NAME = "plan.json"
_PIECE = 16 * 2**20  # bytes after which the disk is set to work


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


class SampleWriter:
    """Writes samples into a new tar, until `finish`; knows its size, checksum and sample boundaries.

    The layout is what webdataset's TarWriter writes (a test compares the bytes). It is written here because
    TarWriter, through 10 kB pieces, ran at a third of GNU tar's speed, and importing it loads torch into each
    worker: 200 MB and two seconds, for a stage that needs neither.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._hash = hashlib.sha256()
        self._ends = array("Q", [0])
        self._given = 0  # to the disk
        self.bytes = 0

    @property
    def samples(self) -> int:
        return len(self._ends) - 1

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()

    @property
    def offsets(self) -> NDArray[np.uint64]:
        return np.array(self._ends, dtype=np.uint64)

    def write(self, key: str, members: Mapping[str, bytes]) -> None:
        """Append one sample; `members` maps suffixes to contents."""
        pieces: list[bytes] = []
        for suffix, data in sorted(members.items()):
            pieces += (_header(f"{key}.{suffix}", len(data)), data, bytes(-len(data) % tarfile.BLOCKSIZE))
        self._write(b"".join(pieces))
        self._ends.append(self.bytes)

    def finish(self) -> None:
        """Two empty blocks, and more up to a whole record."""
        end = self.bytes + 2 * tarfile.BLOCKSIZE
        self._write(bytes(2 * tarfile.BLOCKSIZE + -end % tarfile.RECORDSIZE))

    def _write(self, data: bytes) -> None:
        self._hash.update(data)
        self._file.write(data)
        self.bytes += len(data)
        if self.bytes - self._given >= _PIECE and hasattr(os, "posix_fadvise"):
            # Let the disk write while we go on: the sync at the end would otherwise find all of it to do. To
            # Linux, "not needed" about new pages means: write them; they stay in memory, being busy.
            size = self.bytes - self._given
            os.posix_fadvise(self._file.fileno(), self._given, size, os.POSIX_FADV_DONTNEED)
            self._given = self.bytes


def claim_folder(out: Path, plan: Plan) -> Plan:
    """Make `out` the home of this plan, or refuse; returns the plan with the shard names it had at first."""
    source = plan.source.path
    if source.is_dir() and out.resolve().is_relative_to(source.resolve()):
        raise ValueError(
            f"out {out} lies inside the source {source}, so that the next run would find the shards among "
            "the images. Give a folder outside of it."
        )
    _check_same(out, plan)
    (out / PARTS).mkdir(parents=True, exist_ok=True)
    _write_rejects(out / PARTS / REJECTS_NAME, plan.rejects)
    if (out / PARTS / _PLAN_NAME).is_file():
        named = _read_plan(out)["archives"]
        units = [u._replace(names=named[u.stream.name]) if u.stream else u for u in plan.units]
        return replace(plan, units=units)
    body = {
        "seed": plan.seed,
        "options": plan.options,
        "shards": [shard for unit in plan.units for shard in unit.shards],
        "archives": {unit.stream.name: unit.names for unit in plan.units if unit.stream},
    }
    write_text_atomic(out / PARTS / _PLAN_NAME, json.dumps(body, indent=1))
    return plan


@contextmanager
def new_shard(out: Path, shard: str, *, source_bytes: int = 0) -> Iterator[tuple[SampleWriter, list[Reject]]]:
    """A shard in the making, and the list of its rejects; nothing is left of it after an error."""
    rejects: list[Reject] = []
    with atomic_path(out / shard) as temporary, temporary.open("xb") as tar:
        writer = SampleWriter(tar)
        yield writer, rejects
        writer.finish()
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
    if not (out / PARTS / _PLAN_NAME).is_file():
        raise FileNotFoundError(
            f"{out} holds no shards to merge: {out / PARTS / _PLAN_NAME} is missing. Run `shards` first."
        )
    plan = _read_plan(out)
    shards: list[str] = sorted(plan["shards"])
    missing = [shard for shard in shards if read_record(out, shard) is None]
    if missing:
        raise ValueError(
            f"{len(missing)} of {len(shards)} shards in {out} are not made yet: {', '.join(missing[:3])}"
            f"{', …' if len(missing) > 3 else ''}. Run the remaining parts, then merge again."
        )
    splits: dict[str, list[ShardInfo]] = {split: [] for split in SPLITS}
    reasons = _write_rejects(out / REJECTS_NAME, chain(_early_rejects(out), gather(out, shards, splits)))
    summary = Summary(out, {split: infos for split, infos in splits.items() if infos}, reasons)
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


def gather(out: Path, shards: Iterable[str], splits: dict[str, list[ShardInfo]]) -> Iterator[Reject]:
    """Put finished shards into `splits`; gives their rejects one by one: there may be a million."""
    for shard in shards:
        record = read_record(out, shard)
        assert record is not None, f"{shard} vanished"
        if record.samples:
            splits.setdefault(shard.partition("-")[0], []).append(record.info)
        yield from record.rejects


def _early_rejects(out: Path) -> Iterator[Reject]:
    with (out / PARTS / REJECTS_NAME).open(encoding="ascii") as file:
        yield from (Reject(**json.loads(line)) for line in file)


def _write_rejects(path: Path, rejects: Iterable[Reject]) -> Counter[str]:
    """Write them one by one, and count them by their kind."""
    kinds: Counter[str] = Counter()
    with atomic_path(path) as temporary, temporary.open("w", encoding="ascii") as file:
        for reject in rejects:
            kinds[reject.kind] += 1
            file.write(json.dumps(reject._asdict()) + "\n")
    return kinds


def _read_plan(out: Path) -> dict[str, Any]:
    plan: dict[str, Any] = json.loads((out / PARTS / _PLAN_NAME).read_text(encoding="utf-8"))
    return plan


def _record_path(out: Path, shard: str) -> Path:
    return out / PARTS / f"{shard.removesuffix('.tar')}.json"


def _check_same(out: Path, plan: Plan) -> None:
    """Refuse a folder that holds anything else than (a part of) this very dataset."""
    if (out / PARTS / _PLAN_NAME).is_file():
        body = _read_plan(out)
        there: dict[str, Any] = {"seed": body["seed"], **body["options"]}
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


@cache
def _blank_header() -> bytes:
    """A header without name and size, its checksum field blank as the sum wants it."""
    info = tarfile.TarInfo("")
    info.mode, info.uname, info.gname = 0o444, "veca", "veca"
    header = info.tobuf(tarfile.USTAR_FORMAT)
    return header[:148] + b" " * 8 + header[156:]


def _header(name: str, size: int) -> bytes:
    """A ustar header, of which only name, size and checksum differ between members."""
    raw = name.encode("ascii")
    assert len(raw) < 100, f"{name!r} is too long for a tar header"
    header = bytearray(_blank_header())
    header[: len(raw)] = raw
    header[124:136] = b"%011o\0" % size
    header[148:155] = b"%06o\0" % sum(header)
    return bytes(header)
