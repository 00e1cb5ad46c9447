"""Folders and files of strangers: the one rule for what in them is read.

* Regular files only, after following links: a device never ends, and a pipe waits for somebody to write.
* Up to MAX_FILE_BYTES.
* Links may lead out of the folder. What they lead to is read once, under its own name where it has one in the
  folder; a link to a folder it lies in is refused. Hard links are names of their own.
* Names that start with a dot are skipped.
"""

import os
import stat
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from veca.data.decode import BadImage

IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff"})
# An uncompressed image of 16 bits a channel with as many pixels as the decoder accepts has 2^29 bytes.
MAX_FILE_BYTES = 2**29

CYCLE = "link to a folder it lies in"
REPEATED_FILE = "links to files read already"
REPEATED_FOLDER = "links to folders read already"

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}

AnyPath = str | os.PathLike[str]
_Identity = tuple[int, int]  # device, inode


class Found(NamedTuple):
    """A name below a folder; `problem` says why it is not read."""

    name: str  # relative to the folder
    problem: str | None = None


def open_regular(path: AnyPath) -> int:
    """A descriptor of a regular file; BadImage says what anything else is. OSError as usual."""
    # Asked first: to open a device may already do something, and a socket cannot be opened.
    _check_kind(os.stat(path))  # noqa: PTH116  a Path would cost 2 µs
    # Whatever takes the name meanwhile: a pipe is opened without waiting, and found out.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0))
    try:
        _check_kind(os.fstat(descriptor))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read_file(path: AnyPath) -> bytes:
    """The content of a regular file of at most MAX_FILE_BYTES; raises BadImage or OSError."""
    with os.fdopen(open_regular(path), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > MAX_FILE_BYTES:
            raise BadImage("too-large", f"{size:,} bytes; the limit is {MAX_FILE_BYTES:,}")
        return file.read(size)


def read_named(path: AnyPath) -> bytes:
    """`read_file` of a file that somebody named, so that errors name it too."""
    try:
        return read_file(path)
    except BadImage as error:
        raise ValueError(f"{os.fspath(path)}: {error}. Name an image file.") from None


def check_regular(path: AnyPath) -> None:
    """ValueError for what is there and neither a regular file nor a folder, such as a pipe or a device."""
    mode = Path(path).stat().st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise ValueError(f"{os.fspath(path)} is {_kind(mode)}. Name a regular file or a folder.")


def walk(root: Path, is_wanted: Callable[[str], bool]) -> Iterator[Found]:
    """Every file below a folder, each once, and every trouble on the way.

    `is_wanted` tells by its name whether a file will be read. Those are given even when they are broken links
    or no regular files, to be refused by name when they are opened; of the others, only files.
    """
    walker = _Walker(root, is_wanted)
    yield from walker.folder("", ())
    while walker.folder_links:  # after what lies in the folder itself, which has its own name
        links, walker.folder_links = sorted(walker.folder_links), []
        for name, ancestors in links:
            yield from walker.folder(name, ancestors)
    yield from walker.linked_files()


def list_files(root: Path, suffixes: frozenset[str] = IMAGE_SUFFIXES) -> tuple[list[str], int]:
    """Sorted names of all files below a folder with one of the suffixes, and how many others there are."""
    if not root.is_dir():
        raise FileNotFoundError(f"there is no folder {root}.")
    found, refused, others = find_files(root, suffixes)
    for name, problem in refused:
        print(f"{root / name}: {problem}; not read")
    return [name for name, _ in found], others


def find_files(root: Path, suffixes: frozenset[str] = IMAGE_SUFFIXES) -> tuple[list[Found], list[Found], int]:
    """Files with one of the suffixes, names that are refused, and how many others there are.

    Two links to one file are both given, and the second is marked: in a cache of downloads they are how two
    images have equal masks.
    """
    found, refused, others = list[Found](), list[Found](), 0
    for each in walk(root, lambda name: _suffix(name) in suffixes):
        if each.problem not in (None, REPEATED_FILE, REPEATED_FOLDER):
            refused.append(each)
        elif each.problem != REPEATED_FOLDER and _suffix(each.name) in suffixes:
            found.append(each)
        else:
            others += 1
    return sorted(found), sorted(refused), others  # names are unique


class _Walker:
    def __init__(self, root: Path, is_wanted: Callable[[str], bool]) -> None:
        self.folder_links: list[tuple[str, tuple[_Identity, ...]]] = []
        self._root = root
        self._is_wanted = is_wanted
        self._folders: set[_Identity] = set()
        # Hashes, because a million files may lie there. On file systems that tell other inodes in a listing
        # than for the file (some overlays), a file and a link to it are both read.
        self._files = array("q")
        self._file_links: list[str] = []

    def folder(self, top: str, above: tuple[_Identity, ...]) -> Iterator[Found]:
        stack = [(top, above)]
        while stack:
            folder, ancestors = stack.pop()
            try:
                status = (self._root / folder).stat()
                identity = (status.st_dev, status.st_ino)
                if identity in self._folders:
                    yield Found(folder, CYCLE if identity in ancestors else REPEATED_FOLDER)
                    continue
                self._folders.add(identity)
                with os.scandir(self._root / folder) as entries:
                    for entry in entries:
                        if entry.name.startswith("."):
                            continue
                        name = f"{folder}/{entry.name}" if folder else entry.name
                        is_folder = _leads_to(entry.is_dir)
                        if is_folder and entry.is_symlink():
                            self.folder_links.append((name, (*ancestors, identity)))
                        elif is_folder:
                            stack.append((name, (*ancestors, identity)))
                        elif found := self._file(name, entry, device=status.st_dev):
                            yield found
            except OSError as error:
                yield Found(folder or str(self._root), f"unreadable: {error.strerror or error}")

    def _file(self, name: str, entry: "os.DirEntry[str]", *, device: int) -> Found | None:
        if not self._is_wanted(name):
            return Found(name) if _leads_to(entry.is_file) else None
        if entry.is_symlink():
            self._file_links.append(name)
            return None
        self._files.append(hash((device, entry.inode())))
        return Found(name)

    def linked_files(self) -> Iterator[Found]:
        if not self._file_links:
            return
        seen = set(self._files)
        for name in sorted(self._file_links):
            try:
                status = (self._root / name).stat()
            except OSError:
                yield Found(name)  # a broken link: refused when it is opened
                continue
            identity = hash((status.st_dev, status.st_ino))
            yield Found(name, REPEATED_FILE if identity in seen else None)
            seen.add(identity)


def _leads_to(kind: Callable[[], bool]) -> bool:
    try:
        return kind()
    except OSError:  # a link to itself, for one; its neighbours are not to blame
        return False


def _check_kind(status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise BadImage("not-a-file", f"it is {_kind(status.st_mode)}; only regular files are read")


def _kind(mode: int) -> str:
    return _KINDS.get(stat.S_IFMT(mode), "no regular file")


def _suffix(name: str) -> str:
    return os.path.splitext(name)[1].lower()  # noqa: PTH122  a Path would cost 2 µs
