"""What every figure takes: models by name, images by path, numbers with commas between them.

An image is seen as in validation: short side to 9/8 of the resolution, centre crop. What a model sees is
what a picture shows.
"""

import textwrap
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from veca.backbones.models import ProbedModel, open_model
from veca.backbones.networks import VecaNetwork
from veca.backbones.types import ProbeFeatures
from veca.data.folders import check_regular, list_files, read_named
from veca.data.views import normalise
from veca.model import Veca
from veca.model.veca import Trace
from veca.probes.settings import Names, Numbers, side_step, split_names
from veca.probes.types import Item
from veca.probes.views import CentreView


class Sight(NamedTuple):
    """One image as a model sees it."""

    name: str
    pixels: NDArray[np.uint8]  # (3, R, R)

    @property
    def picture(self) -> NDArray[np.uint8]:
        """(R, R, 3), to be shown."""
        return self.pixels.transpose(1, 2, 0)


def open_models(model: Names) -> list[ProbedModel]:
    """Models by the specs of `veca.backbones.models`, on a GPU where there is one."""
    specs = split_names(model)
    if not specs:
        raise ValueError("model must name at least one model; got nothing. Try random:tiny.")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return [open_model(spec).to(device) for spec in specs]


def veca_of(model: ProbedModel) -> Veca:
    """The model as one with cores."""
    if not isinstance(model.network, VecaNetwork):
        raise ValueError(
            f"this figure shows cores, and {model.name} has none. Give a Veca: a folder, a .ckpt, a Hub id "
            "or random:SIZE."
        )
    return model.network.model


def short_name(model: ProbedModel) -> str:
    """A name for a label: of a path, its last two parts."""
    return textwrap.fill("/".join(Path(model.name.removeprefix("teacher:")).parts[-2:]), 24)


def find_images(image: Names) -> list[Path]:
    """Image files, and those of folders in the order of their names."""
    found: list[Path] = []
    for name in [image] if isinstance(image, str) and Path(image).exists() else split_names(image):
        path = Path(name)
        if not path.exists():
            raise FileNotFoundError(f"there is no image {path}. Give files or folders, with commas between.")
        check_regular(path)
        found += [path / file for file in list_files(path)[0]] if path.is_dir() else [path]
    if not found:
        raise FileNotFoundError(f"image must name image files or a folder of them; got {image!r}.")
    return found


def see(path: Path, *, resolution: int) -> Sight:
    """The validation view of an image file."""
    item = Item(str(path), read_named(path), 0)
    return Sight(path.stem, CentreView(resolution).views(item)[0].pixels)


def fit_side(model: ProbedModel, resolution: int) -> int:
    """The side nearest to `resolution` that the model's patches divide."""
    step = side_step(model, task="classify")
    return max(1, round(resolution / step)) * step


def parse_numbers(key: str, value: Numbers, *, default: list[int]) -> list[int]:
    """Whole numbers with commas between them, each once and in order."""
    if value is None:
        return default
    words = split_names(value) if isinstance(value, str) else value
    try:
        numbers = list(dict.fromkeys(int(word) for word in words))
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 0:
        raise ValueError(f"{key} must be whole numbers with commas between them, as in 8,64; got {value!r}.")
    return numbers


def choose_budgets(model: Veca, budgets: Numbers) -> list[int]:
    """The budgets asked for, or the smallest and its doubles: 8, 16, 32, 64."""
    known = model.budgets
    chosen = parse_numbers("budgets", budgets, default=[b for b in known if _is_double(b // known[0])])
    wrong = [str(budget) for budget in chosen if budget not in known]
    if wrong:
        raise ValueError(f"budgets must be among {', '.join(map(str, known))}; got {', '.join(wrong)}.")
    return chosen


def as_batch(*sights: Sight) -> Tensor:
    """Sights of one resolution as uint8 images (B, 3, R, R)."""
    return torch.from_numpy(np.stack([sight.pixels for sight in sights]))


def trace_images(model: Veca, images: Tensor, *, budget: int) -> Trace:
    """The trace of uint8 images, in float32 on the CPU."""
    weight = model.patch_embed.weight
    features, places, contributions = model.trace(
        normalise(images.to(weight.device), dtype=weight.dtype), budget
    )
    cls, patches, cores = (tensor.float().cpu() for tensor in features[:3])
    features = features._replace(cls=cls, patches=patches, cores=cores)
    return Trace(features, places.float().cpu(), contributions.float().cpu())


def dense_features(model: ProbedModel, sight: Sight, *, budget: int | None) -> tuple[Tensor, ProbeFeatures]:
    """Patches (N, D) of one image, and all of its features, on the CPU."""
    features = model.at(budget if model.budgets else None)(as_batch(sight))
    if features.patches is None:
        raise ValueError(f"{model.name} has no dense features to show.")
    features = features._replace(cls=features.cls.cpu(), patches=features.patches.cpu())
    assert features.patches is not None
    return features.patches[0], features


def _is_double(number: int) -> bool:
    return number & (number - 1) == 0
