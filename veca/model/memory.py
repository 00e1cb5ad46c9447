"""The memory of images: what their patches read from the cores, and its file.

Shapes: B images, C active cores, L layers, H heads, h head width.
"""

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from veca.utils.files import atomic_path

if TYPE_CHECKING:
    from veca.model.veca import Veca

FORMAT = "veca memory"
VERSION = 1  # rises when a file of before would be read wrongly


@dataclass(frozen=True)
class Memory:
    """What the patches of B images read from the cores, layer by layer."""

    keys: Tensor  # (L, B, H, C, h), rotated
    values: Tensor  # (L, B, H, C, h)
    grid: tuple[int, int]  # rows, columns of the images that were remembered
    weights: str  # which model remembers, see `weights_digest`

    @property
    def budget(self) -> int:
        return self.keys.shape[3]

    def __len__(self) -> int:
        """How many images it holds."""
        return self.keys.shape[1]

    def of(self, images: int | Sequence[int]) -> "Memory":
        """The memory of some of the images, in this order; an image may come several times."""
        rows = [images] if isinstance(images, int) else list(images)
        return replace(self, keys=self.keys[:, rows], values=self.values[:, rows])

    def to(self, target: torch.dtype | torch.device | str) -> "Memory":
        """On another device, or in another precision: bfloat16 halves what a file holds."""
        return replace(self, keys=self.keys.to(target), values=self.values.to(target))


def save_memory(memory: Memory, path: str | os.PathLike[str]) -> None:
    """Write a memory as safetensors: tensors, and facts in its metadata."""
    facts = {
        "format": FORMAT,
        "version": str(VERSION),
        "weights": memory.weights,
        "grid": json.dumps(memory.grid),
    }
    tensors = {"keys": memory.keys, "values": memory.values}
    with atomic_path(path) as temporary:
        save_file({name: x.detach().cpu().contiguous() for name, x in tensors.items()}, temporary, facts)


def load_memory(path: str | os.PathLike[str], model: "Veca") -> Memory:
    """A memory that this model wrote, on its device; nothing in the file is executed."""
    try:
        with safe_open(path, framework="pt") as file:
            facts = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # no mapping
    except SafetensorError as error:
        raise _refused(path, f"it is no safetensors file ({error})") from None
    if facts.get("format") != FORMAT or not {"keys", "values"} <= tensors.keys():
        raise _refused(path, "it holds no memory")
    if facts.get("version") != str(VERSION):
        raise _refused(path, f"its version is {facts.get('version')}, this veca reads version {VERSION}")
    rows, cols = json.loads(facts["grid"])
    memory = Memory(tensors["keys"], tensors["values"], (rows, cols), facts["weights"])
    problem = mismatch(model, memory)
    if problem:
        raise _refused(path, problem)
    return memory.to(model.patch_embed.weight.device)


def weights_digest(model: "Veca") -> str:
    """A short hash of cores, norms and biases: no two models, nor two steps of one run, share them all."""
    parts = [x.detach().flatten() for x in model.parameters() if x.ndim == 1]
    parts += [x.detach().flatten() for x in model.cores.parameters()]
    numbers = torch.cat([part.float() for part in parts]).cpu().numpy()
    return hashlib.sha256(numbers.tobytes()).hexdigest()[:16]


def mismatch(model: "Veca", memory: Memory) -> str | None:
    """Why this model cannot read this memory."""
    size = model.size
    layers, _, heads, budget, head_width = memory.keys.shape if memory.keys.ndim == 5 else (0,) * 5
    if memory.values.shape != memory.keys.shape or (layers, heads, head_width) != (
        size.depth,
        size.num_heads,
        size.head_width,
    ):
        return "it belongs to a model of another size"
    if budget not in model.budgets:
        return f"its budget is {budget}, the model's are {', '.join(map(str, model.budgets))}"
    if memory.weights != weights_digest(model):
        return "it belongs to a model with other weights"
    return None


def _refused(path: str | os.PathLike[str], why: str) -> ValueError:
    return ValueError(f"{os.fspath(path)}: {why}. Remember the images again with this model.")
