"""Shards: the index of a folder, the sources that a user names, and what is checked before any worker starts.

A dataset is a folder, or the http(s) URL of one::

    index.json                 ShardIndex: format version, seed, options, splits
    train-000000.tar           a plain WebDataset tar; a sample's members are adjacent
    train-000000.offsets.npy   uint64, samples + 1 entries; sample i is the bytes [o[i], o[i+1]) of the tar
    val-000000.tar …

A sample is one contiguous byte range, so it is read with one `pread` and the order of an epoch
needs only the counts of index.json. The same layout serves images and cached targets.
"""

import hashlib
import json
import os
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veca.data.order import SourceCounts
from veca.data.transport import Downloader, is_url

FORMAT = "veca-shards"
VERSION = 1
INDEX_NAME = "index.json"
MAX_INDEX_BYTES = 64 << 20  # of an index.json: 400,000 shards
SPLITS = ("train", "val", "test")

_MAX_LISTED = 20
_SHARD_NAME = re.compile(rf"({'|'.join(SPLITS)})-\d{{6}}\.tar")


@dataclass(frozen=True)
class ShardInfo:
    """One tar, as the index records it."""

    name: str
    samples: int
    bytes: int
    sha256: str


@dataclass(frozen=True)
class ShardIndex:
    """The content of index.json."""

    seed: int
    options: dict[str, Any]
    splits: dict[str, list[ShardInfo]] = field(default_factory=dict)

    def num_samples(self, split: str) -> int:
        return sum(shard.samples for shard in self.splits.get(split, []))


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
        return SourceCounts(tuple(shard.info.samples for shard in self.shards(split)), self.weight)


def shard_name(split: str, number: int) -> str:
    return f"{split}-{number:06d}.tar"


def offsets_name(shard: str) -> str:
    return shard.removesuffix(".tar") + ".offsets.npy"


def index_to_json(index: ShardIndex) -> str:
    body = {"format": FORMAT, "version": VERSION, **asdict(index)}
    return json.dumps(body, indent=1, sort_keys=True) + "\n"


def load_index(folder: str | os.PathLike[str]) -> ShardIndex:
    """Read and check the index of a folder or URL."""
    is_remote = is_url(os.fspath(folder))
    source = f"{folder}/{INDEX_NAME}" if is_remote else str(Path(folder) / INDEX_NAME)
    if is_remote:
        content = Downloader().read(source, max_bytes=MAX_INDEX_BYTES)
    elif not (path := Path(source)).is_file():
        raise FileNotFoundError(f"no {INDEX_NAME} in {folder}. Make shards there with `make shards`.")
    elif (size := path.stat().st_size) > MAX_INDEX_BYTES:
        raise ValueError(
            f"{path} has {size:,} bytes, but an index has at most {MAX_INDEX_BYTES:,}. Make larger shards, "
            "or several folders of them."
        )
    else:
        content = path.read_bytes()
    try:
        # A byte that is not UTF-8 becomes one that is not JSON, or a name that is not a shard's.
        body = json.loads(content.decode("utf-8", errors="replace"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{source} is not valid JSON ({error}). Make the shards again.") from None
    if not isinstance(body, dict) or body.get("format") != FORMAT:
        raise ValueError(f"{source} is not a shard index: its format must be {FORMAT!r}.")
    if body.get("version") != VERSION:
        raise ValueError(
            f"{source} has format version {body.get('version')!r}; this release reads {VERSION}. "
            "Make the shards again, or use the release that made them."
        )
    try:
        splits = {
            split: [_shard_from_json(shard) for shard in shards] for split, shards in body["splits"].items()
        }
        index = ShardIndex(seed=int(body["seed"]), options=dict(body["options"]), splits=splits)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise ValueError(f"{source} is damaged: {error!r}. Make the shards again.") from None
    unknown = sorted(set(index.splits) - set(SPLITS))
    if unknown:
        raise ValueError(f"{source} lists unknown splits {unknown}; known are {list(SPLITS)}.")
    return index


def load_offsets(path: str | os.PathLike[str], *, samples: int) -> NDArray[np.uint64]:
    """Read one shard's sample boundaries and check them against the index."""
    try:
        offsets: NDArray[np.uint64] = np.load(path, allow_pickle=False)
    except OSError:
        raise
    except Exception as error:  # a damaged header makes NumPy's parser fail in any way there is
        raise ValueError(f"{path} is not an intact .npy file ({error!r}). Make the shard again.") from None
    if offsets.dtype != np.uint64 or offsets.shape != (samples + 1,):
        raise ValueError(
            f"{path} holds {offsets.dtype}{offsets.shape}, not {samples + 1} uint64 offsets. "
            "Run `veca data check`, then make the shard again."
        )
    if samples and not bool((offsets[1:] > offsets[:-1]).all()):
        raise ValueError(f"{path} is not increasing. Run `veca data check`, then make the shard again.")
    return offsets


def open_sources(sources: str | dict[str, float]) -> list[Source]:
    """Read the index of every source; one folder alone has weight 1."""
    weights = {sources: 1.0} if isinstance(sources, str) else sources
    return [
        Source(folder.rstrip("/"), load_index(folder.rstrip("/")), weight)
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
    body = []
    for source in sources:
        infos = [shard.info for shard in source.shards(split)]
        body.append([source.weight, [[info.name, info.samples, info.sha256] for info in infos]])
    return hashlib.sha256(json.dumps(body).encode()).hexdigest()[:16]


def _shard_from_json(body: dict[str, Any]) -> ShardInfo:
    shard = ShardInfo(str(body["name"]), int(body["samples"]), int(body["bytes"]), str(body["sha256"]))
    # A name is joined to the folder, so one with a slash or a scheme could point anywhere.
    if not _SHARD_NAME.fullmatch(shard.name):
        raise ValueError(f"shard name {shard.name!r} must look like 'train-000000.tar'")
    if shard.samples < 0 or shard.bytes < 0:
        raise ValueError(f"shard {shard.name} has negative counts")
    return shard


def _shard_problems(shard: Shard) -> list[str]:
    if shard.is_remote:
        problem = Downloader(attempts=3).head_problem(shard.location, size=shard.info.bytes)
        return [problem] if problem else []
    tar = Path(shard.location)
    if not tar.is_file():
        return [f"{tar}: missing"]
    problems, size = list[str](), tar.stat().st_size
    if size != shard.info.bytes:
        problems.append(f"{tar}: {size} bytes, but the index says {shard.info.bytes}")
    try:
        end = int(load_offsets(shard.offsets_location, samples=shard.info.samples)[-1])
        if end > shard.info.bytes:
            problems.append(f"{shard.offsets_location}: ends at byte {end} of a tar of {shard.info.bytes}")
    except (OSError, ValueError, EOFError) as error:
        problems.append(f"{shard.offsets_location}: {error}")
    return problems
