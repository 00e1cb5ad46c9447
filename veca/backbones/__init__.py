"""Any model behind one call: uint8 images in, `ProbeFeatures` out.

| spec | is |
|---|---|
| a folder, .ckpt, .pt or Hub id | a Veca, as for `veca.load_model`; a run's .ckpt may hold the control |
| `random:SIZE` | a Veca with fresh weights: tiny, small, small_plus, base, large |
| `teacher:CLASS`, `teacher:CLASS:ARGUMENT` | a teacher of ours, e.g. `teacher:EfficientNetTeacher` |
| `clip-b16`, `dinov3-b16`, … | one of the paper's eight; `clip-b16:FOLDER` takes its weights from a folder |
| `hf:HUB_ID_OR_FOLDER` | any other vision model of transformers |
| `pixels` | no model at all |

Each carries its own normalisation and resolution (paper, section 4: patch 16 sees 256 pixels to classify and
512 for dense tasks, patch 14 sees 224 and 518), and has its own global and dense feature:

| network | global feature | dense feature |
|---|---|---|
| `VecaNetwork`, `ControlNetwork` | core 0, CLS | patches |
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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import Any, Literal, NamedTuple

import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional as F

from veca.backbones.control import TransformersStudent, load_control
from veca.checkpoint import load_model
from veca.data.resolutions import PATCH_SIZE
from veca.data.views import normalise
from veca.model import SIZES, Size, Veca
from veca.teachers.base import Encoding, Normalisation, Teacher, weights_fingerprint
from veca.teachers.transformers import TokenTeacher, load_network, size_options

Task = Literal["classify", "multilabel", "segment", "depth"]
DENSE_TASKS: tuple[Task, ...] = ("segment", "depth")
Numbers = list[int] | str | None  # a list, or the same from the command line, as 8,64
Names = list[str] | str | None

RADIO, DFN = "c-radiov3-b", "dfn-clip-b16"
PEERS = {
    "clip-b16": "openai/clip-vit-base-patch16",
    "openclip-b16": "laion/CLIP-ViT-B-16-laion2B-s34B-b88K",
    DFN: "apple/DFN2B-CLIP-ViT-B-16",
    "dinov2-b14": "facebook/dinov2-base",
    "dinov2-reg-b14": "facebook/dinov2-with-registers-base",
    "dinov3-b16": "facebook/dinov3-vitb16-pretrain-lvd1689m",
    "siglip2-b16": "google/siglip2-base-patch16-256",
    RADIO: "nvidia/C-RADIOv3-B",
}
UNIT = Normalisation.from_unit((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
RAW_SIDE = 16
TRIAL_SIDE = 256  # an image of zeros tells what a model answers with
_RESIZE_STEP = 8  # the view of a classification probe resizes to 9/8 of the resolution


class ProbeFeatures(NamedTuple):
    """What a backbone says about a batch, in float32: B images, N patches of its grid, D width."""

    cls: Tensor  # (B, D)
    patches: Tensor | None  # (B, N, D), row-major; None where the model has no dense feature
    grid: tuple[int, int]  # rows, columns
    has_cls: bool = True  # False where `cls` is pooled from the patches: a dense head takes these alone


class ProbedModel(nn.Module, ABC):
    """A frozen model in eval mode.

    Attributes:
        name: the spec it was opened by.
        patch_size: the sides of an image are multiples of it.
        budgets: numbers of active cores; empty where the compute is fixed.
    """

    name: str = ""
    patch_size: int = PATCH_SIZE
    budgets: tuple[int, ...] = ()

    def __init__(self, model: nn.Module | None = None) -> None:
        super().__init__()
        self.model: Any = None if model is None else model.eval().requires_grad_(False)

    @abstractmethod
    def forward(self, images: Tensor, budget: int | None = None) -> ProbeFeatures: ...

    def default_resolution(self, task: Task) -> int:
        """The paper's resolution for a task, or the multiple of the patch size nearest to it."""
        if self.patch_size == 14:
            return 518 if task in DENSE_TASKS else 224
        side = 512 if task in DENSE_TASKS else 256
        return max(1, round(side / self.patch_size)) * self.patch_size

    def at(self, budget: int | None = None) -> "Backbone":
        """The model at one budget; None for all cores, or for a model whose compute is fixed."""
        if budget is None and self.budgets:
            budget = self.budgets[-1]
        elif budget is not None and budget not in self.budgets:
            known = ", ".join(map(str, self.budgets)) or "none: its compute is fixed. Leave the budget out"
            raise ValueError(f"{budget} is not a budget of {self.name}; its budgets are {known}.")
        return Backbone(self, budget)

    @cached_property
    def weights_hash(self) -> str:
        """A short hash of everything that decides the features but the budget."""
        return weights_fingerprint(self, self._identity())

    def _identity(self) -> dict[str, Any]:
        """What decides the features beside the weights, as JSON."""
        return {"network": type(self).__name__, "patch_size": self.patch_size}


