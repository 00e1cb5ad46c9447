"""A pretrained teacher from the Hugging Face Hub or a folder, with its own normalisation.

Weights are read from safetensors only and no code of a model repository is run.
"""

import json
import warnings
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub import hf_hub_download
from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError
from torch import nn

from veca.teachers.base import IMAGENET, MicroBatch, Normalisation
from veca.teachers.tokens import TokenTeacher

PREPROCESSOR_NAME = "preprocessor_config.json"


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
        path = _preprocessor_path(source, revision)
        entries: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return _normalisation(entries)
    except LocalEntryNotFoundError:
        raise  # unreachable, which is not the same as absent
    except (FileNotFoundError, EntryNotFoundError, KeyError):
        warnings.warn(
            f"{source} has no {PREPROCESSOR_NAME} with image_mean and image_std, so ImageNet's are used. "
            "Add the file if the teacher was trained with others.",
            stacklevel=5,
        )
        return IMAGENET


def _preprocessor_path(source: str, revision: str | None) -> Path:
    if Path(source).is_dir():
        return Path(source) / PREPROCESSOR_NAME
    return Path(hf_hub_download(source, PREPROCESSOR_NAME, revision=revision))


def _normalisation(entries: dict[str, Any]) -> Normalisation:
    rescale = entries.get("rescale_factor", 1 / 255) if entries.get("do_rescale", True) else 1.0
    if not entries.get("do_normalize", True):
        return Normalisation.from_unit((0.0, 0.0, 0.0), (1.0, 1.0, 1.0), rescale=rescale)
    mean, std = entries["image_mean"], entries["image_std"]
    return Normalisation.from_unit(tuple(mean), tuple(std), rescale=rescale)


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
