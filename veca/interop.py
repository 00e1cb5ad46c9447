"""Veca for transformers: importing this registers config, models and image processor with the Auto classes.

    import veca.interop
    from transformers import AutoBackbone, AutoImageProcessor, AutoModel

    model = AutoModel.from_pretrained("my-model")  # a folder written by save_pretrained, or a Hub id

It is an import of its own because it brings all of transformers with it. No code is read from a model folder.

Files hold a Veca's own tensor names, so that `veca.load_model` and `from_pretrained` read the same folder,
whichever of the two wrote it: the prefix that the inner model adds is taken off when saving and put on when
loading.

Shapes: B batch, C active cores, N patches, D width.
"""

import functools
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from transformers import (
    AutoBackbone,
    AutoConfig,
    AutoImageProcessor,
    AutoModel,
    BatchFeature,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.backbone_utils import BackboneConfigMixin, BackboneMixin
from transformers.image_processing_utils import BaseImageProcessor
from transformers.modeling_outputs import BackboneOutput, BaseModelOutputWithPooling
from transformers.utils.hub import cached_file

from veca.data.views import Picture, preprocess
from veca.model import Veca
from veca.model.hub import CONFIG_NAME, MODEL_TYPE, WEIGHTS_NAME, read_tensors, write_tensors
from veca.model.sizes import SIZES, Size, check_size

__all__ = ["VecaBackbone", "VecaBackboneOutput", "VecaConfig", "VecaImageProcessor", "VecaModel"]


class VecaConfig(BackboneConfigMixin, PretrainedConfig):
    """The size of a Veca, and how to run it.

    Args:
        width, depth, num_heads, ffn_ratio, num_cores, core_group, patch_size, in_channels, out_width:
            Size fields as in `veca.create_model`; the defaults are those of `small`.
        budget: Active cores where a call names none; None for all.
        apply_layernorm: Whether a backbone's feature maps pass the final norm.
        out_features: Layers a backbone gives, from `stem`, `stage1`, …; the last by default.
        out_indices: The same by number, 0 for the stem.
    """

    model_type = MODEL_TYPE
    attribute_map: ClassVar[dict[str, str]] = {
        "hidden_size": "width",
        "num_hidden_layers": "depth",
        "num_attention_heads": "num_heads",
        "num_channels": "in_channels",
    }

    def __init__(
        self,
        *,
        budget: int | None = None,
        apply_layernorm: bool = True,
        out_features: list[str] | None = None,
        out_indices: list[int] | None = None,
        **kwargs: Any,
    ) -> None:
        size = {name: kwargs.pop(name, value) for name, value in SIZES["small"].as_dict().items()}
        super().__init__(**kwargs)
        for name, value in size.items():
            setattr(self, name, value)
        self.budget, self.apply_layernorm = budget, apply_layernorm
        check_size(self.size)
        self.stage_names = ["stem", *(f"stage{layer}" for layer in range(1, self.size.depth + 1))]
        self.set_output_features_output_indices(out_features=out_features, out_indices=out_indices)

    @property
    def size(self) -> Size:
        return Size(**{name: getattr(self, name) for name in Size.__dataclass_fields__})


_WHERE = ("cache_dir", "token", "revision", "local_files_only", "subfolder")  # arguments that locate a file


@dataclass
class VecaBackboneOutput(BackboneOutput):
    """Feature maps (B, D, rows, cols) of the layers asked for, and the global feature of each, (B, D)."""

    cls_tokens: tuple[Tensor, ...] | None = None


class VecaPreTrainedModel(PreTrainedModel):
    """What both models share: the inner Veca, under the prefix `veca`, and its files without it."""

    config_class = VecaConfig
    base_model_prefix = "veca"
    main_input_name = "pixel_values"
    input_modalities = "image"
    _no_split_modules = ["Block"]  # noqa: RUF012  # declared so by the base class
    _supports_sdpa = True
    config: VecaConfig

    def __init__(self, config: VecaConfig) -> None:
        super().__init__(config)
        self.veca = Veca(**config.size.as_dict())
        self.post_init()  # type: ignore[no-untyped-call]  # transformers does not type it

    def save_pretrained(
        self, save_directory: str | os.PathLike[str], is_main_process: bool = True, *args: Any, **kwargs: Any
    ) -> None:
        kwargs.setdefault("state_dict", self.veca.state_dict())
        super().save_pretrained(save_directory, is_main_process, *args, **kwargs)
        weights = Path(save_directory) / WEIGHTS_NAME
        if is_main_process and weights.is_file():
            write_tensors(weights, read_tensors(weights))  # with their checksum

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: str | os.PathLike[str] | None, *args: Any, **kwargs: Any
    ) -> Any:
        if pretrained_model_name_or_path is not None:
            where = {name: kwargs[name] for name in _WHERE if kwargs.get(name) is not None}
            found = cached_file(
                pretrained_model_name_or_path,
                WEIGHTS_NAME,
                **where,
                _raise_exceptions_for_gated_repo=False,
                _raise_exceptions_for_missing_entries=False,
                _raise_exceptions_for_connection_errors=False,
            )  # what cannot be found is for transformers to tell
            if found is not None:
                read_tensors(Path(found))  # compares the checksum
        return super().from_pretrained(pretrained_model_name_or_path, *args, **kwargs)

    def get_input_embeddings(self) -> nn.Module:
        return self.veca.patch_embed

    def _init_weights(self, module: nn.Module) -> None:
        """A Veca initialises itself when it is built."""

    def _budget(self, budget: int | None) -> int | None:
        return self.config.budget if budget is None else budget


