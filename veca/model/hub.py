"""A model as a folder: model.safetensors, config.json (`model_type: veca` and the size fields), README.md.

The one format of our loader, the Hub and transformers. Nothing in it can execute.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

import torch
from huggingface_hub import ModelHubMixin, hf_hub_download
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from veca.files import atomic_path, write_text_atomic
from veca.model.sizes import Size

if TYPE_CHECKING:
    from veca.model.veca import Veca

MODEL_TYPE = "veca"
WEIGHTS_NAME = "model.safetensors"
CONFIG_NAME = "config.json"

CARD = """---
{{ card_data }}
---

# An elastic vision backbone (VECA)

One set of weights, any number of active cores: attention cost is linear in image size, and the
budget is chosen at inference.

```python
import veca

model = veca.load_model("path/to/this/folder")
features = model(veca.preprocess("photo.jpg"), budget=32)  # Features(cls, patches, cores, grid)
```

Method: "Elastic Attention Cores for Scalable Vision Transformers" (arXiv 2605.12491).
"""


class HubFolder(
    ModelHubMixin,
    library_name="veca",
    license="apache-2.0",
    tags=["vision", "feature-extraction", "elastic"],
    pipeline_tag="image-feature-extraction",
    model_card_template=CARD,
):
    """`save_pretrained`, `from_pretrained` and `push_to_hub` in the one folder format."""

    def _save_pretrained(self, save_directory: Path) -> None:
        model = cast("Veca", self)
        tensors = {name: tensor.detach().contiguous() for name, tensor in model.state_dict().items()}
        with atomic_path(save_directory / WEIGHTS_NAME) as path:
            save_file(tensors, path, metadata={"format": "pt"})
        config = {"model_type": MODEL_TYPE, "architectures": ["VecaModel"], **model.size.as_dict()}
        write_text_atomic(save_directory / CONFIG_NAME, json.dumps(config, indent=2) + "\n")

    @classmethod
    def _from_pretrained(
        cls,
        *,
        model_id: str,
        revision: str | None,
        cache_dir: str | Path | None,
        force_download: bool,
        local_files_only: bool,
        token: str | bool | None,
        **model_kwargs: Any,
    ) -> Self:
        def find(name: str) -> Path:
            if Path(model_id).is_dir():
                return Path(model_id) / name
            return Path(
                hf_hub_download(
                    model_id,
                    name,
                    revision=revision,
                    cache_dir=cache_dir,
                    force_download=force_download,
                    local_files_only=local_files_only,
                    token=token,
                )
            )

        size = read_config(find(CONFIG_NAME))
        tensors = read_tensors(find(WEIGHTS_NAME))
        return cast(Self, build_model(cast("type[Veca]", cls), size, tensors, source=model_id))


def read_config(path: Path) -> Size:
    """The size fields of a config.json; keys of other libraries (transformers adds some) are passed over."""
    if not path.is_file():
        raise FileNotFoundError(f"no {path.name} in {path.parent}: not a saved model.")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON: {error}.") from None
    if not isinstance(config, dict) or config.get("model_type") != MODEL_TYPE:
        found = config.get("model_type") if isinstance(config, dict) else type(config).__name__
        raise ValueError(f"{path} must say model_type: {MODEL_TYPE!r}; got {found!r}.")
    known = Size.__dataclass_fields__
    missing = sorted({"width", "depth", "num_heads", "ffn_ratio"} - set(config))
    if missing:
        raise ValueError(f"{path} lacks {', '.join(missing)}. Save the model again with save_pretrained.")
    return Size(**{name: value for name, value in config.items() if name in known})


def read_tensors(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise FileNotFoundError(f"no {path.name} in {path.parent}: not a saved model.")
    try:
        return load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path} is not an intact safetensors file: {error}.") from None


def build_model(cls: "type[Veca]", size: Size, tensors: dict[str, Tensor], *, source: str) -> "Veca":
    """A model in eval mode that holds exactly these tensors, in their own precision."""
    with torch.device("meta"):
        model = cls(**size.as_dict())
    check_tensors(model, tensors, source=source)
    model.load_state_dict(tensors, assign=True)
    return model.eval()


def check_tensors(model: nn.Module, tensors: dict[str, Tensor], *, source: str) -> None:
    """Refuse missing, unknown, misshapen and non-finite tensors, by name."""
    expected = model.state_dict()
    problems = [f"missing {name}" for name in expected if name not in tensors]
    problems += [f"unknown {name}" for name in tensors if name not in expected]
    for name in expected.keys() & tensors.keys():
        shape, wanted = tuple(tensors[name].shape), tuple(expected[name].shape)
        if shape != wanted:
            problems.append(f"{name} has shape {shape}, not {wanted}")
        elif not tensors[name].is_floating_point():
            problems.append(f"{name} is {tensors[name].dtype}, not floating point")
        elif not bool(torch.isfinite(tensors[name]).all()):
            problems.append(f"{name} holds NaN or infinite values")
    if problems:
        shown = "\n".join(f"- {line}" for line in sorted(problems)[:8])
        more = f"\n… and {len(problems) - 8} more" if len(problems) > 8 else ""
        raise ValueError(
            f"{source} does not fit a model of this size:\n{shown}{more}\n"
            "Load it with the size it was made with, or save it again."
        )
