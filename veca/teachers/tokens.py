"""Any vision model of transformers that answers with patch tokens, as a teacher.

How tokens become targets: `last_hidden_state` after the model's last norm is [CLS, registers, patches].
Token 0 is the global target, the registers (`num_register_tokens` of the config, 4 for DINOv3) are dropped,
the rest is the patch grid. A model without CLS token (SigLIP) gives its pooled output as the global target.
Any other number of tokens is an error: a register taken for a patch would shift the whole grid.

A patch size other than 16 (DINOv2: 14, CLIP B/32: 32): the image is resized to the nearest multiple of it,
e.g. 256 px to 252 px, seen on the model's own 18×18 grid, and that grid is resampled to the student's 16×16.
"""

import inspect
from typing import Any

from torch import Tensor, nn

from veca.data.resolutions import PATCH_SIZE
from veca.teachers.base import IMAGENET, Encoding, MicroBatch, Normalisation, Teacher

# These normalise their pooled CLS token only; `last_hidden_state` comes without the last norm.
_NORM_MISSING = frozenset(
    f"{family}_vision_model" for family in ("altclip", "chinese_clip", "clip", "metaclip_2")
)
_SUITABLE = "Take a vision transformer with one token per patch, e.g. DINOv3, DINOv2, ViT, CLIP or SigLIP."
_IDENTITY_KEYS = (
    "model_type",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "patch_size",
    "num_register_tokens",
)


class TokenTeacher(Teacher):
    """A loaded transformers vision model as a teacher; see `Teacher` for the other arguments."""

    def __init__(
        self,
        model: nn.Module,
        *,
        normalisation: Normalisation = IMAGENET,
        micro_batch: MicroBatch = None,
        compile_teacher: bool | None = None,
    ) -> None:
        config = _config(model)
        _check_model(model, config)
        super().__init__(
            model,
            width=config["hidden_size"],
            normalisation=normalisation,
            micro_batch=micro_batch,
            compile_teacher=compile_teacher,
        )
        self.patch_size = _side(config["patch_size"])
        self.num_registers: int = config.get("num_register_tokens") or 0
        self._kind: str = config["model_type"]
        self._options = size_options(model)

    def input_size(self, height: int, width: int) -> tuple[int, int]:
        near = [max(1, round(side / self.patch_size)) * self.patch_size for side in (height, width)]
        return near[0], near[1]

    def encode(self, pixels: Tensor) -> Encoding:
        output = self.model(pixel_values=pixels, **self._options)
        tokens: Tensor = output.last_hidden_state
        grid = pixels.shape[-2] // self.patch_size, pixels.shape[-1] // self.patch_size
        cls, patches = self._split(tokens, output.get("pooler_output"), grid)
        has_cls = tokens.shape[1] > patches.shape[1]
        return Encoding(cls, patches.transpose(1, 2).unflatten(2, grid), has_cls)

    def patch_projection(self) -> tuple[Tensor, Tensor] | None:
        convolutions = [module for module in self.model.modules() if isinstance(module, nn.Conv2d)]
        if len(convolutions) != 1:
            return None
        projection = convolutions[0]
        side = (PATCH_SIZE, PATCH_SIZE)
        if projection.in_channels != 3 or projection.kernel_size != side or projection.stride != side:
            return None
        return _for_student_pixels(projection, self.normalisation)

    def _split(self, tokens: Tensor, pooled: Tensor | None, grid: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """Global token (B, D) and patch tokens (B, N, D)."""
        num_patches = grid[0] * grid[1]
        num_others = tokens.shape[1] - num_patches if tokens.ndim == 3 else -1
        if num_others == 0 and pooled is not None:
            return pooled, tokens
        if num_others != 1 + self.num_registers:
            raise ValueError(
                f"{self._kind} cannot be a teacher: its output of shape {tuple(tokens.shape)} is not a "
                f"global token, {self.num_registers} registers and {grid[0]}×{grid[1]} patches. "
                f"{_SUITABLE}"
            )
        if self._kind in _NORM_MISSING:
            norm = self.model.get_submodule("post_layernorm")
            tokens = norm(tokens)
        return tokens[:, 0], tokens[:, -num_patches:]

    def _identity(self) -> dict[str, Any]:
        config = _config(self.model)
        return {key: config.get(key) for key in _IDENTITY_KEYS}


def size_options(model: nn.Module) -> dict[str, bool]:
    """Arguments of a forward pass at any size: learned position tables serve others only when asked to."""
    arguments = inspect.signature(model.forward).parameters
    return {"interpolate_pos_encoding": True} if "interpolate_pos_encoding" in arguments else {}


def _check_model(model: nn.Module, config: dict[str, Any]) -> None:
    parameters = inspect.signature(model.forward).parameters
    required = {
        name for name, p in parameters.items() if p.default is p.empty and p.kind is not p.VAR_KEYWORD
    }
    missing = [key for key in ("hidden_size", "patch_size") if not config.get(key)]
    if missing or "pixel_values" not in parameters or required - {"pixel_values"}:
        reason = f"its config has no {missing[0]}" if missing else "it does not run on images alone"
        raise ValueError(f"{config['model_type']} cannot be a teacher: {reason}. {_SUITABLE}")


def _config(model: nn.Module) -> dict[str, Any]:
    config: Any = model.config
    entries: dict[str, Any] = config.to_dict()
    return entries


def _side(patch_size: int | list[int] | tuple[int, ...]) -> int:
    sides = {patch_size} if isinstance(patch_size, int) else set(patch_size)
    if len(sides) != 1:
        raise ValueError(f"a teacher needs square patches; this model has patch_size={patch_size}.")
    return sides.pop()


def _for_student_pixels(projection: nn.Conv2d, own: Normalisation) -> tuple[Tensor, Tensor]:
    """Rewrite a projection of the teacher's pixels as the same function of the student's.

    Both are (byte - mean) / std, so one is an affine function of the other, channel by channel. With equal
    normalisations the factors are exactly 1 and 0.
    """
    weight = projection.weight.double()
    bias = weight.new_zeros(len(weight)) if projection.bias is None else projection.bias.double()
    mean, std = (weight.new_tensor(values) for values in own)
    student_mean, student_std = (weight.new_tensor(values) for values in IMAGENET)
    bias = bias + weight.sum(dim=(2, 3)) @ ((student_mean - mean) / std)
    weight = weight * (student_std / std)[:, None, None]
    return weight.to(projection.weight.dtype), bias.to(projection.weight.dtype)
