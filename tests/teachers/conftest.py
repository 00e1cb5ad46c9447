import pytest
import torch
from torch import Tensor


@pytest.fixture
def images() -> Tensor:
    """(3, 3, 48, 80) bytes: a 3×5 grid, so that rows and columns cannot be confused."""
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, 256, (3, 3, 48, 80), dtype=torch.uint8, generator=generator)
