"""What every figure takes: models by name, images by path, numbers with commas between them, core traces.

An image is seen as in validation: short side to 9/8 of the resolution, centre crop. What a model sees is
what a picture shows.

Shapes: L layers, C cores, N patches, D width.
"""

import textwrap
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from veca.backbones import (
    Names,
    Numbers,
    ProbedModel,
    ProbeFeatures,
    VecaNetwork,
    open_model,
    side_step,
    split_names,
)
from veca.data.decode import BadImage, Pixels, decode_pixels
from veca.data.folders import check_regular, list_files, read_named
from veca.data.views import (
    View,
    centre_crop,
    centre_view,
    draw_view,
    normalise,
    render_pixels,
    sample_generator,
)
from veca.model import Veca
from veca.model.veca import Trace
from veca.probes.datasets.pairs import FolderPairs, Meaning, Pair
from veca.probes.features import LABELS_PER_PATCH, Window, sample_target
from veca.utils.chart import spread
from veca.utils.precision import choose_device


class LayerTrace(NamedTuple):
    """What the cores do with one image at one budget, layer by layer."""

    cores: Tensor  # (L, C, D), the residual stream after each layer
    maps: Tensor  # (L, C, N), contributions of the patches
    places: Tensor  # (L, C, 2) in [-1, 1]²
    grid: tuple[int, int]


class MaskedImage(NamedTuple):
    """An image with its mask, if there is one."""

    name: str
    pixels: Pixels
    mask: NDArray[np.generic] | None

    def plain(self, resolution: int) -> View:
        return centre_view(size=self.pixels.size, resolution=resolution)

    def augmented(self, resolution: int, *, number: int, seed: int) -> View:
        """A training view, the same one for every model and budget."""
        rng = sample_generator(seed, number, self.name)
        return draw_view(rng, size=self.pixels.size, resolution=resolution)

    def labels(self, view: View, grid: tuple[int, int]) -> NDArray[np.int64]:
        """Mask values at LABELS_PER_PATCH² points of each patch: (N, points)."""
        assert self.mask is not None
        window = Window(view.width, view.height, view.left, view.top, view.resolution, view.resolution)
        per, (rows, cols) = LABELS_PER_PATCH, grid
        found = sample_target(self.mask, window, grid=(per * rows, per * cols)).astype(np.int64)
        return found.reshape(rows, per, cols, per).swapaxes(1, 2).reshape(rows * cols, per * per)


def open_models(model: Names) -> list[ProbedModel]:
    """Models by the specs of `veca.backbones`, on a GPU where there is one."""
    specs = split_names(model)
    if not specs:
        raise ValueError("model must name at least one model; got nothing. Try random:tiny.")
    device = choose_device()
    return [open_model(spec).to(device) for spec in specs]


def veca_of(model: ProbedModel) -> Veca:
    """The model as one with cores."""
    if not isinstance(model, VecaNetwork):
        raise ValueError(
            f"this figure shows cores, and {model.name} has none. Give a Veca: a folder, a .ckpt, a Hub id "
            "or random:SIZE."
        )
    return model.model


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


def read_view(path: Path, *, resolution: int) -> Tensor:
    """The validation view of an image file: uint8 (1, 3, R, R)."""
    data = read_named(path)
    try:
        return torch.from_numpy(centre_crop(decode_pixels(data), resolution=resolution))[None]
    except BadImage as error:
        raise ValueError(f"{path}: {error}. Replace or remove it.") from None


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
    chosen = parse_numbers("budgets", budgets, default=[b for b in known if (b // known[0]).bit_count() == 1])
    wrong = [str(budget) for budget in chosen if budget not in known]
    if wrong:
        raise ValueError(f"budgets must be among {', '.join(map(str, known))}; got {', '.join(wrong)}.")
    return chosen


def trace_images(model: Veca, images: Tensor, *, budget: int) -> Trace:
    """The trace of uint8 images, in float32 on the CPU."""
    weight = model.patch_embed.weight
    features, places, contributions = model.trace(
        normalise(images.to(weight.device), dtype=weight.dtype), budget
    )
    cls, patches, cores = (tensor.float().cpu() for tensor in features[:3])
    features = features._replace(cls=cls, patches=patches, cores=cores)
    return Trace(features, places.float().cpu(), contributions.float().cpu())


def dense_features(model: ProbedModel, view: Tensor, *, budget: int | None) -> tuple[Tensor, ProbeFeatures]:
    """Patches (N, D) of one image, and all of its features, on the CPU."""
    features = model.at(budget if model.budgets else None)(view)
    if features.patches is None:
        raise ValueError(f"{model.name} has no dense features to show.")
    patches = features.patches.cpu()
    return patches[0], features._replace(cls=features.cls.cpu(), patches=patches)


def trace_cores(model: Veca, image: MaskedImage, views: list[View], *, budget: int) -> list[LayerTrace]:
    """What the cores do with each of the views, which have one resolution."""
    images = torch.from_numpy(np.stack([render_pixels(image.pixels, view) for view in views]))
    after: list[Tensor] = []
    with ExitStack() as hooks:
        for block in model.blocks:
            handle = block.register_forward_hook(
                lambda _, __, out: after.append(out[:, :budget].float().cpu())
            )
            hooks.callback(handle.remove)
        features, places, contributions = trace_images(model, images, budget=budget)
    cores = torch.stack(after)
    return [
        LayerTrace(cores[:, i], contributions[:, i], places[:, i], features.grid) for i in range(len(views))
    ]


def open_masked(images: str, masks: Path | None, *, count: int) -> Iterator[MaskedImage]:
    """`count` images of a folder, evenly spread over their names; with masks, those of the same names."""
    if masks is None:
        for path in spread(find_images(images), count=count):
            yield MaskedImage(str(path), decode_pixels(read_named(path)), None)
        return
    folders = Pair(str(Path(images).absolute()), str(masks.absolute()))
    split = FolderPairs({"all": folders}, Meaning())(Path()).splits["all"]
    for place in spread(range(len(split)), count=count):
        item = split[place]
        assert isinstance(item.target, np.ndarray)
        yield MaskedImage(item.name, decode_pixels(item.image), item.target)
