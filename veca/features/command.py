"""`veca features`: images → features, a window of images at a time, batched by size.

Memory holds one window: its pixels and its features. What is finished is on the disk, so a second call with
the same settings does what is left.
"""

import hashlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from veca.checkpoint import load_model
from veca.data.decode import BadImage
from veca.data.views import normalise
from veca.features.images import Item, list_images
from veca.features.parts import Format, Part, PartWriter
from veca.features.views import ViewKind, check_resolution, read_view
from veca.model import Veca
from veca.utils.precision import FLOAT32, InferencePrecision, computing_in, resolve_precision
from veca.utils.progress import progress_bar

WINDOW_PIXELS = 512 * 256**2
MIN_WINDOW = 16
BATCH_PIXELS = 32 * 256**2
_SHOWN = 5


class Loaded(NamedTuple):
    """An image ready to run; without pixels, it has a reason, or was done before."""

    name: str
    pixels: NDArray[np.uint8] | None  # (3, H, W)
    reason: str = ""


def features(
    model: str,
    images: list[str],
    *,
    out: Path,
    budget: int | None = None,
    resolution: int = 256,
    view: ViewKind = "crop",
    dense: bool = False,
    format: Format = "npy",
    device: str | None = None,
    precision: InferencePrecision = FLOAT32,
) -> None:
    """Write the global features of images, and their dense features if wanted.

    Args:
        model: Folder with model.safetensors, a run's .ckpt, the authors' .pt, or a Hub id.
        images: Image files, folders with images, folders of shards.
        out: Folder to write. A second call with the same settings does what is left.
        budget: Active cores; by default all.
        resolution: Side of the view in pixels; with --view whole, its short side.
        view: crop for the central square, as veca.preprocess; whole for all of it, in its own proportions.
        dense: Write the feature of every patch too.
        format: npy, or safetensors with the names in the metadata.
        device: cpu, cuda, cuda:1, …; by default a GPU if there is one.
        precision: 32-true for features to compare with others. bf16-mixed has two to three digits, and takes
            less time on GPUs and on CPUs that multiply bf16; auto is bf16-mixed there, 32-true elsewhere.
    """
    student = load_model(model).to(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    check_resolution(resolution, view=view, patch_size=student.size.patch_size)
    budget = _choose_budget(student, budget)
    items = list_images(images)
    settings = {
        "model": model,
        "weights": _fingerprint(student),
        "budget": budget,
        "resolution": resolution,
        "view": view,
        "dense": dense,
    }
    computed_in = resolve_precision(precision, accelerator=_device(student).type)
    if computed_in != FLOAT32:  # else not named, as in folders of before there was a choice
        settings["precision"] = computed_in
    writer = PartWriter(out, format=format, settings=settings)
    load = partial(
        _load, done=writer.done, view=view, resolution=resolution, patch_size=student.size.patch_size
    )
    before = len(writer.done)
    rejects: dict[str, str] = {}
    window = max(MIN_WINDOW, WINDOW_PIXELS // resolution**2)
    for loaded in _windows([item for item in items if item.name not in writer.done], load, size=window):
        rejects |= {image.name: image.reason for image in loaded if image.reason}
        with computing_in(precision, _device(student)):
            for part in _parts(student, loaded, budget=budget, dense=dense):
                writer.write(part)
    writer.write_rejects(rejects)
    _say(out, written=len(writer.done) - before, total=len(items), rejects=rejects)


def _windows(items: list[Item], load: Callable[[Item], Loaded], *, size: int) -> Iterator[list[Loaded]]:
    """The images in windows of `size`; threads decode, since both decoders let go of the interpreter lock."""
    with ThreadPoolExecutor() as pool, progress_bar("features", len(items), unit="image") as progress:
        for start in range(0, len(items), size):
            window = items[start : start + size]
            yield list(pool.map(load, window))
            progress.update(len(window))


def _choose_budget(student: Veca, budget: int | None) -> int:
    """The budget as a number. The model refuses a wrong one itself: ask it before reading anything."""
    size = student.size
    tiny = torch.zeros(1, size.in_channels, size.patch_size, size.patch_size, device=_device(student))
    with torch.inference_mode():
        return int(student(tiny, budget=budget).cores.shape[1])


def _load(item: Item, *, done: set[str], view: ViewKind, resolution: int, patch_size: int) -> Loaded:
    try:
        name, data = item.read()
        if name in done:
            return Loaded(name, None)
        return Loaded(name, read_view(data, view=view, resolution=resolution, patch_size=patch_size))
    except (BadImage, OSError) as error:
        return Loaded(item.label, None, str(error))


def _parts(student: Veca, images: list[Loaded], *, budget: int, dense: bool) -> Iterator[Part]:
    """One part per size of image in the window."""
    sizes: dict[tuple[int, ...], list[Loaded]] = {}
    for image in images:
        if image.pixels is not None:
            sizes.setdefault(image.pixels.shape, []).append(image)
    for alike in sizes.values():
        batches = [_run(student, batch, budget=budget, dense=dense) for batch in _batches(alike)]
        cls = np.concatenate([cls for cls, _ in batches])
        patches = [patches for _, patches in batches if patches is not None]
        yield Part([image.name for image in alike], cls, np.concatenate(patches) if patches else None)


def _batches(images: list[Loaded]) -> Iterator[NDArray[np.uint8]]:
    pixels = [image.pixels for image in images if image.pixels is not None]
    _, height, width = pixels[0].shape
    size = max(1, BATCH_PIXELS // (height * width))
    for start in range(0, len(pixels), size):
        yield np.stack(pixels[start : start + size])


@torch.inference_mode()
def _run(
    student: Veca, pixels: NDArray[np.uint8], *, budget: int, dense: bool
) -> tuple[NDArray[np.float32], NDArray[np.float32] | None]:
    images = normalise(torch.from_numpy(pixels).to(_device(student)), dtype=student.patch_embed.weight.dtype)
    found = student(images, budget=budget)
    if not bool(found.cls.isfinite().all()):
        raise ValueError("the model gives features that are not finite. Take an earlier checkpoint.")
    cls = found.cls.float().cpu().numpy()
    return cls, found.patches.unflatten(1, found.grid).float().cpu().numpy() if dense else None


def _device(student: Veca) -> torch.device:
    return student.patch_embed.weight.device


def _fingerprint(student: Veca) -> str:
    """A hash of the weights: a path may hold another model tomorrow."""
    digest = hashlib.sha256()
    for tensor in student.state_dict().values():
        digest.update(tensor.detach().float().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def _say(out: Path, *, written: int, total: int, rejects: dict[str, str]) -> None:
    print(f"{out}: features of {written} images written, {total - written - len(rejects)} were there before.")
    if rejects:
        shown = "; ".join(f"{name} ({reason})" for name, reason in list(rejects.items())[:_SHOWN])
        more = f" and {len(rejects) - _SHOWN} more, in rejects.jsonl" if len(rejects) > _SHOWN else ""
        print(f"{len(rejects)} could not be read: {shown}{more}.")
        if len(rejects) == total:
            raise ValueError("none of the images could be read.")
