"""The gate of the feed-forward, whose backward pass is written by hand."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from veca.model.block import gate


def plain(x: Tensor) -> Tensor:
    u, v = x.chunk(2, dim=-1)
    return F.silu(u) * v


def test_its_gradient_is_that_of_finite_differences() -> None:
    x = torch.randn(3, 7, 10, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(gate, (x,))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_equals_autograd_bit_for_bit(dtype: torch.dtype) -> None:
    x = torch.randn(5, 64, dtype=dtype)
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    grad = torch.randn(5, 32, dtype=dtype)
    gate(ours).backward(grad)
    plain(theirs).backward(grad)
    assert torch.equal(gate(x), plain(x))
    assert ours.grad is not None
    assert theirs.grad is not None
    assert torch.equal(ours.grad, theirs.grad)


def test_it_keeps_nothing_but_its_input() -> None:
    kept: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    x = torch.randn(4, 6, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        gate(x)
    assert [tensor.data_ptr() for tensor in kept] == [x.data_ptr()]