@dataclass(frozen=True)
class Backbone:
    """A frozen model at one budget. Takes uint8 images whose sides are multiples of `patch_size`."""

    model: ProbedModel
    budget: int | None

    @property
    def name(self) -> str:
        return self.model.name

    @property
    def patch_size(self) -> int:
        return self.model.patch_size

    # no_grad, not inference_mode: transformers keeps coordinates of DINOv3 in a cache that others share.
    @torch.no_grad()
    def __call__(self, images: Tensor) -> ProbeFeatures:
        height, width = images.shape[-2:]
        if images.dtype != torch.uint8 or height % self.patch_size or width % self.patch_size:
            raise ValueError(
                f"{self.name} takes uint8 images whose sides are multiples of {self.patch_size}; "
                f"got {images.dtype} of {height}×{width}."
            )
        device = next((tensor.device for tensor in self.model.parameters()), images.device)
        features: ProbeFeatures = self.model(images.to(device), self.budget)
        return features

    def fingerprint(self) -> str:
        """A hash of weights, normalisation and budget: the name of what is cached of it."""
        return self.model.weights_hash if self.budget is None else f"{self.model.weights_hash}-b{self.budget}"


class VecaNetwork(ProbedModel):
    """A Veca at any of its budgets."""

    model: Veca

    def __init__(self, model: Veca) -> None:
        super().__init__(model)
        self.patch_size = model.size.patch_size
        self.budgets = model.budgets

    def forward(self, images: Tensor, budget: int | None = None) -> ProbeFeatures:
        features = self.model(normalise(images, dtype=self.model.patch_embed.weight.dtype), budget=budget)
        return ProbeFeatures(features.cls.float(), features.patches.float(), features.grid)

    def _identity(self) -> dict[str, Any]:
        return {**super()._identity(), "num_heads": self.model.size.num_heads}


class ControlNetwork(ProbedModel):
    """The full-attention control of a run."""

    def forward(self, images: Tensor, budget: int | None = None) -> ProbeFeatures:
        features = self.model(normalise(images))
        return ProbeFeatures(features.cls, features.patches, features.grid)


class TeacherNetwork(ProbedModel):
    """One of our teachers, exactly as a student sees it."""

    model: Teacher

    def __init__(self, teacher: Teacher) -> None:
        super().__init__(teacher)
        trial = torch.zeros(1, 3, *teacher.input_size(TRIAL_SIDE, TRIAL_SIDE))
        self.has_cls = teacher.encode(trial).has_cls

    def forward(self, images: Tensor, budget: int | None = None) -> ProbeFeatures:
        cls, patches = self.model(images)
        return ProbeFeatures(cls, patches, _grid(images), self.has_cls)

    @cached_property
    def weights_hash(self) -> str:
        return f"teacher-{self.model.fingerprint()}"


class TokenNetwork(ProbedModel):
    """A model with one token per patch, on its own grid; positions are interpolated."""

    model: TokenTeacher

    def __init__(self, model: nn.Module, normalisation: Normalisation) -> None:
        super().__init__(TokenTeacher(model, normalisation=normalisation))
        self.patch_size = self.model.patch_size
        self.model.encode(torch.zeros(1, 3, *self.model.input_size(TRIAL_SIDE, TRIAL_SIDE)))  # refuse it now

    def forward(self, images: Tensor, budget: int | None = None) -> ProbeFeatures:
        return _features(self.model.encode(_pixels(images, self.model.normalisation)))

    @cached_property
    def weights_hash(self) -> str:
        return f"tokens-{self.model.fingerprint()}"


class MapNetwork(ProbedModel):
    """Any other one: the last feature map of a CNN or a hierarchical transformer."""

    def __init__(self, model: nn.Module, normalisation: Normalisation) -> None:
        super().__init__(model)
        self.normalisation = normalisation
        self._options = size_options(model)
        rows, cols = self._encode(torch.zeros(1, 3, TRIAL_SIDE, TRIAL_SIDE)).patches.shape[-2:]
        if rows != cols or TRIAL_SIDE % rows:
            raise ValueError(
                f"{type(model).__name__} cannot be probed: {TRIAL_SIDE}×{TRIAL_SIDE} pixels give a map of "
                f"{rows}×{cols}, which is no whole number of pixels per cell."
            )
        self.patch_size = TRIAL_SIDE // rows

    def forward(self, images: Tensor, budget: int | None = None) -> ProbeFeatures:
        return _features(self._encode(_pixels(images, self.normalisation)))

    def _encode(self, pixels: Tensor) -> Encoding:
        output = self.model(pixel_values=pixels, **self._options)
        patches: Tensor = output.last_hidden_state
        if patches.ndim == 3:
            patches = _as_map(patches, pixels, name=type(self.model).__name__)
        pooled: Tensor | None = output.get("pooler_output")
        cls = patches.mean(dim=(2, 3)) if pooled is None else pooled.flatten(1)
        return Encoding(cls, patches, has_cls=False)

    def _identity(self) -> dict[str, Any]:
        return {**super()._identity(), "normalisation": self.normalisation}


