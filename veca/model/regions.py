"""Regions: the exact features of chosen patches, alone.

In every layer a patch is updated from its own state and from the cores (method §1). What an image's patches
read from the cores, their rotated keys and their values, is therefore all there is to remember of it: 2·L·C·D
numbers. With these, any patch of the image, on its grid or between two of its cells, can be run alone and
comes out as in the full forward; the time is that of the patches that are read.

Shapes: B images, C active cores, n patches that are read, D width, L layers, H heads, h head width, p the
side of a patch.
"""

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from veca.model.block import Block
from veca.model.core_pass import Cores, embed, finish, run_patches
from veca.model.rope import frequencies, rotation
from veca.utils.files import atomic_path

if TYPE_CHECKING:
    from veca.model.veca import Veca


FORMAT = "veca memory"
VERSION = 1  # rises when a file of before would be read wrongly
_HASHED = 256  # numbers of a parameter


@dataclass(frozen=True, eq=False)
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


class Cells(NamedTuple):
    """Patches to read, and where they lie."""

    crops: Tensor  # (B, n, 3, p, p), normalised pixels
    places: Tensor  # (B, n, 2), centres (x, y) in the whole image, whose sides span [-1, 1]


def remember(model: "Veca", images: Tensor, budget: int | None = None) -> Memory:
    """What patches of these images (B, 3, H, W) read from the cores.

    Its cost is that of a forward whose patches skip the last two layers: nothing after them reaches a core
    whose keys and values are kept. Patches have their true places, in training mode too.
    """
    model._check_images(images)
    budget = model._check_budget(budget)
    embedded = model.patch_embed(images)
    rows, cols = embedded.shape[-2:]
    patches = embedded.flatten(2).transpose(1, 2).to(model.patch_embed.weight.dtype)
    corners = grid_corners((rows, cols), patch_size=1).to(images.device)
    cores = Cores(model, budget=budget, batch=len(images))
    places = centres(corners, (rows, cols), dtype=cores.precision)
    turns = cores.turns(places).expand(len(images), -1, -1, -1)
    depth = len(model.blocks)
    for number in range(depth):
        cores.enter_layer()
        if number < depth - 1:
            cores.read(patches, turns)
            cores.leave_layer()
        if number < depth - 2:
            patches = cores.run(patches, turns)
    keys, values = torch.stack(cores.keys), torch.stack(cores.values)
    return Memory(keys, values, (rows, cols), weights_digest(model))


def read(model: "Veca", memory: Memory, crops: Tensor, places: Tensor) -> Tensor:
    """Features (B, n, D) of the patches `crops` (B, n, 3, p, p) that lie at `places` (B, n, 2) or (n, 2).

    They are those of the full forward, whose `patches` a read of the whole grid gives.
    """
    places = places.expand(len(crops), -1, -1) if places.ndim == 2 else places
    _check_read(model, memory, crops, places)
    precision = torch.promote_types(model.patch_embed.weight.dtype, torch.float32)
    turn_rate = frequencies(model.size.head_width, device=crops.device, dtype=precision)
    turns = rotation(places.to(precision), turn_rate)
    patches = embed(model, crops.flatten(2))
    for block, keys, values in zip(model.blocks, memory.keys, memory.values, strict=True):
        assert isinstance(block, Block)
        patches = run_patches(block, patches, turns, keys, values)
    return finish(model, patches)


