"""The DINOv3 ViT architecture at the project's size names, for teachers and students without weights."""

from typing import Any

import transformers

from veca.model.sizes import Size

NUM_REGISTERS = 4  # of every published DINOv3; transformers' default is 0


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
