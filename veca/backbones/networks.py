"""Anything that sees, behind one call: uint8 images in, `ProbeFeatures` out.

| network | global feature | dense feature |
|---|---|---|
| `VecaNetwork` | core 0 | patches |
| `TeacherNetwork` | the teacher's CLS target | its patch targets, on the patch-16 grid of distillation |
| `TokenNetwork` | CLS token after the last norm; without one the pooled output | patch tokens, its own grid |
| `MapNetwork` | pooled output, or the mean of the map | the last feature map |
| `RadioNetwork` | the summary | spatial features |
| `PixelsNetwork` | the image at 16 × 16 | the pixels of each patch |

CLIP's CLS token is taken before the projection to the space it shares with text: that is what its authors'
linear probes use, and what its patches can be compared with.

Shapes: B batch, N patches, D width.
"""

import math
from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from veca.backbones import ProbeFeatures
from veca.backbones.control import TransformersStudent
from veca.data.resolutions import PATCH_SIZE
from veca.data.views import normalise
from veca.model import Veca
from veca.teachers.base import Encoding, Normalisation, Teacher, weights_fingerprint
from veca.teachers.transformers import TokenTeacher, size_options

UNIT = Normalisation.from_unit((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
RAW_SIDE = 16
TRIAL_SIDE = 256  # an image of zeros tells what a model answers with


class Network(nn.Module, ABC):
    """A frozen model in eval mode.

    Attributes:
        patch_size: the sides of an image are multiples of it.
        budgets: numbers of active cores; empty where the compute is fixed.
    """

    patch_size: int = PATCH_SIZE
    budgets: tuple[int, ...] = ()

    @abstractmethod
    def forward(self, images: Tensor, budget: int | None = None) -> ProbeFeatures: ...

    def fingerprint(self) -> str:
        """A short hash of everything that decides the features but the budget."""
        return weights_fingerprint(self, self._identity())

    def _identity(self) -> dict[str, Any]:
        """What decides the features beside the weights, as JSON."""
        return {"network": type(self).__name__, "patch_size": self.patch_size}


class VecaNetwork(Network):
    """A Veca at any of its budgets."""

    def __init__(self, model: Veca) -> None:
        super().__init__()
        self.model = model.eval().requires_grad_(False)
        self.patch_size = model.size.patch_size
        self.budgets = model.budgets

    def forward(self, images: Tensor, budget: int | None = None) -> ProbeFeatures:
        features = self.model(normalise(images, dtype=self.model.patch_embed.weight.dtype), budget=budget)
        return ProbeFeatures(features.cls.float(), features.patches.float(), features.grid)

    def _identity(self) -> dict[str, Any]:
        return {**super()._identity(), "num_heads": self.model.size.num_heads}


class ControlNetwork(Network):
    """The full-attention control of a run."""

    def __init__(self, student: TransformersStudent) -> None:
        super().__init__()
        self.model = student.eval().requires_grad_(False)

    def forward(self, images: Tensor, budget: int | None = None) -> ProbeFeatures:
        features = self.model(normalise(images))
        return ProbeFeatures(features.cls, features.patches, features.grid)


class TeacherNetwork(Network):
    """One of our teachers, exactly as a student sees it."""

    def __init__(self, teacher: Teacher) -> None:
        super().__init__()
        self.teacher = teacher
        with torch.no_grad():
            trial = teacher.encode(torch.zeros(1, 3, *teacher.input_size(TRIAL_SIDE, TRIAL_SIDE)))
        self.has_cls = trial.has_cls

    def forward(self, images: Tensor, budget: int | None = None) -> ProbeFeatures:
        cls, patches = self.teacher(images)
        return ProbeFeatures(cls, patches, _grid(images, PATCH_SIZE), self.has_cls)

    def fingerprint(self) -> str:
        return f"teacher-{self.teacher.fingerprint()}"


class EncodedNetwork(Network):
    """A vision model of transformers: normalised pixels in, a global vector and a map of patches out."""

    normalisation: Normalisation

    def forward(self, images: Tensor, budget: int | None = None) -> ProbeFeatures:
        encoding = self.encode(_pixels(images, self.normalisation))
        rows, cols = encoding.patches.shape[-2:]
        patches = encoding.patches.float().flatten(2).transpose(1, 2).contiguous()  # (B, N, D)
        return ProbeFeatures(encoding.cls.float(), patches, (rows, cols), encoding.has_cls)

    @abstractmethod
    def encode(self, pixels: Tensor) -> Encoding: ...


class TokenNetwork(EncodedNetwork):
    """A model with one token per patch, on its own grid; positions are interpolated."""

    def __init__(self, model: nn.Module, normalisation: Normalisation) -> None:
        super().__init__()
        self.teacher = TokenTeacher(model, normalisation=normalisation)
        self.normalisation = normalisation
        self.patch_size = self.teacher.patch_size
        self.encode(torch.zeros(1, 3, *self.teacher.input_size(TRIAL_SIDE, TRIAL_SIDE)))  # refuse it now

    @torch.no_grad()
    def encode(self, pixels: Tensor) -> Encoding:
        return self.teacher.encode(pixels)

    def fingerprint(self) -> str:
        return f"tokens-{self.teacher.fingerprint()}"


class MapNetwork(EncodedNetwork):
    """Any other one: the last feature map of a CNN or a hierarchical transformer."""

    def __init__(self, model: nn.Module, normalisation: Normalisation) -> None:
        super().__init__()
        self.model = model.eval().requires_grad_(False)
        self.normalisation = normalisation
        self._options = size_options(model)
        rows, cols = self.encode(torch.zeros(1, 3, TRIAL_SIDE, TRIAL_SIDE)).patches.shape[-2:]
        if rows != cols or TRIAL_SIDE % rows:
            raise ValueError(
                f"{type(model).__name__} cannot be probed: {TRIAL_SIDE}×{TRIAL_SIDE} pixels give a map of "
                f"{rows}×{cols}, which is no whole number of pixels per cell."
            )
        self.patch_size = TRIAL_SIDE // rows

    @torch.no_grad()
    def encode(self, pixels: Tensor) -> Encoding:
        output = self.model(pixel_values=pixels, **self._options)
        patches: Tensor = output.last_hidden_state
        if patches.ndim == 3:
            patches = _as_map(patches, pixels, name=type(self.model).__name__)
        pooled: Tensor | None = output.get("pooler_output")
        cls = patches.mean(dim=(2, 3)) if pooled is None else pooled.flatten(1)
        return Encoding(cls, patches, has_cls=False)

    def _identity(self) -> dict[str, Any]:
        return {**super()._identity(), "normalisation": self.normalisation}


class RadioNetwork(Network):
    """C-RADIO: takes pixels from 0 to 1 and normalises them itself; summary and spatial features."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model.eval().requires_grad_(False)

    def forward(self, images: Tensor, budget: int | None = None) -> ProbeFeatures:
        output = self.model(_pixels(images, UNIT))
        summary, patches = output[0], output[1]  # a tuple, or what transformers indexes like one
        return ProbeFeatures(summary.float(), patches.float(), _grid(images, self.patch_size))


class PixelsNetwork(Network):
    """No model at all. A feature that loses to it knows nothing of content."""

    def forward(self, images: Tensor, budget: int | None = None) -> ProbeFeatures:
        pixels = normalise(images)
        cls = F.adaptive_avg_pool2d(pixels, RAW_SIDE).flatten(1)
        patches = F.pixel_unshuffle(pixels, PATCH_SIZE).flatten(2).transpose(1, 2)  # (B, N, 3·16²)
        return ProbeFeatures(cls, patches.contiguous(), _grid(images, PATCH_SIZE))


def network_of(model: nn.Module, normalisation: Normalisation) -> Network:
    """A transformers vision model, read as tokens where its output allows it, else as a map."""
    config: Any = model.config
    if config.model_type == "radio":
        return RadioNetwork(model)
    try:
        return TokenNetwork(model, normalisation)
    except ValueError:  # said by its config or by the shape of its output
        return MapNetwork(model, normalisation)


def _pixels(images: Tensor, normalisation: Normalisation) -> Tensor:
    mean, std = (images.new_tensor(values, dtype=torch.float32).view(3, 1, 1) for values in normalisation)
    return (images.float() - mean) / std


def _grid(images: Tensor, patch_size: int) -> tuple[int, int]:
    return images.shape[-2] // patch_size, images.shape[-1] // patch_size


def _as_map(tokens: Tensor, pixels: Tensor, *, name: str) -> Tensor:
    """Tokens (B, N, D) of a regular grid as a map (B, D, rows, cols)."""
    height, width = pixels.shape[-2:]
    cell = math.isqrt(height * width // tokens.shape[1])
    if cell < 1 or (height // cell) * (width // cell) != tokens.shape[1] or height % cell or width % cell:
        raise ValueError(
            f"{name} cannot be probed: {tokens.shape[1]} tokens of {height}×{width} pixels are no grid. "
            "Take a vision model with one token per patch, or a feature map."
        )
    grid = height // cell, width // cell
    return tokens.transpose(1, 2).reshape(len(tokens), -1, *grid)
