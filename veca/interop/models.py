"""A Veca with the outputs transformers users expect.

Files hold a Veca's own tensor names, so that `veca.load_model` and `from_pretrained` read the same folder,
whichever of the two wrote it: the prefix that the inner model adds is taken off when saving and put on when
loading.

Shapes: B batch, C active cores, N patches, D width.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.backbone_utils import BackboneMixin
from transformers.modeling_outputs import BackboneOutput, BaseModelOutputWithPooling
from transformers.utils.hub import cached_file

from veca.interop.config import VecaConfig
from veca.model import Veca
from veca.model.hub import WEIGHTS_NAME, read_tensors, write_tensors

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
        self,
        save_directory: str | os.PathLike[str],
        is_main_process: bool = True,
        *args: Any,
        **kwargs: Any,
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
        self,
        pixel_values: Tensor,
        budget: int | None = None,
        return_dict: bool | None = None,
        **kwargs: Any,
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
        self.num_features = [config.width] * (config.depth + 1)

    def forward(  # type: ignore[override]  # the mixin's arguments for hidden states are refused by name
        self,
        pixel_values: Tensor,
        budget: int | None = None,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> VecaBackboneOutput | tuple[tuple[Tensor, ...]]:
        """Feature maps (B, D, rows, cols) of normalised images, in the order of `out_features`."""
        _refuse_hidden_states(kwargs)
        images = pixel_values.to(self.dtype)
        stages = [self.stage_names.index(name) for name in self.out_features]
        layers = [stage - 1 for stage in stages if stage] or [self.config.depth - 1]
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
        if 0 in stages:
            maps[0] = self._stem(images)
        found = tuple(maps[stage] for stage in stages)
        if return_dict is False:
            return (found,)
        return VecaBackboneOutput(
            feature_maps=found, cls_tokens=tuple(classes[stage] for stage in stages if stage)
        )

    def _stem(self, images: Tensor) -> Tensor:
        """Patches before the first layer. No core has spoken yet, so there is no global feature."""
        embedded: Tensor = self.veca.patch_embed(images)
        if not self.config.apply_layernorm:
            return embedded
        normed: Tensor = self.veca.final_norm(embedded.movedim(1, -1)).movedim(-1, 1)
        return normed.contiguous()


def _refuse_hidden_states(kwargs: dict[str, Any]) -> None:
    for name in ("output_hidden_states", "output_attentions"):
        if kwargs.get(name):
            raise ValueError(
                f"{name} is not given by a Veca. For features of several layers use AutoBackbone with "
                "out_features; for what the cores attend to, veca.load_model(…).trace(images)."
            )
