"""Images at their own size, however large, through a model in bounded memory (the pass: veca/model/huge.py).

What the process itself holds (anonymous memory) is bounded by a setting. The patches' states and features are
mapped files: the system keeps of them what it has room for, and lets go of it when somebody needs the room.
"""

import re
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from veca.data.bands import Bands, open_bands
from veca.data.decode import MAX_PIXELS, BadImage
from veca.data.views import normalise
from veca.model import Veca
from veca.model.huge import Streamed, forget, part_size, stream
from veca.utils.files import in_bytes, reserve
from veca.utils.progress import progress_bar

UNITS = {"MB": 10**6, "GB": 10**9, "TB": 10**12}
SLACK = 128 * 10**6  # what libraries and the allocator hold besides


def stream_file(
    model: Veca,
    path: Path | str,
    *,
    work: Path,
    patches: Path | None = None,
    budget: int | None = None,
    max_memory: int | None = None,
    max_pixels: int = MAX_PIXELS,
) -> Streamed:
    """Features of an image file at its own size, less what does not fill a patch at the right and the bottom.

    Args:
        model: In whose patches the image is cut.
        path: TIFF, or what libvips reads where it is installed.
        work: Folder for the files of the pass. A second call goes on where the first was stopped; remove it
            when the result is safe.
        patches: A .npy file to write the patches' features to, (1, rows, columns, D) float32.
        budget: Active cores; by default all.
        max_memory: Bytes of anonymous memory this process may come to hold; refused where that is too little.
        max_pixels: The largest image to open.
    """
    path = Path(path)
    with open_bands(path, max_pixels=max_pixels) as bands:
        side = model.size.patch_size
        grid = bands.height // side, bands.width // side
        if not all(grid):
            detail = f"{path}: {bands.width}×{bands.height} pixels, a patch has {side}×{side}"
            raise BadImage("too-small", detail)
        _check_memory(model, bands, grid, max_memory)
        work.mkdir(parents=True, exist_ok=True)
        output = None if patches is None else _Output(model, patches, grid)
        if output is not None and not output.is_old:
            forget(work)
        total = grid[0] * grid[1] * model.size.depth
        with progress_bar(path.name, total, unit="patch", unit_scale=True) as progress:
            return stream(
                model,
                partial(_band, model, bands),
                grid,
                folder=work,
                identity=_identity(path, patches),
                budget=budget,
                sink=output,
                advance=_Advance(progress),
            )


def needed_memory(model: Veca, bands: Bands, grid: tuple[int, int]) -> int:
    """Anonymous bytes a pass takes beside what the process holds already."""
    size, weight = model.size, model.patch_embed.weight
    part = part_size(weight.device)
    rows = max(1, part // grid[1])
    pixels = rows * grid[1] * size.patch_size**2 * size.in_channels
    # bytes, floats and their normalised copy, the crops; then a layer's activations
    activations = 12 * size.width + 4 * size.ffn_width + 4 * size.num_heads * size.num_cores
    return SLACK + bands.held_bytes + 16 * pixels + part * activations * weight.element_size()


def anonymous_memory() -> int | None:
    """Bytes of anonymous memory of this process; None where the system does not tell."""
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii")
    except OSError:
        return None
    found = re.search(r"^RssAnon:\s+(\d+) kB$", status, flags=re.MULTILINE)
    return int(found[1]) * 1024 if found else None


def parse_bytes(text: str) -> int:
    """`2GB`, `500 MB` → bytes, in decimal units."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([MGT]B)", text.strip(), flags=re.IGNORECASE)
    if not found or not float(found[1]):
        raise ValueError(f"memory must be a number with MB, GB or TB; got {text!r}. Try 2GB.")
    return int(float(found[1]) * UNITS[found[2].upper()])


class _Output:
    """The file of the patches' features; after an interruption, what is there stays."""

    def __init__(self, model: Veca, path: Path, grid: tuple[int, int]) -> None:
        shape = 1, *grid, model.size.out_width or model.size.width
        self.is_old = path.exists()
        if self.is_old:
            self.array = np.lib.format.open_memmap(path, mode="r+")
            self.is_old = self.array.shape == shape and self.array.dtype == np.float32
        if not self.is_old:
            self.array = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=shape)
            reserve(path, path.stat().st_size)

    def write(self, start: int, features: Tensor) -> None:
        flat = self.array.reshape(-1, self.array.shape[-1])
        flat[start : start + len(features)] = features.float().cpu().numpy()

    def flush(self) -> None:
        self.array.flush()


class _Advance:
    """Tells a bar what is done; of that, what an earlier call did says nothing about the time left."""

    def __init__(self, bar: "tqdm[object]") -> None:
        self.bar, self.begun = bar, False

    def __call__(self, patches: int) -> None:
        if not self.begun:
            self.bar.initial = self.bar.n = patches
            self.begun = True
        else:
            self.bar.update(patches)


def _band(model: Veca, bands: Bands, first: int, last: int) -> Tensor:
    """Normalised pixels of rows of patches, (3, rows·p, columns·p)."""
    side = model.size.patch_size
    pixels = torch.from_numpy(bands.read(side * first, side * last)[:, : bands.width // side * side])
    return normalise(pixels.permute(2, 0, 1)[None], dtype=model.patch_embed.weight.dtype)[0]


def _identity(path: Path, patches: Path | None) -> str:
    """What a pass that was stopped must have in common with the one that goes on."""
    about = path.stat()
    return f"{path.resolve()}, {about.st_size} bytes of {about.st_mtime_ns}, to {patches}"


def _check_memory(model: Veca, bands: Bands, grid: tuple[int, int], max_memory: int | None) -> None:
    held = anonymous_memory()
    if max_memory is None or held is None:
        return
    needed = held + needed_memory(model, bands, grid)
    if needed > max_memory:
        raise ValueError(
            f"max_memory must be at least {in_bytes(needed)} for this model and image (with Python and torch "
            f"{in_bytes(held)}, a row of the file's tiles {in_bytes(bands.held_bytes)}); got "
            f"{in_bytes(max_memory)}. Give more, or store the image in smaller tiles."
        )
