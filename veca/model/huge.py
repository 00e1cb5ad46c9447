"""One pass over an image that does not fit: memory is bounded, the result is the plain forward's.

Layer after layer, all patches stream past the cores in chunks of rows: the cores read them with a running
softmax, and each is updated from the cores. Between layers the patches' states lie in a file, N·D numbers,
mapped and not held. After each chunk the cores' side is written too, so that a pass that was stopped, even
by a power cut, goes on with the chunk it was at.

A chunk of the next layer is written where the chunk before it was read, which nobody needs any more: the file
has one slot more than there are chunks, and no second copy.

Shapes: N patches, n patches of a part, C active cores, D width, L layers, p the side of a patch.
"""

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from veca.model.core_pass import Cores, RunningAttention, embed, finish
from veca.model.regions import Memory, centres, weights_digest
from veca.utils.files import atomic_path, reserve

if TYPE_CHECKING:
    from veca.model.veca import Veca

VERSION = 1
CORES, STATES = "cores.safetensors", "states"
CHUNK = 65_536  # patches between two notes of where the pass is: a second of work for a small model
CPU_PART = 1024  # patches at a time: their activations stay in the caches; more take a third longer
GPU_PART = 65_536

Band = Callable[[int, int], Tensor]  # first and last row of patches → normalised pixels (3, rows·p, cols·p)


class Sink(Protocol):
    """Where the features of patches go; a part may come again after an interruption."""

    def write(self, start: int, features: Tensor) -> None:
        """Keep (n, D) features, of which `start` is the place of the first."""

    def flush(self) -> None:
        """What was written so far must outlast a power cut."""


class Streamed(NamedTuple):
    """What is left of a pass, beside the patches that were written."""

    cls: Tensor  # (1, D)
    cores: Tensor  # (1, C, D)
    memory: Memory  # regions of the image can be read without another pass


class _Progress(NamedTuple):
    """Where a pass is: so many chunks are through this layer."""

    layer: int
    done: int


@torch.no_grad()
def stream(
    model: "Veca",
    band: Band,
    grid: tuple[int, int],
    *,
    folder: Path,
    identity: str,
    budget: int | None = None,
    sink: Sink | None = None,
    advance: Callable[[int], object] = lambda patches: None,
    chunk: int = CHUNK,
) -> Streamed:
    """Run an image whose pixels `band` gives, with its states and its progress in `folder`.

    Args:
        model: In eval mode or not: patches have their true places.
        band: Pixels of some rows of patches.
        grid: Rows and columns of patches.
        folder: Where the pass keeps its files. Remove it when the result is safe: a call before that gives
            the result again without running a patch.
        identity: What is run. A folder that holds another pass is started anew.
        budget: Active cores; by default all.
        sink: Takes the patches' features.
        advance: Told how many patches have passed another layer: first of an earlier call, then of this one.
        chunk: Patches between two notes of where the pass is, rounded to whole rows.
    """
    budget = model._check_budget(budget)
    chunks = _chunks(grid, chunk)
    facts = {"version": VERSION, "identity": identity, "weights": weights_digest(model)}
    facts |= {"grid": list(grid), "budget": budget, "chunk": len(chunks[0])}
    cores = Cores(model, budget=budget)
    folder.mkdir(parents=True, exist_ok=True)
    progress = _restore(cores, folder / CORES, facts)
    states = StateFile(folder / STATES, chunks, model.patch_embed.weight)
    depth = len(model.blocks)
    advance(progress.layer * grid[0] * grid[1] + sum(map(len, chunks[: progress.done])))
    for layer in range(progress.layer, depth):
        first = progress.done if layer == progress.layer else 0
        if not first:
            cores.enter_layer()
        for number in range(first, len(chunks)):
            parts = states.read(layer, number) if layer else _embedded(model, band, grid, chunks[number])
            for start, part in parts:
                turns = cores.turns(_places(cores, start, part, grid))
                cores.read(part, turns)
                if layer < depth - 1:
                    states.write(layer + 1, number, start, cores.run(part, turns))
                elif sink is not None:
                    sink.write(start, finish(model, cores.run(part, turns))[0])
            states.flush()
            if sink is not None:
                sink.flush()
            _save(cores, folder / CORES, facts, _Progress(layer, number + 1))
            advance(len(chunks[number]))
        cores.leave_layer()
    found = finish(model, cores.states)
    memory = Memory(torch.stack(cores.keys), torch.stack(cores.values), grid, weights_digest(model))
    return Streamed(found[:, 0], found, memory)


def forget(folder: Path) -> None:
    """Let the next call with this folder start from the beginning."""
    (folder / CORES).unlink(missing_ok=True)


