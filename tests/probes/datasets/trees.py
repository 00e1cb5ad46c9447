"""Tiny trees in the layouts that owners ship, written file by file, by nothing that is under test."""

import io
import json
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike
from PIL import Image

SIZE = (24, 16)  # width, height


def write_text(path: Path, lines: Iterable[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_json(path: Path, body: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(body), encoding="utf-8")


def write_image(path: Path, shade: int = 0, *, size: tuple[int, int] = SIZE) -> None:
    """A flat picture; its shade tells which one it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    kind = "PNG" if path.suffix == ".png" else "JPEG"
    Image.new("RGB", size, (shade, shade, shade)).save(path, kind)


def write_map(path: Path, values: ArrayLike, *, palette: bool = False, bits: int = 8) -> None:
    """A mask or depth map: the values fill the columns from left to right."""
    path.parent.mkdir(parents=True, exist_ok=True)
    row = np.resize(np.asarray(values), SIZE[0])
    pixels = np.tile(row, (SIZE[1], 1)).astype(np.uint8 if bits == 8 else np.uint16)
    image = Image.fromarray(pixels)
    if palette:
        image.putpalette([value // 3 for value in range(768)][::-1])  # colours that are not the indices
    image.save(path)


def write_classes(root: Path, counts: Mapping[str, int], *, end: str = ".jpg") -> None:
    """`{"train/cat": 2}`: two images in that folder."""
    for folder, count in counts.items():
        for number in range(count):
            write_image(root / folder / f"{number}{end}", number)


def shade(image: bytes) -> int:
    """Which picture it is, within what JPEG loses."""
    return int(np.asarray(Image.open(io.BytesIO(image)).convert("L")).mean().round())
