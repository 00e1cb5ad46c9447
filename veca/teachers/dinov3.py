"""The DINOv3 ViT architecture at the project's size names, without weights of its own.

`OfflineTeacher` teaches nothing of use, but it has the interface, the shapes, the cost and the registers of
the real one, and its targets depend on image and position: pipelines, tests and benchmarks run on it.
"""

import math
from typing import Any

import torch
import transformers
from torch import nn

from veca.model.sizes import SIZES, Size
from veca.teachers.base import MicroBatch
from veca.teachers.transformers import TokenTeacher

NUM_REGISTERS = 4  # of every published DINOv3; transformers' default is 0
TINY = Size(width=96, depth=3, num_heads=3, ffn_ratio=4.0)
TOKEN_STD = 0.02
# Twice the variance-preserving scale where an image enters and where attention decides: at transformers'
# initial scale attention is uniform and depth adds little to a linear map of each patch.
SHARP_GAIN = 2.0
_SHARP_LAYERS = ("patch_embeddings", "q_proj", "k_proj")


def dinov3_config(size: Size, *, gated: bool, **options: Any) -> "transformers.DINOv3ViTConfig":
    """DINOv3 of the width, depth and heads of `size`.

    Its feed-forward is four times the width, as GELU, or `gated` as SwiGLU (S+). `options` are further
    fields of the transformers config.
    """
    return transformers.DINOv3ViTConfig(
        hidden_size=size.width,
        num_hidden_layers=size.depth,
        num_attention_heads=size.num_heads,
        intermediate_size=4 * size.width,
        use_gated_mlp=gated,
        hidden_act="silu" if gated else "gelu",
        num_register_tokens=NUM_REGISTERS,
        **options,
    )


def is_gated(name: str) -> bool:
    """Whether DINOv3 of this size name has a gated feed-forward."""
    return name == "small_plus"


class OfflineTeacher(TokenTeacher):
    """DINOv3 with random weights, the same for the same seed.

    Args:
        size: tiny (for CPUs), or small, small_plus, base, large with DINOv3's real shapes.
        seed: seed of the weights; torch's global random state is not touched.
        micro_batch: images per pass, or one number per resolution, e.g. `{256: 128, 768: 8}`; None for all.
        compile_teacher: compile the network on first use; None where it pays.
    """

    def __init__(
        self,
        size: str = "tiny",
        *,
        seed: int = 0,
        micro_batch: MicroBatch = None,
        compile_teacher: bool | None = None,
    ) -> None:
        sizes = {**SIZES, "tiny": TINY}
        if size not in sizes:
            raise ValueError(f"size must be one of {', '.join(sizes)}; got {size!r}.")
        with torch.random.fork_rng(devices=[]):  # its own initialisation draws, and is then overwritten
            # Gated also when tiny: a GELU has a mean, which adds the same vector to all random features.
            gated = size == "tiny" or is_gated(size)
            model = transformers.DINOv3ViTModel(dinov3_config(sizes[size], gated=gated))
        _fill(model, seed)
        super().__init__(model, micro_batch=micro_batch, compile_teacher=compile_teacher)


@torch.no_grad()
def _fill(model: nn.Module, seed: int) -> None:
    """Draw every matrix and token; norms, biases and scales keep their 1 and 0."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if parameter.ndim < 2 or name.endswith("mask_token"):
            continue
        gain = SHARP_GAIN if any(layer in name for layer in _SHARP_LAYERS) else 1.0
        is_token = name.endswith(("_token", "_tokens"))
        std = TOKEN_STD if is_token else gain / math.sqrt(parameter[0].numel())
        parameter.copy_(std * torch.randn(parameter.shape, generator=generator, device="cpu"))
