"""Fixtures that several parts share."""

from pathlib import Path

import pytest
import torch

from veca import Veca, create_model


@pytest.fixture
def tiny_student() -> Veca:
    """A student small enough for float64 references: 3 layers, 2 heads of 16 channels, 16 cores."""
    torch.manual_seed(0)
    return create_model("tiny", width=32, depth=3, num_heads=2, num_cores=16, core_group=4)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Small real images that lie beside a checkout; absent elsewhere."""
    folder = Path(__file__).resolve().parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("real sample images are not beside this checkout")
    return folder
