"""VECA as one writes it down from the method, with the weights of a `Veca`: what the model is timed against.

Nothing here is slow on purpose: three products for q, k and v, the rotation as the formula reads, angles of
all tokens computed again in every layer, and everything concatenated where the method concatenates it.

Shapes: B batch, C active cores, N patches, T = C + N tokens, D width, H heads, h head width.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from veca.model import Veca
from veca.model.attention import CoreAttention
from veca.model.block import Block
from veca.model.rope import frequencies, patch_coordinates
from veca.types import Features


def straightforward(model: Veca, images: Tensor, budget: int) -> Features:
    """The features of `model`, without RoPE augmentation."""
    z = model.patch_embed(images)
    rows, cols = z.shape[-2:]
    z = z.flatten(2).transpose(1, 2)  # (B, N, D)
    groups = budget // model.size.core_group
    r = torch.cat(list(model.cores.tokens[:groups]), dim=1).expand(len(images), -1, -1)  # (B, C, D)
    p = torch.cat(list(model.cores.coordinates[:groups]), dim=1).expand(len(images), -1, -1)
    turn_rate = frequencies(model.size.head_width, device=z.device, dtype=z.dtype)
    places = patch_coordinates(rows, cols, device=z.device, dtype=z.dtype).expand(len(images), -1, -1)
    for number, block in enumerate(model.blocks):
        assert isinstance(block, Block)
        if number:
            p = p + model.coordinate_scales[number - 1] * model.coordinate_heads[number - 1](r)
        coordinates = torch.cat((p.tanh(), places), dim=1)
        x = torch.cat((r, z), dim=1)
        x = x + _attend(block.attn, block.norm_attn(x), coordinates, turn_rate, budget)
        u, v = block.ffn.fc1(block.norm_ffn(x)).chunk(2, dim=-1)
        x = x + block.ffn.fc2(F.silu(u) * v)
        r, z = x[:, :budget], x[:, budget:]
    x = model.final_norm(torch.cat((r, z), dim=1))
    if model.output_proj is not None:
        x = model.output_proj(x)
    return Features(cls=x[:, 0], patches=x[:, budget:], cores=x[:, :budget], grid=(rows, cols))


def _attend(attn: CoreAttention, x: Tensor, coordinates: Tensor, turn_rate: Tensor, budget: int) -> Tensor:
    q, k, v = (_heads(project(x), attn.num_heads) for project in (attn.q, attn.k, attn.v))
    q, k = _turn(q, coordinates, turn_rate), _turn(k, coordinates, turn_rate)
    cores = F.scaled_dot_product_attention(q[:, :, :budget], k, v)
    patches = F.scaled_dot_product_attention(q[:, :, budget:], k[:, :, :budget], v[:, :, :budget])
    out: Tensor = attn.out(torch.cat((cores, patches), dim=2).transpose(1, 2).flatten(2))
    return out


def _heads(x: Tensor, num_heads: int) -> Tensor:
    return x.reshape(*x.shape[:2], num_heads, -1).transpose(1, 2)  # (B, H, T, h)


def _turn(x: Tensor, coordinates: Tensor, turn_rate: Tensor) -> Tensor:
    angles = (coordinates[..., None] * turn_rate).flatten(-2)[:, None]  # (B, 1, T, h/2)
    a, b = x[..., 0::2], x[..., 1::2]
    turned = (a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos())
    return torch.stack(turned, dim=-1).flatten(-2)
