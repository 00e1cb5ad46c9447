"""`veca features`: global and dense features of many images, in files that anything can read.

A window of images at a time is read and batched by size, so that memory holds its pixels and its features.
The output folder holds numbered parts that are finished or absent, never half, so a second call with the same
settings does what is left:

npy           cls-000000.npy (n, D), patches-000000.npy (n, rows, cols, D), and last names-000000.json,
              which says that the part is finished
safetensors   features-000000.safetensors with the tensors `cls` and `patches`, the names in its metadata
features.json what made them: a folder holds the features of one model at one setting
rejects.jsonl images that could not be read, with the reason

The images of a part have one size, so that its dense features are one array. With boxes, a row of a part is a
box, IMAGE#left,top,right,bottom, and not an image: `cls` is the mean of its patches.
"""

import hashlib
import json
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import save_file
from torch.nn import functional as F

from veca.checkpoint import load_model
from veca.data.boxes import Box, read_boxes
from veca.data.decode import MAX_PIXELS, BadImage, decode, decode_pixels
from veca.data.folders import REPEATED_FILE, check_regular, find_files, read_file
from veca.data.index import INDEX_NAME, SPLITS, check_shards, open_sources
from veca.data.reader import ShardReader
from veca.data.views import centre_crop, check_resolution, normalise
from veca.huge import parse_bytes, stream_file
from veca.model import Veca
from veca.model.regions import grid_corners
from veca.utils.files import atomic_path, check_writable, write_text_atomic
from veca.utils.precision import FLOAT32, InferencePrecision, choose_device, computing_in, resolve_precision
from veca.utils.progress import progress_bar

Array = NDArray[np.float32]
Pixels = NDArray[np.uint8]  # (3, H, W)
Format = Literal["npy", "safetensors"]
ViewKind = Literal["crop", "whole"]
Boxes = dict[str, list[Box]]  # of each image

SETTINGS_NAME = "features.json"
REJECTS_NAME = "rejects.jsonl"
WINDOW_PIXELS = 512 * 256**2
MIN_WINDOW = 16
BATCH_PIXELS = 32 * 256**2
_MAX_OPEN = 64  # shards
_SHOWN = 5


class Part(NamedTuple):
    """Features of images of one size; row i is `names[i]`."""

    names: list[str]
    cls: Array  # (n, D)
    patches: Array | None  # (n, rows, cols, D)


class ListedImage(NamedTuple):
    """An image to read."""

    label: str  # what to call it in messages
    name: str | None  # its path as given, with that below the folder, or SHARD/KEY, known only after reading
    read: Callable[[], tuple[str, bytes]]  # its name and content; raises BadImage or OSError


