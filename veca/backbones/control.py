"""The full-attention control: a transformers ViT behind the student's contract.

In: normalised images (B, 3, H, W) and a budget, which is ignored. Out: `Features`. Distilling this model in
place of a Veca, with nothing else changed, answers what the cores cost in quality.

It is the DINOv3 ViT: the same width, depth and heads as the Veca of that name, about the same number of
parameters, rotary positions, and the same augmentation of the patch coordinates in training. Its CLS and
register tokens stand where the cores stand: they see everything and lie nowhere.

Shapes: B batch, C global tokens (CLS and registers), N patches, D width.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from veca.checkpoint import CONTROL_KEY, read_pickle, student_tensors
from veca.data.resolutions import PATCH_SIZE
from veca.model.sizes import Size, resolve_size
from veca.teachers.dinov3 import NUM_REGISTERS, dinov3_config, is_gated
from veca.types import Features, check_images

NUM_GLOBAL = 1 + NUM_REGISTERS
# The student's augmentation of method §1: shift each axis, then scale both.
COORDINATE_SHIFT = 0.08
COORDINATE_SCALE = 2.0


def control_shape(size: str, overrides: Mapping[str, Any]) -> Size:
    """Width, depth and heads of a control; a DINOv3 ViT has none of the other fields of a size."""
    unknown = sorted(set(overrides) - {"width", "depth", "num_heads"})
    if unknown:
        raise ValueError(
            f"size_overrides with attention: full are width, depth and num_heads; got {', '.join(unknown)}."
        )
    return resolve_size(size, dict(overrides))


class TransformersStudent(nn.Module):
    """DINOv3's ViT with fresh weights, in training mode.

    Args:
        size: tiny, small, small_plus, base or large, as for `veca.create_model`.
        out_width: width of a linear projection of the output; None for no projection.
        overrides: width, depth or num_heads in place of the size's own.
    """

    def __init__(self, size: str = "small", *, out_width: int | None = None, **overrides: int) -> None:
        super().__init__()
        shape = control_shape(size, overrides)
        if out_width is not None and out_width < 1:
            raise ValueError(f"out_width must be positive; got {out_width}. Leave it out for no projection.")
        self.arguments: dict[str, Any] = {"size": size, "out_width": out_width, **overrides}
        self.size = replace(
            shape, ffn_ratio=4.0, num_cores=NUM_GLOBAL, core_group=NUM_GLOBAL, out_width=out_width
        )
        config = dinov3_config(
            shape, gated=is_gated(size), pos_embed_shift=COORDINATE_SHIFT, pos_embed_rescale=COORDINATE_SCALE
        )
        self.model = transformers.DINOv3ViTModel(config)
        # Only masked pretraining uses it; a trainable parameter without gradient stops DDP.
        self.model.embeddings.mask_token.requires_grad_(False)
        self._eager_inference = False
        self.output_proj = nn.Linear(shape.width, out_width) if out_width else None
        if self.output_proj is not None:
            nn.init.trunc_normal_(self.output_proj.weight, std=0.02)
            nn.init.zeros_(self.output_proj.bias)

    @property
    def budgets(self) -> tuple[int, ...]:
        """The one budget there is: all global tokens."""
        return self.size.budgets

    def forward(self, images: Tensor, *, budget: int | None = None) -> Features:
        """Features of a batch. `budget` is ignored: it is there so that no caller has to know."""
        check_images(images, normalised=True)
        eager = self._eager_inference and not torch.is_grad_enabled()
        run = self.model.forward if eager else self.model
        x: Tensor = run(pixel_values=images).last_hidden_state  # (B, C + N, D)
        if self.output_proj is not None:
            x = self.output_proj(x)
        grid = images.shape[-2] // PATCH_SIZE, images.shape[-1] // PATCH_SIZE
        return Features(cls=x[:, 0], patches=x[:, NUM_GLOBAL:], cores=x[:, :NUM_GLOBAL], grid=grid)

    @torch.no_grad()
    def load_patch_embedding(self, weight: Tensor, bias: Tensor) -> bool:
        """Start from a teacher's patch projection; False, and no change, when its shape is another."""
        projection = self.model.embeddings.patch_embeddings
        if weight.shape != projection.weight.shape:
            return False
        assert projection.bias is not None
        projection.weight.copy_(weight)
        projection.bias.copy_(bias)
        return True

    def compile_blocks(self, **options: Any) -> None:
        """Compile in place, as `Veca.compile_blocks` does; `options` go to `torch.compile`."""
        options = {"dynamic": True, **options}
        self._eager_inference = not options["dynamic"]
        self.model.compile(**options)


def load_control(source: str | Path) -> TransformersStudent | None:
    """The full-attention control of a run's checkpoint; None for a checkpoint or model of any other kind."""
    path = Path(source)
    if path.suffix != ".ckpt" or not path.is_file():
        return None
    if CONTROL_KEY not in read_pickle(path, lazily=True):
        return None
    checkpoint = read_pickle(path)
    control = TransformersStudent(**checkpoint[CONTROL_KEY])
    try:
        control.load_state_dict(student_tensors(checkpoint))
    except RuntimeError as error:
        raise ValueError(f"{source} does not match its recorded control config: {error}") from None
    return control
