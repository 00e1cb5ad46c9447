"""Fixtures that several parts share."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from tests.data.shards import write_dataset
from veca import Veca, create_model


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Toy sizes run faster on one thread, and alike on every machine.

    In the environment too: a Trainer takes all cores where that does not say how many.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def no_rank() -> Iterator[None]:
    """A Trainer leaves its rank in the environment: a process started later would take it for its own."""
    yield
    for name in ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "NODE_RANK", "LOCAL_RANK", "RANK"):
        os.environ.pop(name, None)


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


@pytest.fixture(scope="session")
def tiny_shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """50 training samples in three uneven shards and 9 for validation."""
    return write_dataset(tmp_path_factory.mktemp("tiny") / "shards", [20, 13, 17], [9])


@pytest.fixture
def make_tiny_shards(tmp_path: Path) -> Callable[..., Path]:
    """`make_tiny_shards([8])`: a dataset with these many samples per training shard."""
    return lambda train, val=(): write_dataset(tmp_path / "shards", train, val)
