"""The two sides of a layer apart: cores that read patches in any number of parts, patches that read cores.

`Veca.forward` runs both at once. Here the cores go through the layers by themselves, and patches are shown to
them as they come: all at once for a memory, part by part for an image that does not fit.

Shapes: B images, C active cores, n patches, D width, H heads, h head width, p the side of a patch.
"""

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from veca.model.block import Block
from veca.model.rope import frequencies, rotate, rotation

if TYPE_CHECKING:
    from veca.model.veca import Veca


class Cores:
    """The cores' side of a forward pass, layer by layer, to which patches are shown in any number of parts.

    Their attention keeps a running softmax, so the parts together are exactly the whole.
    """

    def __init__(self, model: "Veca", *, budget: int, batch: int = 1) -> None:
        self.model = model
        tokens, coordinates = model.cores(budget)
        self.precision = torch.promote_types(coordinates.dtype, torch.float32)
        self.turn_rate = frequencies(model.size.head_width, device=tokens.device, dtype=self.precision)
        self.states = tokens.expand(batch, -1, -1)  # (B, C, D)
        self.coordinates = coordinates.to(self.precision).expand(batch, -1, -1)
        self.keys: list[Tensor] = []  # (B, H, C, h) of each layer so far, as `values`
        self.values: list[Tensor] = []
        self.running: RunningAttention | None = None

    @property
    def block(self) -> Block:
        """The layer that was entered last."""
        block = self.model.blocks[len(self.keys) - 1]
        assert isinstance(block, Block)
        return block

    def enter_layer(self) -> None:
        """Move the cores to their places in the next layer; from then on its patches can be run."""
        number = len(self.keys)
        if number:
            self.coordinates = self.model._move(self.coordinates, self.states, number - 1)
        block = self.model.blocks[number]
        assert isinstance(block, Block)
        turns = rotation(self.coordinates.tanh(), self.turn_rate)
        queries, keys, values = block.attn.project(block.norm_attn(self.states), turns)
        self.keys.append(keys)
        self.values.append(values)
        self.running = RunningAttention.start(queries, self.precision).read(keys, values)

    def read(self, patches: Tensor, turns: Tensor) -> None:
        """Let the cores read some patches (B, n, D) as they enter the layer."""
        assert self.running is not None
        attn = self.block.attn
        x = self.block.norm_attn(patches)
        keys, values = (product(x).unflatten(-1, (attn.num_heads, -1)) for product in (attn.k, attn.v))
        keys = rotate(keys, turns[:, :, None])
        self.running = self.running.read(keys.transpose(1, 2), values.transpose(1, 2))

    def leave_layer(self) -> None:
        """The cores' states after the layer, once they have read all patches."""
        assert self.running is not None
        mixed = self.running.result().to(self.states.dtype)
        self.states = _mix(self.block, self.states, mixed)

    def run(self, patches: Tensor, turns: Tensor) -> Tensor:
        """Patches (B, n, D) after the layer."""
        return run_patches(self.block, patches, turns, self.keys[-1], self.values[-1])

    def turns(self, places: Tensor) -> Tensor:
        return rotation(places.to(self.precision), self.turn_rate)


class RunningAttention(NamedTuple):
    """softmax(QKᵀ/√h) V over keys and values that come in parts: each part is weighed by the peak so far."""

    queries: Tensor  # (B, H, C, h)
    peak: Tensor  # (B, H, C, 1), the highest score
    total: Tensor  # (B, H, C, 1), Σ exp(score − peak)
    mixed: Tensor  # (B, H, C, h), Σ exp(score − peak) · value

    @classmethod
    def start(cls, queries: Tensor, precision: torch.dtype) -> "RunningAttention":
        like = queries[..., :1].to(precision)
        empty = torch.zeros_like(queries, dtype=precision)
        return cls(queries, torch.full_like(like, -torch.inf), torch.zeros_like(like), empty)

    def read(self, keys: Tensor, values: Tensor) -> "RunningAttention":
        """With more keys and values, (B, H, n, h) each."""
        queries, precision = self.queries, self.peak.dtype
        scores = (queries * queries.shape[-1] ** -0.5 @ keys.transpose(-1, -2)).to(precision)
        peak = torch.maximum(self.peak, scores.amax(-1, keepdim=True))
        weights = (scores - peak).exp()
        fade = (self.peak - peak).exp()
        total = self.total * fade + weights.sum(-1, keepdim=True)
        mixed = self.mixed * fade + (weights.to(values.dtype) @ values).to(precision)
        return RunningAttention(queries, peak, total, mixed)

    def result(self) -> Tensor:
        return self.mixed / self.total


def embed(model: "Veca", pixels: Tensor) -> Tensor:
    """Patch embeddings (…, D) of flat crops (…, 3·p·p)."""
    weight = model.patch_embed.weight
    # Autocast would leave the whole residual stream in half precision: in the forward, cores lift it.
    return F.linear(pixels, weight.flatten(1), model.patch_embed.bias).to(weight.dtype)


def run_patches(block: Block, patches: Tensor, turns: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Patches (B, n, D) after a layer, given what they read from its cores."""
    attn = block.attn
    queries = attn.q(block.norm_attn(patches)).unflatten(-1, (attn.num_heads, -1))
    queries = rotate(queries, turns[:, :, None]).transpose(1, 2)
    dtype = queries.dtype
    return _mix(block, patches, F.scaled_dot_product_attention(queries, keys.to(dtype), values.to(dtype)))


def finish(model: "Veca", x: Tensor) -> Tensor:
    """What the model gives of states after the last layer."""
    x = model.final_norm(x)
    return x if model.output_proj is None else model.output_proj(x)


def _mix(block: Block, x: Tensor, mixed: Tensor) -> Tensor:
    """The rest of a layer, after its attention (B, H, tokens, h)."""
    x = x + block.attn.out(mixed.transpose(1, 2).flatten(-2))
    out: Tensor = x + block.ffn(block.norm_ffn(x))
    return out
