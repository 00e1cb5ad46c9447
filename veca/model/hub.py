"""A model as a folder: model.safetensors, config.json (`model_type: veca` and the size fields), README.md.

The one format of our loader, the Hub and transformers, which also wants preprocessor_config.json. Nothing in
it can execute. What is known about the weights (`facts`) travels in config.json and is told in the README.
"""

import copy
import hashlib
import json
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

import torch
from huggingface_hub import ModelCard, ModelHubMixin, hf_hub_download
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from veca.model.sizes import PACKAGED, Size
from veca.utils.files import atomic_path, write_text_atomic

if TYPE_CHECKING:
    from veca.model.veca import Veca

PACKAGED_FOLDER = Path(__file__).parents[1] / "weights"
MODEL_TYPE = "veca"
WEIGHTS_NAME = "model.safetensors"
CONFIG_NAME = "config.json"
CHECKSUM_KEY = "veca_crc32"  # among the metadata of model.safetensors, which other readers pass over

PREPROCESSOR_NAME = "preprocessor_config.json"
PREPROCESSOR = {"image_processor_type": "VecaImageProcessor", "resolution": 256}
LICENCE_FACTS = ("license", "license_name", "license_link")  # metadata of the card, in the Hub's spelling
RESULTS_FACT = "results"

CARD = """---
{{ card_data }}
---

# An elastic vision backbone (VECA)

One set of weights, any number of active cores: attention cost is linear in image size, and the
budget is chosen at inference.

```python
import veca

model = veca.load_model("path/to/this/folder")
features = model(veca.preprocess("photo.jpg"), budget={{ budgets[0] }})  # Features(cls, patches, cores, grid)
```

With transformers: after `import veca.interop`, `AutoModel`, `AutoBackbone` and
`pipeline("image-feature-extraction")` read this folder without remote code.

| | |
|---|---|
| parameters | {{ "{:,}".format(parameters) }} |
| width, layers, heads | {{ size.width }}, {{ size.depth }}, {{ size.num_heads }} |
| budgets (active cores) | {{ budgets | join(", ") }} |
| images | sides that are multiples of {{ size.patch_size }}, (RGB / 255 − mean) / std of ImageNet |
{% for name, fact in facts.items() -%}
| {{ name }} | {{ fact }} |
{% endfor %}
{% if results -%}
## Results of frozen features

{{ results }}
{% endif %}
{% if "teacher" not in facts -%}
The teacher was not recorded. A model distilled from DINOv3 comes under Meta's DINOv3 licence.
{% endif %}
Method: "Elastic Attention Cores for Scalable Vision Transformers" (arXiv 2605.12491).
"""


class HubFolder(
    ModelHubMixin,
    library_name="veca",
    license="apache-2.0",
    tags=["vision", "feature-extraction", "elastic"],
    pipeline_tag="image-feature-extraction",
):
    facts: dict[str, str] | None = None  # about the weights, for the model card: teacher, data, results

    def generate_model_card(self, *args: Any, **kwargs: Any) -> ModelCard:
        """The README: size, budgets, and what `facts` tells of teacher, licence, data and results."""
        model = cast("Veca", self)
        facts = dict(self.facts or {})
        data = copy.deepcopy(self._hub_mixin_info.model_card_data)
        for name in LICENCE_FACTS:
            if name in facts:
                setattr(data, name, facts.pop(name))
        card: ModelCard = ModelCard.from_template(
            card_data=data,
            template_str=CARD,
            results=facts.pop(RESULTS_FACT, None),
            facts=facts,
            size=model.size,
            budgets=model.budgets,
            parameters=sum(parameter.numel() for parameter in model.parameters()),
        )
        return card

    def _save_pretrained(self, save_directory: Path) -> None:
        model = cast("Veca", self)
        write_tensors(save_directory / WEIGHTS_NAME, model.state_dict())
        config = {"model_type": MODEL_TYPE, "architectures": ["VecaModel"], **model.size.as_dict()}
        if self.facts:
            config["facts"] = self.facts
        for name, content in ((CONFIG_NAME, config), (PREPROCESSOR_NAME, PREPROCESSOR)):
            write_text_atomic(save_directory / name, json.dumps(content, indent=2) + "\n")

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

        model = read_folder(cast("type[Veca]", cls), find(CONFIG_NAME), find(WEIGHTS_NAME), source=model_id)
        return cast(Self, model)


