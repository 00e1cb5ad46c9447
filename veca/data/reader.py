"""Samples by number: one `pread` of a byte range, members parsed from it.

In: a shard and the number of a sample in it. Out: its key, image bytes and other members. Shards are opened
when first asked for and the least recently used are closed, so that open files and offsets stay bounded
whatever the size of the dataset. Members are bytes, never objects: nothing is unpickled, and a member of
another kind than the allowed ones makes the sample bad.
"""

import io
import os
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from veca.data.index import Shard, load_offsets
from veca.data.shard_cache import ShardCache
from veca.data.tars import BLOCK, REGULAR, DamagedTar, TarStream, check_sum, parse_number

IMAGE_KINDS = ("jpg", "jpeg", "png", "webp")
ALLOWED_KINDS = (*IMAGE_KINDS, "json", "npy")


class BadSample(ValueError):
    """A sample that cannot be used. `reason` is a short word to count by."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Sample(NamedTuple):
    """One sample as it lies in a shard."""

    shard: int  # number among the reader's shards
    number: int
    key: str
    image: bytes
    members: dict[str, bytes]  # the others, by what follows the key: {"json": b"{…}"}


class _OpenShard(NamedTuple):
    descriptor: int
    offsets: NDArray[np.uint64]


class ShardReader:
    """Reads samples of numbered shards, `max_open` of which are kept open; `cache` holds remote ones."""

    def __init__(self, shards: Sequence[Shard], *, cache: ShardCache | None, max_open: int) -> None:
        self._open: OrderedDict[int, _OpenShard] = OrderedDict()
        self._shards = tuple(shards)
        self._cache = cache
        self._max_open = max_open

    def read(self, shard: int, number: int) -> Sample:
        """Sample `number` of a shard; `BadSample` where its bytes are not a usable sample."""
        begin, end = self.span(shard, number)
        data = os.pread(self._opened(shard).descriptor, end - begin, begin)
        self._check_whole(len(data), shard, begin, end)
        return parse_sample(data, shard=shard, number=number)

    def span(self, shard: int, number: int) -> tuple[int, int]:
        """Where a sample begins and ends in its tar."""
        offsets = self._opened(shard).offsets
        return int(offsets[number]), int(offsets[number + 1])

    def read_span(self, shard: int, begin: int, end: int) -> NDArray[np.uint8]:
        """The bytes [begin, end) of a tar, in memory that may be written to, as tensors want it."""
        data = np.empty(end - begin, np.uint8)
        count = os.preadv(self._opened(shard).descriptor, [data.data], begin)
        self._check_whole(count, shard, begin, end)
        return data

    def prefetch(self, shards: Sequence[int]) -> None:
        """Say which shards come next; remote ones are fetched meanwhile."""
        remote = [self._shards[shard] for shard in shards if self._shards[shard].is_remote]
        if self._cache is not None and remote:
            self._cache.prefetch([(shard.location, shard.info) for shard in remote])

    def name(self, shard: int) -> str:
        return self._shards[shard].location

    def close(self) -> None:
        while self._open:
            os.close(self._open.popitem()[1].descriptor)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": OrderedDict()}

    def __del__(self) -> None:
        self.close()

    def _check_whole(self, count: int, shard: int, begin: int, end: int) -> None:
        if count != end - begin:
            problem = f"ends at byte {begin + count}, not {end}"
            raise OSError(f"{self.name(shard)}: {problem}. It was truncated during the run.")

    def _opened(self, number: int) -> _OpenShard:
        if number in self._open:
            self._open.move_to_end(number)
            return self._open[number]
        while len(self._open) >= self._max_open:
            os.close(self._open.popitem(last=False)[1].descriptor)
        self._open[number] = self._open_shard(self._shards[number])
        return self._open[number]

    def _open_shard(self, shard: Shard) -> _OpenShard:
        if shard.is_remote:
            assert self._cache is not None
            descriptor = self._cache.open(shard.location, shard.info)
            offsets_path = str(self._cache.offsets_path(shard.offsets_location, shard.info))
        else:
            descriptor = os.open(shard.location, os.O_RDONLY)
            offsets_path = shard.offsets_location
        try:
            return _OpenShard(descriptor, load_offsets(offsets_path, samples=shard.info.samples))
        except BaseException:
            os.close(descriptor)
            raise


def parse_sample(data: bytes, *, shard: int, number: int) -> Sample:
    """The sample in a stretch of tar: members of allowed kinds that share one key, one of them an image."""
    keys: set[str] = set()
    members: dict[str, bytes] = {}
    for name, content in tar_members(data):
        folder, _, base = name.rpartition("/")
        stem, _, field = base.partition(".")
        if field.rpartition(".")[2].lower() not in ALLOWED_KINDS:
            raise BadSample("refused-member", f"member {name!r} is not one of {', '.join(ALLOWED_KINDS)}")
        keys.add(f"{folder}/{stem}" if folder else stem)
        members[field.lower()] = content
    images = [kind for kind in IMAGE_KINDS if kind in members]
    if len(keys) != 1 or len(images) != 1:
        raise BadSample("members", f"must be one image under one key, but holds {sorted(keys)} with {images}")
    return Sample(shard, number, keys.pop(), members.pop(images[0]), members)


def tar_members(data: bytes) -> Iterator[tuple[str, bytes]]:
    """(name, content) of the files in a stretch of tar.

    Plain entries are parsed here, twice as fast; anything else (long names, extended headers, links) goes to
    `TarStream`.
    """
    position = 0
    try:
        while position < len(data):
            header = data[position : position + BLOCK]
            if header[156:157] not in REGULAR or header[345:346] != b"\0":
                tar = TarStream(io.BytesIO(data[position:]), length=len(data) - position, wants_end=False)
                for member in tar:
                    if not member.is_regular:
                        raise BadSample("refused-member", f"member {member.name!r} is not a regular file")
                    yield member.name, tar.read(member)
                return
            check_sum(header)
            name, size = parse_header(header)
            yield name, data[position + BLOCK : position + BLOCK + size]
            position += BLOCK + -(-size // BLOCK) * BLOCK
        if position != len(data):
            raise DamagedTar("a member reaches past the end of the sample")
    except DamagedTar as error:
        raise BadSample("tar-header", f"at byte {position} of the sample: {error}") from None


def parse_header(header: bytes) -> tuple[str, int]:
    """Name and size in a plain tar header."""
    return header[:100].rstrip(b"\0").decode("utf-8", "replace"), parse_number(header[124:136])
