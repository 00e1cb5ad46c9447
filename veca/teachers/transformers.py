"""Vision models of transformers as teachers, from the Hugging Face Hub or a folder.

Weights are read from safetensors only and no code of a model repository is run.

How tokens become targets: `last_hidden_state` after the model's last norm is [CLS, registers, patches].
Token 0 is the global target, the registers (`num_register_tokens` of the config, 4 for DINOv3) are dropped,
the rest is the patch grid. A model without CLS token (SigLIP) gives its pooled output as the global target.
Any other number of tokens is an error: a register taken for a patch would shift the whole grid.

A patch size other than 16 (DINOv2: 14, CLIP B/32: 32): the image is resized to the nearest multiple of it,
e.g. 256 px to 252 px, seen on the model's own 18×18 grid, and that grid is resampled to the student's 16×16.
"""

import inspect
import json
import warnings
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub import hf_hub_download
from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError
from torch import Tensor, nn

from veca.data.resolutions import PATCH_SIZE
from veca.teachers.base import IMAGENET, Encoding, MicroBatch, Normalisation, Teacher

PREPROCESSOR_NAME = "preprocessor_config.json"
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
        config = _checked_config(model)
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
        self._identity_fields = {key: config.get(key) for key in _IDENTITY_KEYS}
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
        return self._identity_fields


def size_options(model: nn.Module) -> dict[str, bool]:
    """Arguments of a forward pass at any size: learned position tables serve others only when asked to."""
    arguments = inspect.signature(model.forward).parameters
    return {"interpolate_pos_encoding": True} if "interpolate_pos_encoding" in arguments else {}


def _checked_config(model: nn.Module) -> dict[str, Any]:
    """The fields of the model's config; ValueError where it cannot be a teacher."""
    config: Any = model.config
    fields: dict[str, Any] = config.to_dict()
    parameters = inspect.signature(model.forward).parameters
    required = {
        name for name, p in parameters.items() if p.default is p.empty and p.kind is not p.VAR_KEYWORD
    }
    missing = [key for key in ("hidden_size", "patch_size") if not fields.get(key)]
    if missing or "pixel_values" not in parameters or required - {"pixel_values"}:
        reason = f"its config has no {missing[0]}" if missing else "it does not run on images alone"
        raise ValueError(f"{fields['model_type']} cannot be a teacher: {reason}. {_SUITABLE}")
    return fields


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


class TransformersTeacher(TokenTeacher):
    """A vision model of transformers with pretrained weights.

    Args:
        name_or_path: a Hub id such as `facebook/dinov3-vitb16-pretrain-lvd1689m` (also vits16, vits16plus,
            vitl16), or a folder with config.json, model.safetensors and preprocessor_config.json.
        revision: branch, tag or commit on the Hub; a commit makes a recipe repeatable.
        micro_batch: images per pass, or one number per resolution, e.g. `{256: 128, 768: 8}`; None for all.
        compile_teacher: compile the network on first use; None where it pays.
    """

    def __init__(
        self,
        name_or_path: str,
        *,
        revision: str | None = None,
        micro_batch: MicroBatch = None,
        compile_teacher: bool | None = None,
    ) -> None:
        model, normalisation = load_network(name_or_path, revision=revision)
        super().__init__(
            model, normalisation=normalisation, micro_batch=micro_batch, compile_teacher=compile_teacher
        )


def load_network(name_or_path: str, *, revision: str | None = None) -> tuple[nn.Module, Normalisation]:
    """A vision model, or the image tower of a model with two, and what it expects of its pixels."""
    source = _source(name_or_path)
    try:
        return _load_model(source, revision), _load_normalisation(source, revision)
    except OSError as error:  # gated, missing, offline and "no safetensors" all arrive as OSError
        raise FileNotFoundError(_explain(name_or_path, error)) from error
    except ValueError as error:
        if "trust_remote_code" not in str(error):
            raise
        raise ValueError(  # transformers' advice to trust it is none that a teacher takes
            f"name_or_path = {name_or_path}: must be a model that this release of transformers knows; this "
            "one brings code of its own, which is never executed. Take another one, or a newer transformers."
        ) from None


def _source(name_or_path: str) -> str:
    """The folder if there is one, else the Hub id; a path that leads nowhere is not looked up on the Hub."""
    path = Path(name_or_path).expanduser()
    if path.is_dir():
        return str(path)
    if path.exists() or name_or_path.count("/") > 1 or name_or_path.startswith((".", "/", "~")):
        raise FileNotFoundError(
            f"{name_or_path} is not a folder. A teacher is a Hub id like "
            "facebook/dinov3-vitb16-pretrain-lvd1689m, or a folder with config.json and model.safetensors."
        )
    return name_or_path


def _load_model(source: str, revision: str | None) -> nn.Module:
    model, report = transformers.AutoModel.from_pretrained(
        source,
        revision=revision,
        dtype=torch.float32,
        use_safetensors=True,
        trust_remote_code=False,
        output_loading_info=True,
    )
    # CLIP and SigLIP repositories hold a text tower too.
    tower: nn.Module = getattr(model, "vision_model", model)
    missing = sorted(report["missing_keys"])
    if missing and all(key.startswith("pooler.") for key in missing):
        # Classifiers come without ViT's pooler, which would stay random. CLS tokens do not pass through it.
        tower.pooler = None  # type: ignore[assignment]  # transformers' own "no pooler"
    elif missing:
        raise ValueError(
            f"the weights of {source} lack {len(missing)} tensors of its architecture, e.g. {missing[0]}; "
            "they would be random. Download the model again, or take another."
        )
    return tower


def _load_normalisation(source: str, revision: str | None) -> Normalisation:
    """Mean and std as the model's preprocessor states them.

    Read as JSON: transformers' image processors need torchvision and rescale float images a second time.
    """
    try:
        path = Path(source) / PREPROCESSOR_NAME
        if not Path(source).is_dir():
            path = Path(hf_hub_download(source, PREPROCESSOR_NAME, revision=revision))
        entries = json.loads(path.read_text(encoding="utf-8"))
        rescale = entries.get("rescale_factor", 1 / 255) if entries.get("do_rescale", True) else 1.0
        if not entries.get("do_normalize", True):
            return Normalisation.from_unit((0.0, 0.0, 0.0), (1.0, 1.0, 1.0), rescale=rescale)
        return Normalisation.from_unit(entries["image_mean"], entries["image_std"], rescale=rescale)
    except LocalEntryNotFoundError:
        raise  # unreachable, which is not the same as absent
    except (FileNotFoundError, EntryNotFoundError, KeyError):
        warnings.warn(
            f"{source} has no {PREPROCESSOR_NAME} with image_mean and image_std, so ImageNet's are used. "
            "Add the file if the teacher was trained with others.",
            stacklevel=5,
        )
        return IMAGENET


def _explain(name: str, error: OSError) -> str:
    reason = str(error).strip().splitlines()[0]
    return f"""teacher {name} cannot be loaded: {reason}
Ways out:
- gated (DINOv3): accept the licence on the model's Hub page, then run `hf auth login`;
- misspelt: the DINOv3 ids are facebook/dinov3-{{vits16,vits16plus,vitb16,vitl16}}-pretrain-lvd1689m;
- no network: download the model elsewhere and pass its folder (config.json, model.safetensors,
  preprocessor_config.json), or train from cached targets, which needs no teacher;
- no weights in safetensors: convert them, nothing is unpickled here;
- to try things out: veca.teachers.EfficientNetTeacher (pretrained, from two small packages) or
  veca.teachers.OfflineTeacher (random weights)."""
