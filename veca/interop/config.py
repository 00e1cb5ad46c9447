"""config.json as transformers reads it: the size fields under our names and theirs, and the budget."""

from typing import Any, ClassVar

from transformers import PretrainedConfig
from transformers.backbone_utils import BackboneConfigMixin

from veca.model.hub import MODEL_TYPE
from veca.model.sizes import SIZES, Size, check_size


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
        width: int = SIZES["small"].width,
        depth: int = SIZES["small"].depth,
        num_heads: int = SIZES["small"].num_heads,
        ffn_ratio: float = SIZES["small"].ffn_ratio,
        num_cores: int = SIZES["small"].num_cores,
        core_group: int = SIZES["small"].core_group,
        patch_size: int = SIZES["small"].patch_size,
        in_channels: int = SIZES["small"].in_channels,
        out_width: int | None = None,
        budget: int | None = None,
        apply_layernorm: bool = True,
        out_features: list[str] | None = None,
        out_indices: list[int] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.width = width
        self.depth = depth
        self.num_heads = num_heads
        self.ffn_ratio = ffn_ratio
        self.num_cores = num_cores
        self.core_group = core_group
        self.patch_size = patch_size
        self.in_channels = in_channels
        self.out_width = out_width
        self.budget = budget
        self.apply_layernorm = apply_layernorm
        check_size(self.size)
        self.stage_names = ["stem", *(f"stage{layer}" for layer in range(1, depth + 1))]
        self.set_output_features_output_indices(out_features=out_features, out_indices=out_indices)

    @property
    def size(self) -> Size:
        return Size(**{name: getattr(self, name) for name in Size.__dataclass_fields__})