def grid_corners(
    size: tuple[int, int],
    *,
    patch_size: int = 16,
    stride: int | None = None,
    box: tuple[float, float, float, float] | None = None,
) -> Tensor:
    """Upper left corners (x, y) of patches in an image of size (height, width), row by row: (n, 2).

    They lie `stride` pixels apart, by default a patch; with a `box` (left, top, right, bottom) in pixels, all
    that touch it.
    """
    stride = patch_size if stride is None else stride
    if stride < 1:
        raise ValueError(f"stride must be at least 1 pixel; got {stride}. Try 4.")
    if box is not None and not (box[0] < box[2] and box[1] < box[3]):
        raise ValueError(f"a box is left, top, right, bottom, in pixels; {box} is empty. Swap its ends.")
    axes = []
    for axis, side in enumerate(reversed(size)):
        starts = torch.arange(0, side - patch_size + 1, stride)
        if box is not None:
            starts = starts[(starts < box[axis + 2]) & (starts + patch_size > box[axis])]
        axes.append(starts)
    x, y = torch.meshgrid(*axes, indexing="xy")
    corners = torch.stack((x, y), dim=-1).reshape(-1, 2)
    if not len(corners):
        where = "the image" if box is None else f"the box {box}"
        raise ValueError(f"no patch of {patch_size} px lies in {where} of {size[1]}×{size[0]} pixels.")
    return corners


def centres(corners: Tensor, size: tuple[int, int], *, side: int = 1, dtype: torch.dtype) -> Tensor:
    """Centres (1, n, 2) in [-1, 1]² of squares whose upper left corners (n, 2) lie in a plane of a size."""
    height, width = size
    spans = torch.tensor([2 / width, 2 / height], device=corners.device, dtype=dtype)
    return ((corners.to(dtype) + side / 2) * spans - 1)[None]


def cut(images: Tensor, corners: Tensor, *, patch_size: int = 16) -> Cells:
    """The patches of images (B, 3, H, W) whose upper left corners (n, 2) are given, for `read`.

    Any corner will do, on the grid or not, as long as the patch lies in the image.
    """
    height, width = images.shape[-2:]
    corners = corners.to(images.device)
    room = torch.tensor([width, height], device=images.device) - patch_size
    if bool(((corners < 0) | (corners > room)).any()):
        raise ValueError(
            f"patches of {patch_size} px must lie in the image of {width}×{height}, corners (x, y) within "
            f"(0, 0) to {tuple(room.tolist())}; got {corners.amin(0).tolist()} to {corners.amax(0).tolist()}."
        )
    windows = images.unfold(2, patch_size, 1).unfold(3, patch_size, 1)  # a view: (B, 3, H', W', p, p)
    crops = windows[:, :, corners[:, 1], corners[:, 0]].transpose(1, 2)
    precision = torch.promote_types(images.dtype, torch.float32)
    places = centres(corners, (height, width), side=patch_size, dtype=precision)
    return Cells(crops, places.expand(len(images), -1, -1))


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
    problem = _mismatch(model, memory)
    if problem:
        raise _refused(path, problem)
    return memory.to(model.patch_embed.weight.device)


def weights_digest(model: "Veca") -> str:
    """A short hash of some numbers of every parameter: training moves them all."""
    flat = (x.detach().flatten() for x in model.parameters())
    some = torch.cat([x[:: max(1, len(x) // _HASHED)] for x in flat])
    return hashlib.sha256(some.float().cpu().numpy().tobytes()).hexdigest()[:16]


def _mismatch(model: "Veca", memory: Memory) -> str | None:
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


def _check_read(model: "Veca", memory: Memory, crops: Tensor, places: Tensor) -> None:
    if problem := _mismatch(model, memory):
        raise ValueError(f"this memory cannot be read: {problem}. Remember the images again with this model.")
    side, channels = model.size.patch_size, model.size.in_channels
    if crops.ndim != 5 or crops.shape[2:] != (channels, side, side) or not crops.is_floating_point():
        raise ValueError(
            f"crops must be normalised floats of shape (B, n, {channels}, {side}, {side}); got {crops.dtype} "
            f"of shape {tuple(crops.shape)}. veca.model.regions.cut makes them."
        )
    if len(crops) != len(memory):
        raise ValueError(
            f"the memory holds {len(memory)} images, crops are of {len(crops)}. "
            "Choose images with memory.of([…])."
        )
    if places.shape != (*crops.shape[:2], 2):
        raise ValueError(
            f"places must have shape {(*crops.shape[:2], 2)} or {(crops.shape[1], 2)}, one (x, y) per patch; "
            f"got {tuple(places.shape)}."
        )
