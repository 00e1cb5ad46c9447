"""Core-periphery attention: cores read everything, patches read cores only (method §1, paper §3).

With X = [R ; Z], cores first: R' = softmax(Q_R K_Xᵀ/√h) V_X and Z' = softmax(Q_Z K_Rᵀ/√h) V_R.
Two attention calls; no N×N score is ever formed.

Shapes: B batch, C active cores, N patches, T = C + N tokens, D width, H heads, h head width.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from veca.model.rope import rotate


class CoreAttention(nn.Module):
    """Four projections shared by cores and patches around two attention calls."""

    def __init__(self, *, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.q = nn.Linear(width, width)
        self.k = nn.Linear(width, width)
        self.v = nn.Linear(width, width)
        self.out = nn.Linear(width, width)
        self.plain = False  # see `attend`; in training only

    def forward(self, x: Tensor, rotation: Tensor, budget: int) -> Tensor:
        """Tokens (B, T, D), cores first, and their rotation (B, T, h/2, 2) → (B, T, D)."""
        q, k, v = self.project(x, rotation)  # each (B, H, T, h)
        q_cores, q_patches = q.split((budget, q.shape[2] - budget), dim=2)
        plain = self.plain and torch.is_grad_enabled()
        cores = attend(q_cores, k, v, plain=plain)
        patches = attend(q_patches, k[:, :, :budget], v[:, :, :budget], plain=plain)
        mixed = torch.cat((cores.transpose(1, 2), patches.transpose(1, 2)), dim=1)  # (B, T, H, h)
        out: Tensor = self.out(mixed.flatten(-2))
        return out

    def project(self, x: Tensor, rotation: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys (both rotated) and values, each (B, H, T, h)."""
        turns = rotation[:, :, None]
        q, k, v = (x.unflatten(-1, (self.num_heads, -1)) for x in self._products(x))  # (B, T, H, h)
        q, k = rotate(q, turns), rotate(k, turns)
        return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)

    def _products(self, x: Tensor) -> tuple[Tensor, ...]:
        """The three projections of x, each (B, T, D).

        Backward, one product of joined weights is the faster; without a backward pass, joining them costs
        more than it saves (a tenth of the path of `base` and `large` on one image of 256 px).
        """
        if not torch.is_grad_enabled():
            return self.q(x), self.k(x), self.v(x)
        weight = torch.cat((self.q.weight, self.k.weight, self.v.weight))
        bias = torch.cat((self.q.bias, self.k.bias, self.v.bias))
        joined: Tensor = F.linear(x, weight, bias).unflatten(-1, (3, -1))  # (B, T, 3, D)
        return joined.unbind(2)

    def contributions(self, x: Tensor, rotation: Tensor, budget: int) -> Tensor:
        """How much each patch adds to each core's output, as shares of all tokens: (B, C, N).

        For core i and token j it is ‖Σ_heads a_ij · W_out v_j‖₂, normalised over j (method §6). The
        norm of a sum over heads needs only the Gram matrix of each token's head outputs, (H, H),
        so that no C×T×D tensor is formed.
        """
        q, k, v = self.project(x, rotation)
        scores = q[:, :, :budget] @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
        weights = scores.softmax(-1)  # (B, H, C, T)
        out = self.out.weight.unflatten(1, (self.num_heads, -1))  # (D, H, h)
        norms = [_contribution_norms(weights[i], v[i], out) for i in range(len(x))]
        shares = torch.stack(norms)
        shares = shares / shares.sum(-1, keepdim=True).clamp_min(torch.finfo(shares.dtype).tiny)
        return shares[..., budget:]


def attend(q: Tensor, k: Tensor, v: Tensor, *, plain: bool) -> Tensor:
    """softmax(QKᵀ/√h) V, each (B, H, tokens, h).

    On a CPU that trains in bf16, two plain products and a softmax take a quarter off the whole step against
    torch's fused kernel, which has no fast backward pass there. They keep 2NC + C² scores: still linear.
    """
    if plain:
        scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2)
        mixed: Tensor = scores.softmax(-1).to(v.dtype) @ v
        return mixed
    return F.scaled_dot_product_attention(q, k, v)


def _contribution_norms(weights: Tensor, values: Tensor, out: Tensor, block: int = 1024) -> Tensor:
    """One image: weights (H, C, T), values (H, T, h), out (D, H, h) → norms (C, T)."""
    norms = []
    for part, values_part in zip(weights.split(block, -1), values.split(block, 1), strict=True):
        heads = torch.einsum("htc,dhc->thd", values_part, out)  # (T, H, D)
        gram = heads @ heads.transpose(1, 2)  # (T, H, H)
        squared = torch.einsum("gct,tgh,hct->ct", part, gram, part)
        norms.append(squared.clamp_min(0).sqrt())
    return torch.cat(norms, -1)
