"""One layer: attention, then a gated feed-forward, both on the normalised residual (method §1).

Shapes: B batch, T = C + N tokens, D width.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from veca.model.attention import CoreAttention

NORM_EPS = 1e-5


def gate(x: Tensor) -> Tensor:
    """silu(u) ⊙ v with [u, v] = x."""
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        out: Tensor = _Gate.apply(x)  # type: ignore[no-untyped-call]  # torch does not type it
        return out
    u, v = x.chunk(2, dim=-1)
    return F.silu(u) * v


class _Gate(torch.autograd.Function):
    """Keeps [u, v] for the backward pass and not silu(u) too, which is quick to compute again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        u, v = x.chunk(2, dim=-1)
        return F.silu(u).mul_(v)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        u, v = x.chunk(2, dim=-1)
        out = torch.empty_like(x)
        grad_u, grad_v = out.chunk(2, dim=-1)
        torch.mul(grad, F.silu(u), out=grad_v)
        torch.ops.aten.silu_backward.grad_input(grad * v, u, grad_input=grad_u)
        return out


class GatedFeedForward(nn.Module):
    """W₂(silu(u) ⊙ v) with [u, v] = W₁x."""

    def __init__(self, *, width: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, 2 * hidden)
        self.fc2 = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc2(gate(self.fc1(x)))
        return out


class Block(nn.Module):
    """x += attention(LN(x)); x += feed-forward(LN(x)), on cores and patches alike."""

    def __init__(self, *, width: int, num_heads: int, ffn_width: int) -> None:
        super().__init__()
        self.norm_attn = nn.LayerNorm(width, eps=NORM_EPS)
        self.attn = CoreAttention(width=width, num_heads=num_heads)
        self.norm_ffn = nn.LayerNorm(width, eps=NORM_EPS)
        self.ffn = GatedFeedForward(width=width, hidden=ffn_width)

    def forward(self, x: Tensor, rotation: Tensor, budget: int) -> Tensor:
        x = x + self.attn(self.norm_attn(x), rotation, budget)
        out: Tensor = x + self.ffn(self.norm_ffn(x))
        return out
