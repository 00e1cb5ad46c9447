"""What was named on the command line → images, in order: files, folders of files, folders of shards.

An image's name is its path as it was given, joined with the path below the folder; a sample of a shard is
SHARD/KEY, which is known when it has been read.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

from veca.data.decode import BadImage
from veca.data.folders import REPEATED_FILE, check_regular, find_files, read_file
from veca.data.index import INDEX_NAME, SPLITS
from veca.data.reader import BadSample, ShardReader
from veca.data.sources import check_shards, open_sources

_MAX_OPEN = 64  # shards


class Encoded(NamedTuple):
    """An image as it lies on the disk."""

    name: str
    data: bytes


class Read(Protocol):
    def __call__(self) -> Encoded: ...


class Item(NamedTuple):
    """An image to read. Reading raises BadImage or OSError."""

    label: str  # what to call it in messages
    name: str | None  # None where it is known only after reading
    read: Read


def list_images(sources: list[str]) -> list[Item]:
    """Every image of the sources; each is a file, a folder with images below it, or a folder of shards."""
    if not sources:
        raise ValueError("images must name at least one file, folder or folder of shards; got none.")
    items = [item for source in sources for item in _items(Path(source))]
    if not items:
        raise FileNotFoundError(f"no images in {', '.join(sources)}.")
    named = [item.name for item in items if item.name is not None]
    if len(set(named)) < len(named):
        twice = next(name for place, name in enumerate(named) if name in named[:place])
        raise ValueError(f"{twice} is named twice. Name each file or its folder, not both.")
    return items


def _items(source: Path) -> Iterator[Item]:
    if source.exists():
        check_regular(source)
    if source.is_file():
        yield _file(str(source), source)
    elif (source / INDEX_NAME).is_file():
        yield from _samples(source)
    elif source.is_dir():
        found, refused, others = find_files(source)
        names = [each.name for each in found if each.problem is None]
        if others:
            print(f"{source}: {others} files are no images and are ignored")
        if len(names) < len(found):
            print(f"{source}: {len(found) - len(names)} {REPEATED_FILE}, and are ignored")
        yield from (_file(str(source / name), source / name) for name in names)
        for name, problem in refused:
            yield Item(str(source / name), str(source / name), partial(_refuse, str(problem)))
    else:
        raise FileNotFoundError(f"{source} is neither a file nor a folder.")


def _file(name: str, path: Path) -> Item:
    return Item(name, name, partial(_read_file, name, path))


def _read_file(name: str, path: Path) -> Encoded:
    return Encoded(name, read_file(path))


def _refuse(problem: str) -> Encoded:
    raise BadImage("refused", problem)


def _samples(folder: Path) -> Iterator[Item]:
    (source,) = open_sources(str(folder))
    shards = [shard for split in SPLITS for shard in source.shards(split)]
    check_shards(shards)
    reader = ShardReader(shards, cache=None, max_open=_MAX_OPEN)
    for place, shard in enumerate(shards):
        for number in range(shard.info.samples):
            label = f"{shard.location}, sample {number}"
            yield Item(label, None, partial(_read_sample, reader, place, number, shard.info.name))


def _read_sample(reader: ShardReader, shard: int, number: int, shard_name: str) -> Encoded:
    try:
        sample = reader.read(shard, number)
    except BadSample as error:
        raise BadImage(error.reason, str(error)) from None
    return Encoded(f"{shard_name.removesuffix('.tar')}/{sample.key}", sample.image)