class LoadedImage(NamedTuple):
    """An image ready to run; without pixels, it has a reason, or was done before."""

    name: str
    pixels: Pixels | None
    reason: str = ""
    scale: tuple[float, float] = (1.0, 1.0)  # of x and y, from the image to the pixels


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
    boxes: Path | None = None,
    max_memory: str | None = None,
    max_pixels: int = MAX_PIXELS,
) -> None:
    """Write the global features of images, and their dense features if wanted.

    Args:
        model: Folder with model.safetensors, a run's .ckpt, the authors' .pt, a Hub id, or a packaged model.
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
        boxes: A CSV file, image,left,top,right,bottom in pixels: features of these boxes, with --view whole.
        max_memory: 2GB, for example: run images at their own size, however large, within this memory.
        max_pixels: The largest image that --max-memory opens.
    """
    _check_request(boxes, max_memory, resolution=resolution, view=view, dense=dense, format=format)
    memory = None if max_memory is None else parse_bytes(max_memory)
    check_writable(out)
    place = choose_device(device)
    student = load_model(model).to(place)
    patch_size = student.size.patch_size
    if memory is None:
        check_resolution(resolution, patch_size=patch_size, resized=view == "crop")
    with torch.inference_mode():  # the model refuses a wrong budget itself: ask it before reading anything
        trial = torch.zeros(1, student.size.in_channels, patch_size, patch_size, device=place)
        cores = student(trial.to(student.patch_embed.weight.dtype), budget=budget).cores.shape[1]
    listed = list_images(images)
    wanted = None if boxes is None else _boxes_of(listed, boxes)
    settings = {
        "model": model,
        "weights": _fingerprint(student),
        "budget": cores,
        "resolution": resolution,
        "view": view,
        "dense": dense,
    }
    computed_in = resolve_precision(precision, accelerator=place.type)
    if computed_in != FLOAT32:  # else not named, as in folders of before there was a choice
        settings["precision"] = computed_in
    if memory is not None:
        settings |= {"resolution": "own", "view": "own"}
    if wanted is not None:
        settings["boxes"] = hashlib.sha256(repr(sorted(wanted.items())).encode()).hexdigest()[:16]
    writer = PartWriter(out, format=format, settings=settings)
    before = len(writer.done)
    if memory is not None:
        with computing_in(precision, place):
            rejects = _stream(student, listed, writer, cores, dense, memory, max_pixels)
        _finish(writer, before=before, total=len(listed), rejects=rejects)
        return
    see = partial(_see, view=view, resolution=resolution, patch_size=patch_size)
    rejects = {}
    window = max(MIN_WINDOW, WINDOW_PIXELS // resolution**2)
    left = [
        image
        for image in listed
        if image.name is None or not writer.done.issuperset(_names_of(image.name, wanted))
    ]
    load = partial(_load, done=writer.done, wanted=wanted, see=see)
    # Threads decode, since both decoders let go of the interpreter lock.
    with ThreadPoolExecutor() as pool, progress_bar("features", len(left), unit="image") as progress:
        for start in range(0, len(left), window):
            loaded = list(pool.map(load, left[start : start + window]))
            for image in loaded:
                if image.reason:
                    rejects |= dict.fromkeys(_names_of(image.name, wanted), image.reason)
            with computing_in(precision, place):
                if wanted is None:
                    parts = _parts(student, loaded, budget=cores, dense=dense)
                else:
                    parts = _box_parts(
                        student, loaded, wanted, writer.done, rejects, budget=cores, dense=dense
                    )
                for part in parts:
                    writer.write(part)
            progress.update(len(loaded))
    total = len(listed) if wanted is None else sum(map(len, wanted.values()))
    _finish(writer, before=before, total=total, rejects=rejects)


def read_features(folder: Path | str) -> tuple[list[str], Array]:
    """All names and all global features (n, D) of a folder."""
    parts = list(read_parts(folder))
    if not parts:
        raise FileNotFoundError(f"no features in {folder}. Make them with `veca features`.")
    return [name for part in parts for name in part.names], np.concatenate([part.cls for part in parts])


def read_parts(folder: Path | str) -> Iterator[Part]:
    """The finished parts of a folder; dense features of .npy parts stay on the disk until used."""
    for path in _finished(Path(folder)):
        if path.suffix == ".json":
            number = path.stem.rpartition("-")[2]
            dense = path.with_name(f"patches-{number}.npy")
            yield Part(
                _names(path),
                np.load(path.with_name(f"cls-{number}.npy"), allow_pickle=False),
                np.load(dense, mmap_mode="r", allow_pickle=False) if dense.is_file() else None,
            )
        else:
            with safe_open(path, framework="np") as file:
                patches = file.get_tensor("patches") if "patches" in file.keys() else None  # noqa: SIM118  # no mapping
                yield Part(_names(path), file.get_tensor("cls"), patches)


class PartWriter:
    """Adds parts to a folder that holds features of the same settings, or nothing yet."""

    def __init__(self, folder: Path, *, format: Format, settings: dict[str, Any]) -> None:
        self.folder, self.format, self.settings = folder, format, settings
        folder.mkdir(parents=True, exist_ok=True)
        _check_settings(folder / SETTINGS_NAME, {**settings, "format": format})
        finished = list(_finished(folder))
        self.done = {name for path in finished for name in _names(path)}
        self._next = 1 + max((int(path.stem.rpartition("-")[2]) for path in finished), default=-1)

    def write(self, part: Part, *, patches_file: Path | None = None) -> None:
        """Add a part; a file of its patches, too large for memory, is moved in place."""
        number = f"{self._next:06d}"
        arrays = {"cls": part.cls} | ({} if part.patches is None else {"patches": part.patches})
        if self.format == "safetensors":
            with atomic_path(self.folder / f"features-{number}.safetensors") as path:
                save_file(arrays, path, metadata={"names": json.dumps(part.names)})
        else:
            for name, array in arrays.items():
                with atomic_path(self.folder / f"{name}-{number}.npy") as path, path.open("wb") as file:
                    np.save(file, array, allow_pickle=False)
            if patches_file is not None:
                patches_file.replace(self.folder / f"patches-{number}.npy")
            names = json.dumps(part.names, ensure_ascii=False, indent=0)
            write_text_atomic(self.folder / f"names-{number}.json", names + "\n")
        self.done.update(part.names)
        self._next += 1


def list_images(sources: list[str]) -> list[ListedImage]:
    """Every image of the sources; each is a file, a folder with images below it, or a folder of shards."""
    if not sources:
        raise ValueError("images must name at least one file, folder or folder of shards; got none.")
    images = [image for source in sources for image in _images(Path(source))]
    if not images:
        raise FileNotFoundError(f"no images in {', '.join(sources)}.")
    named = Counter(image.name for image in images if image.name is not None)
    twice = [name for name, count in named.items() if count > 1]
    if twice:
        raise ValueError(f"{twice[0]} is named twice. Name each file or its folder, not both.")
    return images


def whole_size(size: tuple[int, int], *, resolution: int, patch_size: int) -> tuple[int, int]:
    """(width, height) of the `whole` view of an image (width, height): the nearest whole patches."""
    scale = resolution / min(size)
    width, height = (max(patch_size, round(side * scale / patch_size) * patch_size) for side in size)
    return width, height


def _check_request(
    boxes: Path | None,
    max_memory: str | None,
    *,
    resolution: int,
    view: ViewKind,
    dense: bool,
    format: Format,
) -> None:
    if boxes is not None and max_memory is not None:
        raise ValueError("boxes and max_memory do not go together. Cut the boxes from the dense features.")
    if boxes is not None and view != "whole":
        raise ValueError(f"boxes lie in the whole image; got view {view}. Add --view whole.")
    if max_memory is not None and (resolution, view) != (256, "crop"):
        raise ValueError("max_memory runs images at their own size. Leave out --resolution and --view.")
    if max_memory is not None and dense and format != "npy":
        raise ValueError(
            f"dense features with max_memory are written as npy; got {format}. Add --format npy."
        )


def _boxes_of(listed: list[ListedImage], path: Path) -> Boxes:
    """The boxes of each image, those that are named twice once; every image must be listed, or in a shard."""
    boxes = {name: list(dict.fromkeys(found)) for name, found in read_boxes(path).items()}
    unknown = sorted(boxes.keys() - {image.name for image in listed})
    if unknown and all(image.name is not None for image in listed):
        raise ValueError(
            f"{path}: {len(unknown)} of its images are not among the given ones, first {unknown[0]}. "
            f"Write them as they are given, such as {listed[0].name}."
        )
    return boxes


def _names_of(image: str, wanted: Boxes | None) -> list[str]:
    """What rows of an image are called: its own name, or those of its boxes."""
    return [image] if wanted is None else [f"{image}#{box}" for box in wanted.get(image, [])]


def _see(
    data: bytes, *, view: ViewKind, resolution: int, patch_size: int
) -> tuple[Pixels, tuple[float, float]]:
    """An encoded image as the model sees it, and how much it was scaled."""
    if view == "crop":
        return centre_crop(decode_pixels(data), resolution=resolution), (1.0, 1.0)
    rgb = decode(data)
    width, height = whole_size((rgb.shape[1], rgb.shape[0]), resolution=resolution, patch_size=patch_size)
    channels = torch.from_numpy(rgb).permute(2, 0, 1)[None]
    resized = F.interpolate(channels, size=(height, width), mode="bicubic", antialias=True)
    scale = width / rgb.shape[1], height / rgb.shape[0]
    return np.ascontiguousarray(resized[0].numpy()), scale


def _images(source: Path) -> Iterator[ListedImage]:
    if source.exists():
        check_regular(source)
    if source.is_file():
        yield _file(source)
    elif (source / INDEX_NAME).is_file():
        yield from _samples(source)
    elif source.is_dir():
        found, refused, others = find_files(source)
        names = [each.name for each in found if each.problem is None]
        if others:
            print(f"{source}: {others} files are no images and are ignored")
        if len(names) < len(found):
            print(f"{source}: {len(found) - len(names)} {REPEATED_FILE}, and are ignored")
        yield from (_file(source / name) for name in names)
        yield from (_file(source / name, problem) for name, problem in refused)
    else:
        raise FileNotFoundError(f"{source} is neither a file nor a folder.")


def _file(path: Path, problem: object = None) -> ListedImage:
    def read() -> tuple[str, bytes]:
        if problem is not None:
            raise BadImage("refused", str(problem))
        return str(path), read_file(path)

    return ListedImage(str(path), str(path), read)


def _samples(folder: Path) -> Iterator[ListedImage]:
    (source,) = open_sources(str(folder))
    shards = [shard for split in SPLITS for shard in source.shards(split)]
    check_shards(shards)
    reader = ShardReader(shards, cache=None, max_open=_MAX_OPEN)
    for place, shard in enumerate(shards):
        for number in range(shard.info.samples):
            label = f"{shard.location}, sample {number}"
            yield ListedImage(label, None, partial(_read_sample, reader, place, number, shard.info.name))


def _read_sample(reader: ShardReader, shard: int, number: int, shard_name: str) -> tuple[str, bytes]:
    sample = reader.read(shard, number)
    return f"{shard_name.removesuffix('.tar')}/{sample.key}", sample.image


def _load(
    image: ListedImage,
    *,
    done: set[str],
    wanted: Boxes | None,
    see: Callable[[bytes], tuple[Pixels, tuple[float, float]]],
) -> LoadedImage:
    try:
        name, data = image.read()
        if done.issuperset(_names_of(name, wanted)):
            return LoadedImage(name, None)
        pixels, scale = see(data)
        return LoadedImage(name, pixels, scale=scale)
    except (BadImage, OSError) as error:
        return LoadedImage(image.label, None, str(error))


def _parts(student: Veca, images: list[LoadedImage], *, budget: int, dense: bool) -> Iterator[Part]:
    """One part per size of image in the window."""
    sizes: dict[tuple[int, ...], list[tuple[str, Pixels]]] = {}
    for image in images:
        if image.pixels is not None:
            sizes.setdefault(image.pixels.shape, []).append((image.name, image.pixels))
    for (_, height, width), alike in sizes.items():
        names, pixels = zip(*alike, strict=True)
        size = max(1, BATCH_PIXELS // (height * width))
        stacks = (np.stack(pixels[start : start + size]) for start in range(0, len(pixels), size))
        batches = [_run(student, stack, budget=budget, dense=dense) for stack in stacks]
        cls, patches = zip(*batches, strict=True)
        yield Part(list(names), np.concatenate(cls), np.concatenate(patches) if dense else None)


@torch.inference_mode()
def _run(student: Veca, pixels: NDArray[np.uint8], *, budget: int, dense: bool) -> tuple[Array, Array | None]:
    found = student(_normalised(student, pixels), budget=budget)
    patches = _array(found.patches.unflatten(1, found.grid)) if dense else None
    return _array(found.cls), patches


def _box_parts(
    student: Veca,
    images: list[LoadedImage],
    wanted: Boxes,
    done: set[str],
    rejects: dict[str, str],
    *,
    budget: int,
    dense: bool,
) -> Iterator[Part]:
    """One part per size of box in the window; boxes outside their image are rejected.

    One forward serves all boxes of an image: to remember it and read them would take as long.
    """
    sizes: dict[tuple[int, ...], list[tuple[str, Array]]] = defaultdict(list)
    side = student.size.patch_size
    for image in images:
        named = zip(_names_of(image.name, wanted), wanted.get(image.name, []), strict=True)
        left = {name: box for name, box in named if name not in done}
        if image.pixels is None or not left:
            continue
        _, patches = _run(student, image.pixels[None], budget=budget, dense=True)
        assert patches is not None
        for name, box in left.items():
            try:
                corners = grid_corners(image.pixels.shape[1:], patch_size=side, box=box.scaled(*image.scale))
            except ValueError as error:
                rejects[name] = str(error)
                continue
            (first_col, first_row), (last_col, last_row) = corners.amin(0) // side, corners.amax(0) // side
            found = patches[0, first_row : last_row + 1, first_col : last_col + 1]
            sizes[found.shape].append((name, found))
    for alike in sizes.values():
        names, boxes = zip(*alike, strict=True)
        stack = np.stack(boxes)
        yield Part(list(names), stack.mean((1, 2)), stack if dense else None)


def _stream(
    student: Veca,
    listed: list[ListedImage],
    writer: PartWriter,
    budget: int,
    dense: bool,
    max_memory: int,
    max_pixels: int,
) -> dict[str, str]:
    """Images at their own size, one after the other; what could not be read, with the reason."""
    rejects = {}
    for image in listed:
        if image.name is None:
            raise ValueError(f"max_memory reads files, not samples of shards such as {image.label}.")
        if image.name in writer.done:
            continue
        work = writer.folder / f".{hashlib.sha256(image.name.encode()).hexdigest()[:16]}"
        patches = work / "patches.npy" if dense else None
        try:
            found = stream_file(
                student,
                image.name,
                work=work,
                patches=patches,
                budget=budget,
                max_memory=max_memory,
                max_pixels=max_pixels,
            )
            writer.write(Part([image.name], _array(found.cls), None), patches_file=patches)
        except BadImage as error:
            rejects[image.name] = str(error)
        shutil.rmtree(work, ignore_errors=True)
    return rejects


def _normalised(student: Veca, pixels: NDArray[np.uint8]) -> torch.Tensor:
    weight = student.patch_embed.weight
    return normalise(torch.from_numpy(pixels).to(weight.device), dtype=weight.dtype)


def _array(features: torch.Tensor) -> Array:
    if not bool(features.isfinite().all()):
        raise ValueError("the model gives features that are not finite. Take an earlier checkpoint.")
    array: Array = features.float().cpu().numpy()
    return array


def _fingerprint(student: Veca) -> str:
    """A hash of the weights: a path may hold another model tomorrow."""
    digest = hashlib.sha256()
    for tensor in student.state_dict().values():
        digest.update(tensor.detach().float().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def _finished(folder: Path) -> list[Path]:
    return [*sorted(folder.glob("names-*.json")), *sorted(folder.glob("features-*.safetensors"))]


def _names(path: Path) -> list[str]:
    if path.suffix == ".json":
        text = path.read_text(encoding="utf-8")
    else:
        with safe_open(path, framework="np") as file:
            text = file.metadata()["names"]
    names: list[str] = json.loads(text)
    return names


def _check_settings(path: Path, settings: dict[str, Any]) -> None:
    """Write the settings, or refuse a folder that was made with others."""
    if not path.is_file():
        write_text_atomic(path, json.dumps(settings, indent=1) + "\n")
        return
    found = json.loads(path.read_text(encoding="utf-8"))
    differ = [key for key, value in settings.items() if found.get(key) != value]
    if differ:
        other = (f"{key} {found.get(key)!r}, not {settings[key]!r}" for key in differ)
        raise ValueError(
            f"{path.parent} holds features made with {'; '.join(other)}. Choose another folder, or remove it."
        )


def _finish(writer: PartWriter, *, before: int, total: int, rejects: dict[str, str]) -> None:
    """Write what could not be read, and say what was done."""
    lines = [json.dumps({"name": name, "reason": reason}) + "\n" for name, reason in rejects.items()]
    write_text_atomic(writer.folder / REJECTS_NAME, "".join(lines))
    written = len(writer.done) - before
    what = "boxes" if "boxes" in writer.settings else "images"
    print(
        f"{writer.folder}: features of {written} {what} written, "
        f"{total - written - len(rejects)} were there before."
    )
    if rejects:
        shown = "; ".join(f"{name} ({reason})" for name, reason in list(rejects.items())[:_SHOWN])
        more = f" and {len(rejects) - _SHOWN} more, in rejects.jsonl" if len(rejects) > _SHOWN else ""
        print(f"{len(rejects)} could not be read: {shown}{more}.")
        if len(rejects) == total:
            raise ValueError("none of the images could be read.")