class StateFile:
    """The states of all patches as they enter a layer, chunk by chunk in rotating slots."""

    def __init__(self, path: Path, chunks: list[range], weight: Tensor) -> None:
        self.path, self.chunks = path, chunks
        self.device, self.dtype, width = weight.device, weight.dtype, len(weight)
        shape = len(chunks) + 1, len(chunks[0]), width * weight.element_size()
        if not path.exists() or path.stat().st_size != math.prod(shape):
            path.unlink(missing_ok=True)
            reserve(path, math.prod(shape))
        self.bytes = np.memmap(path, dtype=np.uint8, mode="r+", shape=shape)

    def read(self, layer: int, chunk: int) -> Iterator[tuple[int, Tensor]]:
        """Places of the first and states (1, n, D) of the chunk's patches, in parts."""
        start, slot = self.chunks[chunk].start, self._slot(layer, chunk)
        for part in slot.split(part_size(self.device)):
            yield start, part[None].to(self.device, copy=True)
            start += len(part)

    def write(self, layer: int, chunk: int, start: int, states: Tensor) -> None:
        place = start - self.chunks[chunk].start
        self._slot(layer, chunk)[place : place + states.shape[1]] = states[0]

    def flush(self) -> None:
        self.bytes.flush()

    def _slot(self, layer: int, chunk: int) -> Tensor:
        row = self.bytes[(chunk - layer) % len(self.bytes), : len(self.chunks[chunk])]
        return torch.from_numpy(row).view(self.dtype)


def part_size(device: torch.device) -> int:
    """How many patches are run at a time."""
    return CPU_PART if device.type == "cpu" else GPU_PART


def _chunks(grid: tuple[int, int], size: int) -> list[range]:
    """The patches of each chunk of whole rows, row-major."""
    count, size = grid[0] * grid[1], max(1, size // grid[1]) * grid[1]
    return [range(start, min(start + size, count)) for start in range(0, count, size)]


def _embedded(model: "Veca", band: Band, grid: tuple[int, int], chunk: range) -> Iterator[tuple[int, Tensor]]:
    """Patch embeddings (1, n, D) of a chunk, in parts, with the place of the first."""
    weight, cols, side = model.patch_embed.weight, grid[1], model.size.patch_size
    size = part_size(weight.device)
    rows = max(1, size // cols)
    last = chunk.stop // cols
    for row in range(chunk.start // cols, last, rows):
        pixels = band(row, min(row + rows, last))
        cells = pixels.unflatten(2, (-1, side)).unflatten(1, (-1, side))  # (3, rows, p, cols, p)
        crops = cells.permute(1, 3, 0, 2, 4).flatten(2).flatten(0, 1)  # (rows·cols, 3·p·p)
        start = row * cols
        for part in crops.split(size):
            yield start, embed(model, part.to(weight.device, weight.dtype))[None]
            start += len(part)


def _places(cores: Cores, start: int, patches: Tensor, grid: tuple[int, int]) -> Tensor:
    """Where patches (1, n, D) lie that follow each other from `start` on, (1, n, 2)."""
    numbers = torch.arange(start, start + patches.shape[1], device=patches.device)
    corners = torch.stack((numbers % grid[1], numbers // grid[1]), dim=-1)
    return centres(corners, grid, dtype=cores.precision)


def _save(cores: Cores, path: Path, facts: dict[str, Any], progress: _Progress) -> None:
    assert cores.running is not None
    tensors = {
        "states": cores.states,
        "coordinates": cores.coordinates,
        "keys": torch.stack(cores.keys),
        "values": torch.stack(cores.values),
        **cores.running._asdict(),
    }
    metadata = {"facts": json.dumps({**facts, **progress._asdict()})}
    with atomic_path(path) as temporary:
        save_file({name: x.cpu().contiguous() for name, x in tensors.items()}, temporary, metadata)


def _restore(cores: Cores, path: Path, facts: dict[str, Any]) -> _Progress:
    """Put the cores where an earlier call left them, if it was this pass."""
    if not path.exists() or not path.with_name(STATES).exists():
        return _Progress(0, 0)
    device = cores.states.device
    with safe_open(path, framework="pt") as file:
        found = json.loads(file.metadata()["facts"])
        tensors = {name: file.get_tensor(name).to(device) for name in file.keys()}  # noqa: SIM118  # no mapping
    progress = _Progress(found.pop("layer"), found.pop("done"))
    if found != facts:
        return _Progress(0, 0)
    cores.states, cores.coordinates = tensors["states"], tensors["coordinates"]
    cores.keys, cores.values = list(tensors["keys"]), list(tensors["values"])
    cores.running = RunningAttention(*(tensors[name] for name in RunningAttention._fields))
    return progress
