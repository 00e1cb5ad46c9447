"""Sources of shards: from what the user names to checked, numbered shards.

A source is a folder with an index (see `index.py`), or the http(s) URL of one. Everything that can be found
wrong without reading images is found here, before any worker starts, and reported at once: missing shards,
truncated tars, offsets that do not fit.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from veca.data.download import Downloader, is_url
from veca.data.index import (
    INDEX_NAME,
    MAX_INDEX_BYTES,
    ShardIndex,
    ShardInfo,
    index_from_json,
    load_index,
    load_offsets,
    offsets_name,
)
from veca.data.order import SourceCounts

_MAX_LISTED = 20


@dataclass(frozen=True)
class Shard:
    """One tar of one source."""

    folder: str  # a local folder or the URL of one
    info: ShardInfo

    @property
    def is_remote(self) -> bool:
        return is_url(self.folder)

    @property
    def location(self) -> str:
        return f"{self.folder}/{self.info.name}"

    @property
    def offsets_location(self) -> str:
        return f"{self.folder}/{offsets_name(self.info.name)}"


@dataclass(frozen=True)
class Source:
    """A folder or URL, its index, and the passes over it that an epoch takes."""

    folder: str
    index: ShardIndex
    weight: float = 1.0

    def shards(self, split: str) -> list[Shard]:
        return [Shard(self.folder, info) for info in self.index.splits.get(split, [])]

    def counts(self, split: str) -> SourceCounts:
        infos = self.index.splits.get(split, [])
        return SourceCounts(tuple(info.samples for info in infos), self.weight)


def open_sources(sources: str | dict[str, float]) -> list[Source]:
    """Read the index of every source; one folder alone has weight 1."""
    weights = {sources: 1.0} if isinstance(sources, str) else sources
    return [
        Source(folder.rstrip("/"), _read_index(folder.rstrip("/")), weight)
        for folder, weight in weights.items()
    ]


def check_shards(shards: Sequence[Shard]) -> None:
    """Raise one error that lists every shard which is missing, truncated or does not fit its offsets."""
    # The threads end here: none is left when workers are forked.
    with ThreadPoolExecutor(max_workers=16) as pool:
        problems = [problem for found in pool.map(_shard_problems, shards) for problem in found]
    if problems:
        raise FileNotFoundError(
            f"{len(problems)} problems with {len(shards)} shards:{listed(problems)}"
            "\nRun `veca data check` on the folder, then copy or make these shards again."
        )


def listed(problems: Sequence[str]) -> str:
    """Problems line by line; of many the first ones."""
    more = len(problems) - _MAX_LISTED
    lines = [*problems[:_MAX_LISTED], *([f"… and {more} more"] if more > 0 else [])]
    return "".join(f"\n  {line}" for line in lines)


def fingerprint(sources: Sequence[Source], split: str) -> str:
    """A short hash of what the data is: shards and weights in order, wherever the folders lie."""
    body = [
        [
            source.weight,
            [[info.name, info.samples, info.sha256] for info in source.index.splits.get(split, [])],
        ]
        for source in sources
    ]
    return hashlib.sha256(json.dumps(body).encode()).hexdigest()[:16]


def _read_index(folder: str) -> ShardIndex:
    if not is_url(folder):
        return load_index(folder)
    location = f"{folder}/{INDEX_NAME}"
    content = Downloader().read(location, max_bytes=MAX_INDEX_BYTES)
    return index_from_json(content.decode("utf-8"), source=location)


def _shard_problems(shard: Shard) -> Iterator[str]:
    if shard.is_remote:
        problem = Downloader(attempts=3).head_problem(shard.location, size=shard.info.bytes)
        return iter([problem] if problem else [])
    return _local_problems(shard)


def _local_problems(shard: Shard) -> Iterator[str]:
    tar = Path(shard.location)
    if not tar.is_file():
        yield f"{tar}: missing"
        return
    size = tar.stat().st_size
    if size != shard.info.bytes:
        yield f"{tar}: {size} bytes, but the index says {shard.info.bytes}"
    try:
        offsets = load_offsets(shard.offsets_location, samples=shard.info.samples)
    except (OSError, ValueError, EOFError) as error:
        yield f"{shard.offsets_location}: {error}"
        return
    if int(offsets[-1]) > shard.info.bytes:
        yield f"{shard.offsets_location}: ends at byte {int(offsets[-1])} of a tar of {shard.info.bytes}"
