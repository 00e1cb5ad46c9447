"""How fast images become shards, next to GNU tar over the same files.

Files are in the page cache and everybody writes to the same disk, so the numbers are those of the code
and not of the disk. GNU tar returns before its bytes are on the disk; shards are synced, shard by shard.
Both are reported: tar as it is, and tar followed by a sync of its file.
"""

import io
import shutil
import subprocess
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from veca.bench.goals import said
from veca.utils.timing import compare, interleave
from veca_data.shards import make_shards

NUM_FILES = 4000
NUM_REENCODED = 1200  # enough that starting workers does not count
NUM_PICTURES = 16  # different ones; the rest differ in a comment


def run(folder: str | None = None, *, repeats: int = 5) -> dict[str, float]:
    """Time sharding of `folder` (default: generated JPEGs of about 150 kB) and print the ratios."""
    with tempfile.TemporaryDirectory() as scratch:
        work = Path(scratch)
        files = Path(folder) if folder else _make_files(work / "files", NUM_FILES)
        few = _some_files(files, work / "few", NUM_REENCODED)
        timings = interleave(
            {
                "tar": lambda: _tar(files, work, sync=False),
                "tar_sync": lambda: _tar(files, work, sync=True),
                "verbatim": lambda: _shards(files, work, shard_bytes=150_000_000),
                "reencode_1": lambda: _shards(few, work, shard_samples=25, max_short_side=256, workers=1),
                "reencode_2": lambda: _shards(few, work, shard_samples=25, max_short_side=256, workers=2),
            },
            repeats=repeats,
        )
        size = sum(path.stat().st_size for path in files.rglob("*") if path.is_file())
    ratios = {
        "verbatim_vs_tar": ("tar", "verbatim"),
        "verbatim_vs_tar_sync": ("tar_sync", "verbatim"),
        "reencode_2_workers_vs_1": ("reencode_1", "reencode_2"),
    }
    whole = ("tar", "tar_sync", "verbatim")
    rates = {f"{name}_mb_per_s": size / timings[name].median / 1e6 for name in whole}
    return said("shards", compare(timings, ratios) | rates)


def _tar(files: Path, work: Path, *, sync: bool) -> None:
    target = work / "tar" / "files.tar"
    _fresh(target.parent)
    subprocess.run(["tar", "-cf", str(target), "-C", str(files), "."], check=True)
    if sync:
        subprocess.run(["sync", str(target)], check=True)


def _shards(files: Path, work: Path, **options: Any) -> None:
    out = work / "out"
    _fresh(out)
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        make_shards(files, out, val_share=0, max_rejects=1, **options)


def _fresh(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()


def _make_files(folder: Path, count: int) -> Path:
    folder.mkdir()
    pictures = [_jpeg(seed) for seed in range(NUM_PICTURES)]
    for i in range(count):
        comment = b"\xff\xfe\x00\x0a%08d" % i
        (folder / f"image_{i:06d}.jpg").write_bytes(pictures[i % NUM_PICTURES][:-2] + comment + b"\xff\xd9")
    return folder


def _jpeg(seed: int) -> bytes:
    """A noisy picture: about as many bytes as a photo of its size."""
    random = np.random.default_rng(seed)
    coarse = Image.fromarray(random.integers(0, 256, (48, 64, 3), dtype=np.uint8))
    smooth = np.asarray(coarse.resize((640, 480), Image.Resampling.BICUBIC), dtype=np.int16)
    noisy = (smooth + random.integers(-25, 25, smooth.shape)).clip(0, 255).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(noisy).save(buffer, "JPEG", quality=88)
    return buffer.getvalue()


def _some_files(files: Path, folder: Path, count: int) -> Path:
    folder.mkdir()
    for path in sorted(path for path in files.rglob("*") if path.is_file())[:count]:
        (folder / path.name).symlink_to(path.resolve())
    return folder