class RadioNetwork(ProbedModel):
    """C-RADIO: takes pixels from 0 to 1 and normalises them itself; summary and spatial features."""

    def forward(self, images: Tensor, budget: int | None = None) -> ProbeFeatures:
        output = self.model(_pixels(images, UNIT))
        summary, patches = output[0], output[1]  # a tuple, or what transformers indexes like one
        return ProbeFeatures(summary.float(), patches.float(), _grid(images))


class PixelsNetwork(ProbedModel):
    """No model at all. A feature that loses to it knows nothing of content."""

    def forward(self, images: Tensor, budget: int | None = None) -> ProbeFeatures:
        pixels = normalise(images)
        cls = F.adaptive_avg_pool2d(pixels, RAW_SIDE).flatten(1)
        patches = F.pixel_unshuffle(pixels, PATCH_SIZE).flatten(2).transpose(1, 2)  # (B, N, 3·16²)
        return ProbeFeatures(cls, patches.contiguous(), _grid(images))

    def default_resolution(self, task: Task) -> int:
        return super().default_resolution(task) if task in DENSE_TASKS else RAW_SIDE


def open_model(spec: str, *, seed: int | None = None, allow_remote_code: bool = False) -> ProbedModel:
    """The model a spec names, in eval mode; with a seed, with weights drawn from it in place of its own."""
    kind = spec.partition(":")[0]
    if seed is not None and kind in ("pixels", "teacher", RADIO):
        raise ValueError(f"{spec} has no counterpart with random weights; got seed={seed}. Leave it out.")
    model = _open(spec, seed=seed, allow_remote_code=allow_remote_code)
    model.name = spec
    return model


def random_model(size: Size, *, seed: int) -> Veca:
    """Fresh weights of the given size in eval mode; the caller's random numbers stay as they are."""
    with _drawn_with(seed):
        return Veca(**size.as_dict()).eval()


class Grid(NamedTuple):
    """Every budget is run at every resolution; the budget of a model without budgets is None."""

    budgets: list[int | None]
    resolutions: list[int]


def choose_grid(model: ProbedModel, *, task: Task, budgets: Numbers, resolutions: Numbers) -> Grid:
    """The grid asked for, or smallest and full budget at the model's resolution; all problems at once."""
    problems: list[str] = []
    asked = _numbers("budgets", budgets, problems)
    sides = _numbers("resolutions", resolutions, problems) or [model.default_resolution(task)]
    known = ", ".join(map(str, model.budgets)) or "none: its compute is fixed"
    problems += [
        f"budgets: {budget} is not a budget of {model.name}; its budgets are {known}."
        for budget in asked
        if budget not in model.budgets
    ]
    step = side_step(model, task=task)
    problems += [
        f"resolutions: {side} is not a multiple of {step}. Try {max(step, round(side / step) * step)}."
        for side in sides
        if side < 1 or side % step
    ]
    if problems:
        raise ValueError("\n".join(problems))
    ends = sorted({model.budgets[0], model.budgets[-1]}) if model.budgets else [None]
    return Grid([*asked] or [*ends], sides)


def fitting_grid(model: ProbedModel, asked: Grid, *, task: Task) -> Grid:
    """The part of a grid that another model can run: its own budgets, and resolutions its patches divide."""
    step = side_step(model, task=task)
    budgets = [budget for budget in asked.budgets if budget in model.budgets]
    full = model.budgets[-1] if model.budgets else None
    sides = [side for side in asked.resolutions if side % step == 0]
    return Grid([*budgets] or [full], sides or [model.default_resolution(task)])


def side_step(model: ProbedModel, *, task: Task) -> int:
    """Resolutions are multiples of this."""
    return model.patch_size if task in DENSE_TASKS else math.lcm(model.patch_size, _RESIZE_STEP)


def split_names(value: Names) -> list[str]:
    """`a,b` or a list, each name once and in order."""
    words = value.split(",") if isinstance(value, str) else value or []
    return list(dict.fromkeys(word.strip() for word in words if word.strip()))


