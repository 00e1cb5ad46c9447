"""One layer: attention, then a gated feed-forward, both on the normalised residual (method §1).

Shapes: B batch, T = C + N tokens, D width.
"""

from torch import Tensor, nn
from torch.nn import functional as F

from veca.model.attention import CoreAttention

NORM_EPS = 1e-5


class GatedFeedForward(nn.Module):
    """W₂(silu(u) ⊙ v) with [u, v] = W₁x."""

    def __init__(self, *, width: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, 2 * hidden)
        self.fc2 = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        u, v = self.fc1(x).chunk(2, dim=-1)
        out: Tensor = self.fc2(F.silu(u) * v)
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
