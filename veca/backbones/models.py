"""What a probe evaluates, by name: students, teachers, random weights, the paper's baselines.

| spec | is |
|---|---|
| a folder, .ckpt, .pt or Hub id | a Veca, as for `veca.load_model`; a run's .ckpt may hold the control |
| `random:SIZE` | a Veca with fresh weights: tiny, small, small_plus, base, large |
| `teacher:CLASS`, `teacher:CLASS:ARGUMENT` | a teacher of ours, e.g. `teacher:EfficientNetTeacher` |
| `clip-b16`, `dinov3-b16`, … | one of the paper's eight; `clip-b16:FOLDER` takes its weights from a folder |
| `hf:HUB_ID_OR_FOLDER` | any other vision model of transformers |
| `pixels` | no model at all |

Each carries its own normalisation, global feature and resolution (paper, section 4): patch 16 sees 256
pixels to classify and 512 for dense tasks, patch 14 sees 224 and 518.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import Self

import torch
import transformers
from torch import Tensor, nn

from veca.backbones import DENSE_TASKS, ProbeFeatures, Task
from veca.backbones.control import TransformersStudent, load_control
from veca.backbones.networks import (
    RAW_SIDE,
    ControlNetwork,
    Network,
    PixelsNetwork,
    RadioNetwork,
    TeacherNetwork,
    VecaNetwork,
    network_of,
)
from veca.checkpoint import load_model
from veca.model import SIZES, Size, Veca
from veca.teachers.base import Teacher
from veca.teachers.transformers import load_network

PEERS = {
    "clip-b16": "openai/clip-vit-base-patch16",
    "openclip-b16": "laion/CLIP-ViT-B-16-laion2B-s34B-b88K",
    "dfn-clip-b16": "apple/DFN2B-CLIP-ViT-B-16",
    "dinov2-b14": "facebook/dinov2-base",
    "dinov2-reg-b14": "facebook/dinov2-with-registers-base",
    "dinov3-b16": "facebook/dinov3-vitb16-pretrain-lvd1689m",
    "siglip2-b16": "google/siglip2-base-patch16-256",
    "c-radiov3-b": "nvidia/C-RADIOv3-B",
}
REMOTE_CODE = ("c-radiov3-b",)
OPEN_CLIP_ONLY = ("dfn-clip-b16",)  # on the Hub in open_clip's format, which needs open_clip
_PATCH_14 = 14


class ProbedModel:
    """A model with the settings it can be probed at."""

    def __init__(self, name: str, network: Network) -> None:
        self.name = name
        self.network = network

    @property
    def budgets(self) -> tuple[int, ...]:
        """Numbers of active cores; empty where the compute is fixed."""
        return self.network.budgets

    @property
    def patch_size(self) -> int:
        return self.network.patch_size

    @cached_property
    def weights_hash(self) -> str:
        return self.network.fingerprint()

    def default_resolution(self, task: Task) -> int:
        """The paper's resolution for a task, or the multiple of the patch size nearest to it."""
        if self.patch_size == _PATCH_14:
            return 518 if task in DENSE_TASKS else 224
        if isinstance(self.network, PixelsNetwork) and task not in DENSE_TASKS:
            return RAW_SIDE
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

    def to(self, device: torch.device | str) -> Self:
        self.network.to(device)
        return self


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
        device = next((tensor.device for tensor in self.model.network.parameters()), images.device)
        features: ProbeFeatures = self.model.network(images.to(device), self.budget)
        return features

    def fingerprint(self) -> str:
        """A hash of weights, normalisation and budget: the name of what is cached of it."""
        return self.model.weights_hash if self.budget is None else f"{self.model.weights_hash}-b{self.budget}"


def open_model(spec: str, *, seed: int | None = None, allow_remote_code: bool = False) -> ProbedModel:
    """The model a spec names, in eval mode.

    Args:
        spec: See the table of this module.
        seed: Random weights of the model's size in place of its own, drawn with this seed.
        allow_remote_code: Run the code that some model repositories bring along.
    """
    kind = spec.partition(":")[0]
    if seed is not None and kind in ("pixels", "teacher", *REMOTE_CODE):
        raise ValueError(f"{spec} has no counterpart with random weights; got seed={seed}. Leave it out.")
    return ProbedModel(spec, _open_network(spec, seed=seed, allow_remote_code=allow_remote_code))


def random_model(size: Size, *, seed: int) -> Veca:
    """Fresh weights of the given size in eval mode; the caller's random numbers stay as they are."""
    with _drawn_with(seed):
        return Veca(**size.as_dict()).eval()


@contextmanager
def _drawn_with(seed: int) -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def _open_network(spec: str, *, seed: int | None, allow_remote_code: bool) -> Network:
    kind, _, rest = spec.partition(":")
    if spec == "pixels":
        return PixelsNetwork()
    if kind == "random":
        if rest not in SIZES:
            raise ValueError(f"random:SIZE takes one of {', '.join(SIZES)}; got {rest!r}. Try random:small.")
        return VecaNetwork(random_model(SIZES[rest], seed=seed or 0))
    if kind == "teacher":
        return TeacherNetwork(_open_teacher(rest))
    if kind in REMOTE_CODE:
        return RadioNetwork(_load_remote(kind, rest or PEERS[kind], allowed=allow_remote_code))
    if kind in PEERS or (kind == "hf" and rest):
        model, normalisation = load_network(rest or _hub_id(kind))
        return network_of(model if seed is None else _fresh(model, seed), normalisation)
    if (control := load_control(spec)) is not None:
        if seed is not None:
            with _drawn_with(seed):
                control = TransformersStudent(**control.arguments)
        return ControlNetwork(control)
    student = _load_veca(spec)
    return VecaNetwork(student if seed is None else random_model(student.size, seed=seed))


def _fresh(model: nn.Module, seed: int) -> nn.Module:
    """The same architecture with new weights."""
    assert isinstance(model, transformers.PreTrainedModel), type(model)
    with _drawn_with(seed):
        fresh: nn.Module = type(model)(model.config)
    return fresh


def _load_veca(spec: str) -> Veca:
    try:
        return load_model(spec)
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"{error} A probe also takes {', '.join(PEERS)}, hf:HUB_ID_OR_FOLDER, teacher:CLASS, "
            "random:SIZE and pixels."
        ) from None


def _hub_id(name: str) -> str:
    if name in OPEN_CLIP_ONLY:
        raise FileNotFoundError(
            f"{name}: {PEERS[name]} is there in open_clip's format alone. Convert it to transformers' CLIP, "
            f"with model.safetensors and preprocessor_config.json, and give {name}:FOLDER."
        )
    return PEERS[name]


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
