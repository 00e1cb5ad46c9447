"""Tiny transformers models with random weights, saved as a user would find them on disk."""

import json
from pathlib import Path

import torch
import transformers
from torch import Tensor

CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
PREPROCESSOR = {"image_mean": CLIP_MEAN, "image_std": CLIP_STD}
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}


def build(kind: str, **fields: object) -> transformers.PreTrainedModel:
    """A model of a transformers family, e.g. "Dinov2", in eval mode."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**{**SMALL, **fields})
    model = getattr(transformers, f"{kind}Model")(config).eval()
    for parameter in model.parameters():  # the initial scale hides mistakes in norms, biases and positions
        torch.nn.init.normal_(parameter, std=0.3)
    return model


def save(model: transformers.PreTrainedModel, folder: Path, **preprocessor: object) -> str:
    model.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps({**PREPROCESSOR, **preprocessor}))
    return str(folder)


def normalise(images: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """By hand and per channel, the slow way."""
    out = torch.empty(images.shape)
    for channel in range(3):
        out[:, channel] = (images[:, channel].float() / 255 - mean[channel]) / std[channel]
    return out
