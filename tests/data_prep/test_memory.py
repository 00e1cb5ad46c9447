"""Memory stays flat: a million images take hardly more than a few thousand."""

import io
import subprocess
import sys
import tarfile
import threading
import time
import tracemalloc
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from veca_data.plan import ImageEncoding, ShardSize, make_plan
from veca_data.source import open_source

LIMIT = 500 * 10**6

pytestmark = pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="reads memory in /proc")


def _family(pid: int) -> list[int]:
    found = [pid]
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, task.read_text().split()):
            found += _family(child)
    return found


def _memory(pid: int) -> int:
    """Bytes of memory of a process and its descendants; a page that several share counts once."""
    total = 0
    for member in _family(pid):
        try:
            text = Path(f"/proc/{member}/smaps_rollup").read_text()
        except OSError:
            continue  # it has just ended
        total += next(int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("Pss:"))
    return total


def _peak(arguments: list[str]) -> int:
    """Peak memory of a run of veca-data with all its processes."""
    code = "from veca_data.cli import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    errors: list[bytes] = []
    reader = threading.Thread(target=lambda: errors.append(process.stderr.read()))
    reader.start()
    peak = 0
    while process.poll() is None:
        with suppress(OSError):  # it has just ended
            peak = max(peak, _memory(process.pid))
        time.sleep(0.05)
    reader.join()
    process.stderr.close()
    assert process.returncode == 0, errors[0].decode()[-2000:]
    return peak


def _names(count: int) -> Iterator[str]:
    return (f"folder{i % 100:02d}/image_with_a_usual_name_{i:08d}.jpg" for i in range(count))


def _make_zip(path: Path, count: int, data: bytes) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name in _names(count):
            archive.writestr(zipfile.ZipInfo(name), data)


def _make_tar(path: Path, count: int, data: bytes) -> None:
    with tarfile.open(path, "w:gz" if path.suffix == ".gz" else "w", format=tarfile.USTAR_FORMAT) as tar:
        for name in _names(count):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
            tar.members.clear()


def _make_list(path: Path, count: int, data: bytes) -> None:
    """One file under as many names as we like: each bit of a number chooses `./` or `d/../`."""
    (path.parent / "image.jpg").write_bytes(data)
    (path.parent / "d").mkdir()
    with path.open("w") as file:
        for i in range(count):
            detour = "".join("d/../" if i >> bit & 1 else "./" for bit in range(20))
            file.write(f"{detour}image.jpg\n")


MAKERS = {"list.txt": _make_list, "x.zip": _make_zip, "x.tar": _make_tar, "x.tar.gz": _make_tar}


def _run(tmp_path: Path, name: str, count: int, data: bytes, verb: str) -> int:
    """Peak memory of one verb over `count` images."""
    source = tmp_path / str(count) / name
    source.parent.mkdir()
    MAKERS[name](source, count, data)
    more = ["--out", str(source.parent / "out")] if verb == "shards" else []
    return _peak([verb, str(source), "--workers", "2", *more])


@pytest.mark.parametrize("name", ["list.txt", "x.zip", "x.tar"])
def test_an_image_takes_few_bytes_of_memory(tmp_path, name):
    """Listed and planned; the names here have 60 to 80 bytes. Objects would take a thousand."""
    count = 20_000
    MAKERS[name](tmp_path / name, count, b"x")
    tracemalloc.start()
    try:
        source = open_source(tmp_path / name)
        make_plan(source, seed=0, size=ShardSize(bytes=10**6), val_share=None, encoding=ImageEncoding())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak / count < 350


@pytest.mark.parametrize("name", ["list.txt", "x.tar.gz"])
def test_all_processes_together_stay_small(tmp_path, picture, encode, name):
    assert _run(tmp_path, name, 5000, encode(picture(0, 16, 16), quality=20), "shards") < LIMIT / 2


@pytest.mark.torture
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("verb", ["shards", "scan"])
@pytest.mark.parametrize("name", list(MAKERS))
def test_a_million_images(tmp_path, picture, encode, name, verb):
    assert _run(tmp_path, name, 1_000_000, encode(picture(0, 16, 16), quality=20), verb) < LIMIT
