"""Atomic files: a reader sees the old content or the new one, never a half."""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def atomic_path(path: str | os.PathLike[str], *, former: Path | None = None) -> Iterator[Path]:
    """Yield a temporary name beside `path`; on success sync it and rename it into place, else remove it.

    What `path` was before is kept as `former`, beside it; at every moment one of them is whole.

    The name depends on the process, so that two writers of one file do not share a temporary. Whoever may
    read a new file of this process, by its umask, may read this one, however it was written: safetensors
    makes a file for its owner only.
    """
    final = Path(path)
    temporary = final.with_name(f".{final.name}.{os.getpid()}.tmp")
    try:
        temporary.touch()
        mode = temporary.stat().st_mode  # asked of a file: a process can read its umask only by changing it
        temporary.unlink()  # some writers insist on a new file
        yield temporary
        if temporary.stat().st_mode != mode:
            temporary.chmod(mode)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        if former is not None and final.exists():
            _keep(final, former)
        temporary.replace(final)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(final.parent)


def write_text_atomic(path: str | os.PathLike[str], text: str) -> None:
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def check_writable(folder: Path) -> None:
    """Refuse a folder to write in that takes no files, or cannot be made, before the work is done."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        why = "no files can be made in it" if there.is_dir() else "it is no folder"
        raise OSError(f"out: {folder} cannot be written: {there}: {why}. Choose another folder.")


def reserve(path: Path, size: int) -> None:
    """Take the room for a file that is to be mapped: a write where none is left would kill the process."""
    with path.open("ab") as file:
        try:
            os.posix_fallocate(file.fileno(), 0, size)
        except OSError as error:
            path.unlink()
            if error.errno != errno.ENOSPC:
                raise
            free = in_bytes(shutil.disk_usage(path.parent).free)
            raise ValueError(
                f"{path} needs {in_bytes(size)}, {path.parent} has {free}. Take a folder with more room."
            ) from None


def in_bytes(size: float) -> str:
    """`512 B`, `10.2 kB`, `3.4 MB`, `367 GB`: three digits in the decimal unit that fits."""
    for unit in ("B", "kB", "MB"):
        if size < 999.5:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} GB" if size < 999.5 else f"{size:,.0f} GB"


def _keep(path: Path, former: Path) -> None:
    """Give a file a second name, in place of what had it: no byte is copied, and `path` stays meanwhile."""
    link = former.with_name(f".{former.name}.{os.getpid()}.tmp")
    link.unlink(missing_ok=True)
    try:
        link.hardlink_to(path)
    except OSError:  # a file system without hard links
        path.replace(former)
        return
    link.replace(former)
    link.unlink(missing_ok=True)  # a rename onto another name of the same file does nothing


def _sync_folder(folder: Path) -> None:
    """Make a rename last through a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:  # some network file systems sync no folders: the rename is done all the same
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)
