"""Shards behind http(s): download once, check, keep on a local disk within a bound.

In: the URL of a shard and its size and sha256 from the index. Out: a local file with that content.

Many processes (ranks × workers) share one cache folder without talking to each other. Files are named by
their sha256 and appear by rename, so a name that exists is whole and right. `flock` does the rest, because
the kernel drops it when a process dies: the writer of a part file holds it exclusively, a reader of a shard
holds it shared, and nothing locked is removed.
"""

import contextlib
import fcntl
import logging
import os
import queue
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from veca.data.index import ShardInfo
from veca.data.transport import Downloader
from veca.utils.files import atomic_path

_OFFSETS = ".offsets.npy"

Wanted = Sequence[tuple[str, ShardInfo]]

log = logging.getLogger(__name__)


class ShardCache:
    """Local copies of remote shards, at most `max_bytes` of them.

    The least recently opened shards go first; one that any process has open stays. Where every shard is in
    use, a shard that is needed now is still fetched, one that is only prefetched is not. The bound includes
    part files; the folder is to lie on a disk of the machine itself.
    """

    def __init__(
        self, folder: str | os.PathLike[str], *, max_bytes: int, downloader: Downloader | None = None
    ) -> None:
        self.folder = Path(folder)
        self.max_bytes = max_bytes
        self.downloader = downloader or Downloader()
        self._queue: queue.SimpleQueue[Wanted] | None = None
        self._wanted: Wanted = ()

    def path(self, info: ShardInfo) -> Path:
        return self.folder / f"{info.sha256}.tar"

    def open(self, url: str, info: ShardInfo) -> int:
        """A descriptor of the local copy, which is fetched first if need be.

        It carries a shared lock until it is closed, so the shard stays while it is read.
        """
        while True:
            self.fetch(url, info, needed_now=True)
            with contextlib.suppress(FileNotFoundError):  # evicted since: fetch it again
                descriptor = os.open(self.path(info), os.O_RDONLY)
                fcntl.flock(descriptor, fcntl.LOCK_SH)
                os.utime(descriptor)  # eviction goes by the time of last use
                return descriptor

    def offsets_path(self, url: str, info: ShardInfo) -> Path:
        """The local copy of a shard's offsets; it goes when the shard goes, so open the shard first."""
        path = self.path(info).with_suffix(_OFFSETS)
        if not path.exists():
            most = 8 * (info.samples + 1) + 4096  # the numbers, and a header
            with atomic_path(path) as temporary:
                temporary.write_bytes(self.downloader.read(url, max_bytes=most))
        return path

    def prefetch(self, shards: Wanted) -> None:
        """Fetch these in the background, in order; a later call replaces what has not begun.

        The thread belongs to the process that reads, and starts with its first request: a process that only
        forks workers has none.
        """
        if list(shards) == list(self._wanted):
            return
        self._wanted = list(shards)
        if self._queue is None:
            self._queue = queue.SimpleQueue()
            threading.Thread(target=self._prefetch_loop, args=(self._queue,), daemon=True).start()
        self._queue.put(self._wanted)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_queue": None, "_wanted": ()}

    def fetch(self, url: str, info: ShardInfo, *, needed_now: bool = False) -> bool:
        """Make the local copy exist. One process downloads, and the others wait for it.

        A shard that is not `needed_now` is left to that process, or out of a cache full of shards in use.
        """
        path = self.path(info)
        if path.exists():
            return True
        self.folder.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        with _exclusive(part, wait=needed_now) as file:
            if file is None:
                return False
            try:
                if not path.exists() and self._make_room(file, info.bytes, needed_now=needed_now):
                    self.downloader.save(url, file, size=info.bytes, sha256=info.sha256)
                    os.fsync(file.fileno())
                    part.rename(path)
            finally:
                part.unlink(missing_ok=True)
        return path.exists()

    def _prefetch_loop(self, wanted: "queue.SimpleQueue[Wanted]") -> None:
        while True:
            for url, info in wanted.get():
                try:
                    self.fetch(url, info)
                except OSError as error:  # the reader meets the same error if it lasts, and stops the run
                    log.warning("prefetching failed: %s", error)
                if not wanted.empty():
                    break

    def _make_room(self, file: IO[bytes], size: int, *, needed_now: bool) -> bool:
        """Evict until `size` more bytes fit, and reserve them as the length of the part file."""
        with _exclusive(self.folder / "lock", wait=True):
            file.truncate(0)
            excess = sum(bytes_ for _, bytes_ in self._entries()) + size - self.max_bytes
            for path, _ in self._entries():
                if excess > 0:
                    excess -= _evict(path)
            if excess > 0 and not needed_now:
                return False
            if excess > 0:
                log.warning("%s exceeds its %d bytes: all its shards are in use", self.folder, self.max_bytes)
            file.truncate(size)
            return True

    def _entries(self) -> list[tuple[Path, int]]:
        """Part files and shards with their bytes, least recently used first."""
        found = []
        # Part files first: one that is renamed meanwhile is then met as a shard rather than missed.
        for path in [*self.folder.glob("*.part"), *self.folder.glob("*.tar")]:
            with contextlib.suppress(FileNotFoundError):
                status = path.stat()
                found.append((status.st_mtime_ns, path, status.st_size))
        return [(path, size) for _, path, size in sorted(found)]


def _evict(path: Path) -> int:
    """Remove a file that nobody has locked; the bytes won. An unlocked part file is a dead process's."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
            path.with_suffix(_OFFSETS).unlink(missing_ok=True)
            return os.fstat(file.fileno()).st_size
    except (BlockingIOError, FileNotFoundError):
        return 0


@contextlib.contextmanager
def _exclusive(path: Path, *, wait: bool) -> Iterator[IO[bytes] | None]:
    """Create or open a file and hold it exclusively; None where another has it and `wait` is off."""
    while True:
        with open(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b") as file:  # noqa: PTH123 (a descriptor)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                yield None
                return
            if _names(path, file):
                yield file
                return
            # The holder before us renamed or removed the file: our lock is on something else. Again.


def _names(path: Path, file: IO[bytes]) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False
