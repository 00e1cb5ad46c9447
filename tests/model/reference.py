"""A slow, obvious VECA: one full attention matrix with patch–patch pairs masked, loops over heads and pairs.

Written from the method's text alone; shares no code with veca.model.
"""

import math

import torch
from torch import Tensor


def forward(weights: dict[str, Tensor], images: Tensor, *, num_heads: int, num_cores: int) -> Tensor:
    """All tokens after the last norm, cores first: (B, C + N, D)."""
    outputs = [_one_image(weights, image, num_heads, num_cores) for image in images]
    return torch.stack(outputs)


def _one_image(w: dict[str, Tensor], image: Tensor, num_heads: int, num_cores: int) -> Tensor:
    kernel = w["patch_embed.weight"]
    width, side = kernel.shape[0], kernel.shape[-1]
    rows, cols = image.shape[1] // side, image.shape[2] // side
    depth = 1 + max(int(name.split(".")[1]) for name in w if name.startswith("blocks."))

    patches, patch_places = [], []
    for j in range(rows):
        for i in range(cols):
            cell = image[:, j * side : (j + 1) * side, i * side : (i + 1) * side]
            patches.append((kernel * cell).sum((1, 2, 3)) + w["patch_embed.bias"])
            patch_places.append((2 * (i + 0.5) / cols - 1, 2 * (j + 0.5) / rows - 1))
    places = torch.tensor(patch_places, dtype=image.dtype)

    bank = torch.cat([w[name] for name in _numbered(w, "cores.tokens.")], 1)[0]
    coordinates = torch.cat([w[name] for name in _numbered(w, "cores.coordinates.")], 1)[0]
    x = torch.cat((bank[:num_cores], torch.stack(patches)))
    p = coordinates[:num_cores]
    for layer in range(depth):
        if layer >= 1:
            head = f"coordinate_heads.{layer - 1}"
            move = x[:num_cores] @ w[f"{head}.weight"].T + w[f"{head}.bias"]
            p = p + w["coordinate_scales"][layer - 1] * move
        tokens_at = torch.cat((torch.tanh(p), places))
        block = f"blocks.{layer}"
        normed = _norm(x, w, f"{block}.norm_attn")
        x = x + _attention(normed, tokens_at, w, f"{block}.attn", num_heads, num_cores)
        hidden = _linear(_norm(x, w, f"{block}.norm_ffn"), w, f"{block}.ffn.fc1")
        u, v = hidden[:, : hidden.shape[1] // 2], hidden[:, hidden.shape[1] // 2 :]
        x = x + _linear(u * torch.sigmoid(u) * v, w, f"{block}.ffn.fc2")
    assert x.shape[1] == width
    return _norm(x, w, "final_norm")


def _attention(
    x: Tensor, tokens_at: Tensor, w: dict[str, Tensor], name: str, num_heads: int, num_cores: int
) -> Tensor:
    total, h = len(x), x.shape[1] // num_heads
    allowed = torch.zeros(total, total, dtype=torch.bool)
    allowed[:num_cores] = True
    allowed[:, :num_cores] = True
    q, k, v = (_linear(x, w, f"{name}.{part}") for part in "qkv")
    heads = []
    for n in range(num_heads):
        at = slice(n * h, (n + 1) * h)
        q_n, k_n = rotate(q[:, at], tokens_at), rotate(k[:, at], tokens_at)
        scores = (q_n @ k_n.T / math.sqrt(h)).masked_fill(~allowed, -math.inf)
        heads.append(torch.softmax(scores, 1) @ v[:, at])
    return _linear(torch.cat(heads, 1), w, f"{name}.out")


def rotate(x: Tensor, tokens_at: Tensor) -> Tensor:
    h = x.shape[1]
    channels: list[Tensor] = []
    infinite = round(0.125 * h / 4)
    for axis in (0, 1):
        for i in range(h // 4):
            period = math.inf if i >= h // 4 - infinite else 100 ** (2 * i / (h / 2))
            angle = 2 * math.pi * tokens_at[:, axis] / period
            a, b = x[:, axis * h // 2 + 2 * i], x[:, axis * h // 2 + 2 * i + 1]
            channels.append(a * torch.cos(angle) - b * torch.sin(angle))
            channels.append(a * torch.sin(angle) + b * torch.cos(angle))
    return torch.stack(channels, 1)


def _linear(x: Tensor, w: dict[str, Tensor], name: str) -> Tensor:
    return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]


def _norm(x: Tensor, w: dict[str, Tensor], name: str) -> Tensor:
    centred = x - x.mean(1, keepdim=True)
    scale = (centred.square().mean(1, keepdim=True) + 1e-5).sqrt()
    return centred / scale * w[f"{name}.weight"] + w[f"{name}.bias"]


def _numbered(w: dict[str, Tensor], prefix: str) -> list[str]:
    names = [name for name in w if name.startswith(prefix)]
    return sorted(names, key=lambda name: int(name.removeprefix(prefix)))