def packaged_folder(name: str) -> Path:
    """The folder of a model that comes with the package, its weights compared with their sha256."""
    weights = PACKAGED_FOLDER / name / WEIGHTS_NAME
    found = hashlib.sha256(weights.read_bytes()).hexdigest()
    if found != PACKAGED[name]:
        raise ValueError(
            f"{weights} is damaged: its sha256 is {found}, not {PACKAGED[name]}. Install veca again."
        )
    return weights.parent


def read_folder(cls: "type[Veca]", config_path: Path, weights_path: Path, *, source: str) -> "Veca":
    """The model of a saved folder, with the facts it was saved with."""
    size, facts = read_config(config_path)
    model = build_model(cls, size, read_tensors(weights_path), source=source)
    if isinstance(facts, dict):
        model.facts = {str(name): str(fact) for name, fact in facts.items()}
    return model


def read_config(path: Path) -> tuple[Size, Any]:
    """Size and facts of a config.json; keys of other libraries (transformers adds some) are passed over."""
    if not path.is_file():
        raise FileNotFoundError(f"no {path.name} in {path.parent}: not a saved model.")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON: {error}.") from None
    if not isinstance(config, dict) or config.get("model_type") != MODEL_TYPE:
        found = config.get("model_type") if isinstance(config, dict) else type(config).__name__
        raise ValueError(f"{path} must say model_type: {MODEL_TYPE!r}; got {found!r}.")
    missing = sorted({"width", "depth", "num_heads", "ffn_ratio"} - set(config))
    if missing:
        raise ValueError(f"{path} lacks {', '.join(missing)}. Save the model again with save_pretrained.")
    fields = {name: value for name, value in config.items() if name in Size.__dataclass_fields__}
    return Size(**fields), config.get("facts")


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """Write a safetensors file that carries the checksum of its tensors."""
    whole = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    with atomic_path(path) as temporary:
        save_file(whole, temporary, metadata={"format": "pt", CHECKSUM_KEY: _checksum(whole)})


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, which must have the checksum it states; older files state none."""
    if not path.is_file():
        raise FileNotFoundError(f"no {path.name} in {path.parent}: not a saved model.")
    try:
        with safe_open(path, framework="pt") as file:
            stated = (file.metadata() or {}).get(CHECKSUM_KEY)
            tensors: dict[str, Tensor] = file.get_tensors()
    except SafetensorError as error:
        raise ValueError(f"{path} is not an intact safetensors file: {error}.") from None
    if stated is not None and stated != (found := _checksum(tensors)):
        raise ValueError(
            f"{path} is damaged: its tensors have the checksum {found}, but were saved with {stated}. Copy "
            "it again from where it is whole, or convert the checkpoint again."
        )
    return tensors


def _checksum(tensors: dict[str, Tensor]) -> str:
    """CRC-32 of names, types, shapes and values, as the zip of a checkpoint has it: against flipped bits."""
    value = 0
    for name, tensor in sorted(tensors.items()):
        value = zlib.crc32(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode(), value)
        # As bytes: numpy has no bfloat16.
        value = zlib.crc32(tensor.cpu().reshape(-1).view(torch.uint8).numpy().data, value)
    return f"{value:08x}"


def build_model(cls: "type[Veca]", size: Size, tensors: dict[str, Tensor], *, source: str) -> "Veca":
    """A model in eval mode that holds exactly these tensors, in their own precision.

    Missing, unknown, misshapen and non-finite ones are refused by name.
    """
    with torch.device("meta"):
        model = cls(**size.as_dict())
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
    model.load_state_dict(tensors, assign=True)
    return model.eval()