def _numbers(key: str, value: Numbers, problems: list[str]) -> list[int]:
    """The numbers, each once and in order; empty for None or when `problems` got a line."""
    if value is None:
        return []
    words = value.strip("[] ").split(",") if isinstance(value, str) else value
    try:
        numbers = [int(word) for word in words]
    except ValueError:
        numbers = []
    if not numbers:
        problems.append(f"{key} must be whole numbers with commas between them, as in 8,64; got {value!r}.")
    return list(dict.fromkeys(numbers))


@contextmanager
def _drawn_with(seed: int) -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def _open(spec: str, *, seed: int | None, allow_remote_code: bool) -> ProbedModel:
    kind, _, rest = spec.partition(":")
    if spec == "pixels":
        return PixelsNetwork()
    if kind == "random":
        if rest not in SIZES:
            raise ValueError(f"random:SIZE takes one of {', '.join(SIZES)}; got {rest!r}. Try random:small.")
        return VecaNetwork(random_model(SIZES[rest], seed=seed or 0))
    if kind == "teacher":
        return TeacherNetwork(_open_teacher(rest))
    if kind == RADIO:
        return RadioNetwork(_load_remote(kind, rest or PEERS[kind], allowed=allow_remote_code))
    if kind in PEERS or (kind == "hf" and rest):
        if kind == DFN and not rest:
            raise FileNotFoundError(
                f"{DFN}: {PEERS[DFN]} is there in open_clip's format alone. Convert it to transformers' CLIP "
                f"with model.safetensors and preprocessor_config.json, and give {DFN}:FOLDER."
            )
        model, normalisation = load_network(rest or PEERS[kind])
        if seed is not None:
            assert isinstance(model, transformers.PreTrainedModel), type(model)
            with _drawn_with(seed):
                model = type(model)(model.config)
        return _network_of(model, normalisation)
    if (control := load_control(spec)) is not None:
        if seed is not None:
            with _drawn_with(seed):
                control = TransformersStudent(**control.arguments)
        return ControlNetwork(control)
    try:
        student = load_model(spec)
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"{error} A probe also takes {', '.join(PEERS)}, hf:HUB_ID_OR_FOLDER, teacher:CLASS, "
            "random:SIZE and pixels."
        ) from None
    return VecaNetwork(student if seed is None else random_model(student.size, seed=seed))


def _network_of(model: nn.Module, normalisation: Normalisation) -> ProbedModel:
    """A transformers vision model, read as tokens where its output allows it, else as a map."""
    config: Any = model.config
    if config.model_type == "radio":
        return RadioNetwork(model)
    try:
        return TokenNetwork(model, normalisation)
    except ValueError:  # said by its config or by the shape of its output
        return MapNetwork(model, normalisation)


def _open_teacher(words: str) -> Teacher:
    """A teacher by class name, of veca.teachers or with the path of its module."""
    path, _, argument = words.partition(":")
    module, _, name = path.rpartition(".")
    try:
        found = getattr(import_module(module or "veca.teachers"), name)
    except (ImportError, AttributeError, ValueError):
        found = None
    if not (isinstance(found, type) and issubclass(found, Teacher)):
        raise ValueError(
            f"teacher:CLASS must name a teacher; got {path!r}. Try teacher:EfficientNetTeacher, "
            "teacher:OfflineTeacher:tiny, teacher:TransformersTeacher:HUB_ID or teacher:package.module.Class."
        )
    make: Callable[..., Teacher] = found
    return make(argument) if argument else make()


def _load_remote(name: str, source: str, *, allowed: bool) -> nn.Module:
    if not allowed:
        raise ValueError(
            f"{name} comes with code of its own ({source}) that would run with your rights. "
            "Read it, then pass --allow-remote-code; or give hf:FOLDER with weights in transformers' own "
            "format of RADIO, which needs no such code."
        )
    try:
        model: nn.Module = transformers.AutoModel.from_pretrained(
            source, dtype=torch.float32, use_safetensors=True, trust_remote_code=True
        )
    except OSError as error:
        first = str(error).strip().splitlines()[0]
        raise FileNotFoundError(
            f"{name} cannot be loaded: {first} Download {source} elsewhere and give {name}:FOLDER."
        ) from error
    return model


def _pixels(images: Tensor, normalisation: Normalisation) -> Tensor:
    mean, std = (images.new_tensor(values, dtype=torch.float32).view(3, 1, 1) for values in normalisation)
    return (images.float() - mean) / std


def _features(encoding: Encoding) -> ProbeFeatures:
    rows, cols = encoding.patches.shape[-2:]
    patches = encoding.patches.float().flatten(2).transpose(1, 2).contiguous()  # (B, N, D)
    return ProbeFeatures(encoding.cls.float(), patches, (rows, cols), encoding.has_cls)


def _grid(images: Tensor) -> tuple[int, int]:
    return images.shape[-2] // PATCH_SIZE, images.shape[-1] // PATCH_SIZE


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
