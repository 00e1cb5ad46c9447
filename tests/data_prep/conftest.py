"""Tiny images, folders of them, and ways to look into what the data stage wrote."""

import hashlib
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

Sample = dict[str, bytes]


def _picture(seed: int, width: int, height: int) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (height // 4, width // 4, 3), dtype=np.uint8)
    return Image.fromarray(pixels).resize((width, height), Image.Resampling.BICUBIC)


@pytest.fixture(scope="session")
def picture() -> Callable[[int, int, int], Image.Image]:
    """(seed, width, height) → an RGB picture with some structure."""
    return _picture


@pytest.fixture(scope="session")
def encode() -> Callable[..., bytes]:
    """(picture, format, options) → the bytes of a file."""

    def encode(image: Image.Image, name: str = "JPEG", **options: Any) -> bytes:
        buffer = io.BytesIO()
        image.save(buffer, name, **options)
        return buffer.getvalue()

    return encode


@pytest.fixture(scope="session")
def jpegs(encode: Callable[..., bytes]) -> list[bytes]:
    """40 different small JPEGs of several sizes."""
    return [encode(_picture(i, 64 + 4 * (i % 5), 48 + 4 * (i % 3))) for i in range(40)]


@pytest.fixture
def photos(tmp_path: Path, jpegs: list[bytes]) -> Path:
    """A folder tree of 40 images, some with equal names in different folders."""
    folder = tmp_path / "photos"
    for i, data in enumerate(jpegs):
        path = folder / f"day{i % 4}" / f"img_{i // 4:03d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


@pytest.fixture(scope="session")
def read_samples() -> Callable[[Path], dict[str, dict[str, Sample]]]:
    """Folder → shard → key → suffix → bytes, by Python's own tar reader, in the order of the tar."""

    def read(folder: Path) -> dict[str, dict[str, Sample]]:
        shards: dict[str, dict[str, Sample]] = {}
        for path in sorted(folder.glob("*.tar")):
            samples = shards.setdefault(path.name, {})
            with tarfile.open(path) as tar:
                for info in tar:
                    key, _, suffix = info.name.partition(".")
                    file = tar.extractfile(info)
                    assert file is not None
                    samples.setdefault(key, {})[suffix] = file.read()
        return shards

    return read


@pytest.fixture(scope="session")
def sources_of(
    read_samples: Callable[[Path], dict[str, dict[str, Sample]]],
) -> Callable[[Path], dict[str, list[str]]]:
    """Folder → split → the source names of its samples, in order."""

    def sources(folder: Path) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for shard, samples in read_samples(folder).items():
            names = found.setdefault(shard.partition("-")[0], [])
            names += [json.loads(sample["json"])["source"] for sample in samples.values()]
        return found

    return sources


@pytest.fixture(scope="session")
def digests() -> Callable[[Path], dict[str, str]]:
    """Folder → checksums of everything a reader uses: tars, offsets, index and rejects."""

    def digest(folder: Path) -> dict[str, str]:
        files = sorted(path for path in folder.iterdir() if path.is_file())
        return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}

    return digest


@pytest.fixture(scope="session")
def rejects_of() -> Callable[[Path], dict[str, str]]:
    """Folder → path → reason."""

    def rejects(folder: Path) -> dict[str, str]:
        lines = (folder / "rejects.jsonl").read_text().splitlines()
        return {reject["path"]: reject["reason"] for reject in map(json.loads, lines)}

    return rejects
