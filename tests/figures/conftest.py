"""A small model in a folder, and pictures to look at."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from veca import Veca


@pytest.fixture
def model_dir(tiny_student: Veca, tmp_path: Path) -> Path:
    tiny_student.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def image_dir(tmp_path: Path) -> Path:
    """Three pictures of coloured squares, and masks that say where the squares are."""
    rng = np.random.default_rng(0)
    for folder in ("images", "masks"):
        (tmp_path / folder).mkdir()
    for number in range(3):
        pixels, mask = rng.integers(0, 60, (72, 96, 3), dtype=np.uint8), np.zeros((72, 96), dtype=np.uint8)
        top, left = 8 + 10 * number, 50 - 15 * number
        pixels[top : top + 30, left : left + 30], mask[top : top + 30, left : left + 30] = (250, 180, 40), 1
        mask[:4] = 255
        Image.fromarray(pixels).save(tmp_path / "images" / f"{number}.png")
        Image.fromarray(mask).save(tmp_path / "masks" / f"{number}.png")
    return tmp_path / "images"
