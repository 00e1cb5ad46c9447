"""The architecture's sizes against the published parameter counts."""

import pytest
import torch
import transformers

from veca.model.sizes import SIZES
from veca.teachers.dinov3 import dinov3_config, is_gated


# In millions, as the method states them; its counts leave out LayerScale, two vectors per layer.
@pytest.mark.parametrize(
    ("size", "millions"), [("small", 21.59), ("small_plus", 28.68), ("base", 85.64), ("large", 303.08)]
)
def test_size_when_real_then_parameters_are_those_of_dinov3(size: str, millions: float) -> None:
    with torch.device("meta"):
        model = transformers.DINOv3ViTModel(dinov3_config(SIZES[size], gated=is_gated(size)))
    counts = {name: parameter.numel() for name, parameter in model.named_parameters()}
    layer_scale = sum(count for name, count in counts.items() if "layer_scale" in name)
    assert layer_scale == 2 * SIZES[size].width * SIZES[size].depth
    assert round((sum(counts.values()) - layer_scale) / 1e6, 2) == millions
