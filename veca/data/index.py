"""The shard index: which tars make up a dataset, and where each sample lies in them.

A dataset is a folder::

    index.json                 ShardIndex: format version, seed, options, splits
    train-000000.tar           a plain WebDataset tar; a sample's members are adjacent
    train-000000.offsets.npy   uint64, samples + 1 entries; sample i is the bytes [o[i], o[i+1]) of the tar
    val-000000.tar …

A sample is one contiguous byte range, so it is read with one `pread` and the order of an epoch
needs only the counts of index.json. The same layout serves images and cached targets.
"""

import json
import os
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

FORMAT = "veca-shards"
VERSION = 1
INDEX_NAME = "index.json"
MAX_INDEX_BYTES = 64 << 20  # of an index.json: 400,000 shards
SPLITS = ("train", "val", "test")

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


def shard_name(split: str, number: int) -> str:
    return f"{split}-{number:06d}.tar"


def offsets_name(shard: str) -> str:
    return shard.removesuffix(".tar") + ".offsets.npy"


def max_offsets_bytes(samples: int) -> int:
    """The most that the offsets of a shard may take: the numbers, and a header."""
    return 8 * (samples + 1) + 4096


def index_to_json(index: ShardIndex) -> str:
    body = {"format": FORMAT, "version": VERSION, **asdict(index)}
    return json.dumps(body, indent=1, sort_keys=True) + "\n"


def index_from_json(text: str, *, source: str) -> ShardIndex:
    """Parse and check an index; `source` names it in errors."""
    try:
        body = json.loads(text)
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


def load_index(folder: str | os.PathLike[str]) -> ShardIndex:
    path = Path(folder) / INDEX_NAME
    if not path.is_file():
        raise FileNotFoundError(f"no {INDEX_NAME} in {folder}. Make shards there with `make shards`.")
    size = path.stat().st_size
    if size > MAX_INDEX_BYTES:
        raise ValueError(
            f"{path} has {size:,} bytes, but an index has at most {MAX_INDEX_BYTES:,}. Make larger shards, "
            "or several folders of them."
        )
    # A byte that is not UTF-8 becomes one that is not JSON, or a name that is not a shard's.
    return index_from_json(path.read_text(encoding="utf-8", errors="replace"), source=str(path))


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


def _shard_from_json(body: dict[str, Any]) -> ShardInfo:
    shard = ShardInfo(
        name=str(body["name"]),
        samples=int(body["samples"]),
        bytes=int(body["bytes"]),
        sha256=str(body["sha256"]),
    )
    # A name is joined to the folder, so one with a slash or a scheme could point anywhere.
    if not _SHARD_NAME.fullmatch(shard.name):
        raise ValueError(f"shard name {shard.name!r} must look like 'train-000000.tar'")
    if shard.samples < 0 or shard.bytes < 0:
        raise ValueError(f"shard {shard.name} has negative counts")
    return shard
