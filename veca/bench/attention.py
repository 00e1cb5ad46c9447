"""The projection–attention–projection path of one layer, VECA's beside DINOv3's of the same size.

FLOPs are counted by torch (and equal the formulas of the paper); latency is the median of turns taken by all
candidates at one size and resolution, so ratios hold where milliseconds do not. DINOv3 is transformers'
layer with its SDPA kernel, on its own N + 5 tokens.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
import transformers
from torch import nn

from veca.bench.goals import said
from veca.flops.model import attention_flops, meta_teacher
from veca.model import Veca
from veca.model.attention import CoreAttention
from veca.model.rope import frequencies, patch_coordinates, rotation
from veca.model.sizes import Size, resolve_size
from veca.teachers.dinov3 import dinov3_config
from veca.utils.timing import compare, interleave

SIZES = ("small", "base", "large")
RESOLUTIONS = (256, 512, 768, 1024)
BUDGETS = (8, 64)
BATCHES = (1, 2, 4, 8)
PREFIX = 5  # CLS and registers of DINOv3
TURN = 0.1  # seconds; a call at 256 px takes a few milliseconds

Call = Callable[[], object]


class Path(NamedTuple):
    """One candidate: how to run it, and what a run computes."""

    run: Call
    flops: int


def attention(
    *,
    sizes: Sequence[str] = SIZES,
    resolutions: Sequence[int] = RESOLUTIONS,
    budgets: Sequence[int] = BUDGETS,
    batches: Sequence[int] = BATCHES,
    repeats: int = 7,
) -> dict[str, float]:
    """Time one layer's attention path of VECA and DINOv3, over sizes, resolutions, budgets and batches.

    Args:
        sizes: Sizes of the model.
        resolutions: Sides of the image in pixels.
        budgets: Active cores.
        batches: Batch sizes, timed for the first size at the smallest resolution.
        repeats: Turns that each candidate takes.
    """
    results: dict[str, float] = {}
    for size in sizes:
        for resolution in resolutions:
            results |= _compare(size, resolution, budgets, batch=1, repeats=repeats)
    for batch in batches[1:]:
        results |= _compare(sizes[0], min(resolutions), budgets, batch=batch, repeats=repeats)
    return results


def _compare(
    name: str, resolution: int, budgets: Sequence[int], *, batch: int, repeats: int
) -> dict[str, float]:
    size = resolve_size(name, {})
    paths = {f"b{budget}": veca_path(size, resolution, budget=budget, batch=batch) for budget in budgets}
    paths["dinov3"] = dinov3_path(size, resolution, batch=batch)
    with torch.inference_mode():
        timings = interleave(
            {key: path.run for key, path in paths.items()}, repeats=repeats, warmup=2, turn=TURN
        )
    results: dict[str, float] = {}
    for budget in budgets:
        ours, theirs = paths[f"b{budget}"].flops, paths["dinov3"].flops
        key = f"{name}/r{resolution}/batch{batch}/b{budget}"
        found = compare(timings, {f"{key}/speed_up": ("dinov3", f"b{budget}")})
        found[f"{key}/flop_ratio"] = theirs / ours
        print(f"{key}: {ours / 1e9:.2f} GFLOPs, DINOv3 {theirs / 1e9:.2f}")
        results |= said("attention", found)
    return results


def veca_path(size: Size, resolution: int, *, budget: int, batch: int = 1) -> Path:
    """One layer of VECA on an image of this resolution."""
    side = resolution // size.patch_size
    attn = CoreAttention(width=size.width, num_heads=size.num_heads).eval()
    turn_rate = frequencies(size.head_width, device=torch.device("cpu"), dtype=torch.float32)
    places = patch_coordinates(side, side, device=torch.device("cpu"), dtype=torch.float32)
    cores = torch.zeros(1, budget, 2)
    turns = rotation(torch.cat((cores, places), dim=1), turn_rate).expand(batch, -1, -1, -1)
    x = torch.randn(batch, budget + side**2, size.width)
    with torch.device("meta"):
        layer = Veca(**replace(size, depth=2).as_dict())
    flops = batch * attention_flops(layer, resolution=resolution, budget=budget)
    return Path(lambda: attn(x, turns, budget), flops)


def dinov3_path(size: Size, resolution: int, *, batch: int = 1) -> Path:
    """One layer of the DINOv3 of the same width on the same image."""
    one_layer = replace(size, depth=1)
    model: nn.Module = transformers.DINOv3ViTModel(dinov3_config(one_layer, gated=False))
    attn = next(module for name, module in model.eval().named_modules() if name.endswith(".attention"))
    with torch.no_grad():
        positions = model.get_submodule("rope_embeddings")(torch.zeros(1, 3, resolution, resolution))
    x = torch.randn(batch, PREFIX + (resolution // size.patch_size) ** 2, size.width)
    flops = batch * attention_flops(meta_teacher(one_layer, gated=False), resolution=resolution)
    return Path(lambda: attn(x, position_embeddings=positions), flops)
