"""Fixtures of the data tests."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.data.shards import write_dataset

MakeShards = Callable[..., Path]


@pytest.fixture
def make_shards(tmp_path: Path) -> MakeShards:
    """`make_shards([5, 3], val=[4], folder="a")` → the folder of a dataset."""

    def make(*counts: Any, folder: str = "shards", **options: Any) -> Path:
        return write_dataset(tmp_path / folder, *counts, **options)

    return make