class VecaModel(VecaPreTrainedModel):
    """`last_hidden_state` is the cores, then the patches (B, C + N, D); `pooler_output` is core 0 (B, D).

    Both pass the output projection where the model has one.
    """

    def forward(
        self, pixel_values: Tensor, budget: int | None = None, return_dict: bool | None = None, **kwargs: Any
    ) -> BaseModelOutputWithPooling | tuple[Tensor, Tensor]:
        """Normalised images (B, 3, H, W) at a budget; by default the config's, else all cores."""
        _refuse_hidden_states(kwargs)
        features = self.veca(pixel_values.to(self.dtype), budget=self._budget(budget))
        tokens = torch.cat((features.cores, features.patches), dim=1)
        if return_dict is False:
            return tokens, features.cls
        return BaseModelOutputWithPooling(
            last_hidden_state=cast(torch.FloatTensor, tokens), pooler_output=features.cls
        )


class VecaBackbone(BackboneMixin, VecaPreTrainedModel):
    """Feature maps for detection and segmentation heads: one per layer of `out_features`, of one stride."""

    def __init__(self, config: VecaConfig) -> None:
        super().__init__(config)
        self.num_features = [config.size.width] * (config.size.depth + 1)

    def forward(  # type: ignore[override]  # the mixin's arguments for hidden states are refused by name
        self, pixel_values: Tensor, budget: int | None = None, return_dict: bool | None = None, **kwargs: Any
    ) -> VecaBackboneOutput | tuple[tuple[Tensor, ...]]:
        """Feature maps (B, D, rows, cols) of normalised images, in the order of `out_features`."""
        _refuse_hidden_states(kwargs)
        images = pixel_values.to(self.dtype)
        stages = [self.stage_names.index(name) for name in self.out_features]
        layers = [stage - 1 for stage in stages if stage] or [self.config.size.depth - 1]
        given: Any = self.veca.get_intermediate_layers(
            images,
            n=layers,
            reshape=True,
            return_class_token=True,
            norm=self.config.apply_layernorm,
            budget=self._budget(budget),
        )
        maps, classes = (
            {layer + 1: pair[i] for layer, pair in zip(layers, given, strict=True)} for i in (0, 1)
        )
        if 0 in stages:  # the patches before the first layer: no core has spoken yet, hence no global feature
            maps[0] = self.veca.patch_embed(images)
            if self.config.apply_layernorm:
                maps[0] = self.veca.final_norm(maps[0].movedim(1, -1)).movedim(-1, 1).contiguous()
        found = tuple(maps[stage] for stage in stages)
        if return_dict is False:
            return (found,)
        return VecaBackboneOutput(
            feature_maps=found, cls_tokens=tuple(classes[stage] for stage in stages if stage)
        )


def _refuse_hidden_states(kwargs: dict[str, Any]) -> None:
    for name in ("output_hidden_states", "output_attentions"):
        if kwargs.get(name):
            raise ValueError(
                f"{name} is not given by a Veca. For features of several layers use AutoBackbone with "
                "out_features; for what the cores attend to, veca.load_model(…).trace(images)."
            )


class VecaImageProcessor(BaseImageProcessor):
    """Short side to 9/8 of the resolution, centre crop, ImageNet mean and deviation.

    Takes what `veca.preprocess` takes: paths, Pillow images, uint8 arrays (H, W), (H, W, 3) or (H, W, 4).
    Pixels are bytes; an array of floats is refused rather than scaled on a guess.

    Args:
        resolution: Side of the square view, a multiple of the patch size.
    """

    def __init__(self, resolution: int = 256, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.resolution = resolution
        self.model_input_names = ["pixel_values"]

    def preprocess(
        self,
        images: Picture | Sequence[Picture],
        *,
        resolution: int | None = None,
        return_tensors: str | None = "pt",
    ) -> BatchFeature:
        """`pixel_values` (B, 3, R, R), as a torch tensor unless `return_tensors` says "np"."""
        pictures: list[Any] = list(images) if isinstance(images, list | tuple) else [images]
        side = self.resolution if resolution is None else resolution
        views = torch.cat([preprocess(picture, resolution=side) for picture in pictures])
        return BatchFeature({"pixel_values": views.numpy() if return_tensors == "np" else views})


def answer_for_local_folders() -> None:
    """Let `AutoBackbone.from_pretrained` read folders of Veca models; a second call changes nothing.

    transformers 5 asks the Hub whether the name exists before it looks at the disk, and takes what the Hub
    does not know for a timm model: a local folder would never get through.
    """
    original: Any = AutoBackbone.from_pretrained
    if hasattr(original, "__wrapped__"):
        return

    @functools.wraps(original)
    def from_pretrained(cls: type, name_or_path: str | os.PathLike[str], *args: Any, **kwargs: Any) -> Any:
        if _holds_veca(Path(name_or_path)):
            kwargs.pop("use_timm_backbone", None)
            return VecaBackbone.from_pretrained(name_or_path, *args, **kwargs)
        return original(name_or_path, *args, **kwargs)

    setattr(AutoBackbone, "from_pretrained", classmethod(from_pretrained))  # noqa: B010  # typed as a fixed method


def _holds_veca(folder: Path) -> bool:
    try:
        config = json.loads((folder / CONFIG_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and config.get("model_type") == MODEL_TYPE


AutoConfig.register(VecaConfig.model_type, VecaConfig, exist_ok=True)
AutoModel.register(VecaConfig, VecaModel, exist_ok=True)
AutoBackbone.register(VecaConfig, VecaBackbone, exist_ok=True)
answer_for_local_folders()
AutoImageProcessor.register(VecaConfig, slow_image_processor_class=VecaImageProcessor, exist_ok=True)
