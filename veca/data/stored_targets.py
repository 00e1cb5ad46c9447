"""Stored targets: what a cache holds, how its samples are laid out, and how one is found.

A cache is a folder of shards beside the images, made by `veca data cache`::

    shards/targets-FINGERPRINT/
      index.json                  a shard index whose options hold the CacheSpec
      patch_projection.safetensors   the teacher's patch projection, where it has one
      train-000000.tar            the keys of ../train-000000.tar, in the same order
      train-000000.offsets.npy

A sample is `KEY.json` (the fingerprint, and every view as it was drawn), then one array per view and
resolution, `KEY.r256v0.npy`: row 0 is the global target, the others are the patches. A cache has one size of
array per resolution, so one view is found and read without touching the others. A sample whose image could
not be used is its `KEY.json` alone, which says why.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from veca.data.index import INDEX_NAME, ShardIndex, load_index

if TYPE_CHECKING:
    from torch import Tensor

PATCH_SIZE = 16  # of the student's grid, on which all targets lie
DTYPES = ("fp16", "bf16", "int8")
BLOCK = 512  # of a tar
SKIPPED_BYTES = 2 * BLOCK  # a sample without targets: a header, and less than a block of JSON
PROJECTION_NAME = "patch_projection.safetensors"
FOLDER_PREFIX = "targets-"

_OPTION = "targets"
_NPY_START, _NPY_ALIGN = 10, 64
# Raise it when a view drawn or rendered by another rule would no longer be the one that was stored.
_VIEW_RULE = 1


@dataclass(frozen=True)
class CacheSpec:
    """Everything that decides the bytes of a cache; `fingerprint` is a hash of it.

    Args:
        teacher: Name of the teacher, for people; another name of the same weights is the same cache.
        weights: `Teacher.fingerprint()`: weights, preprocessing and kind of the teacher.
        width: Channels of a target.
        resolutions: Sides of the views in pixels, smallest first.
        views: Random views per training image and resolution; val and test have the centre view.
        dtype: How targets are stored: fp16, bf16, or int8 with a scale per token.
        seed: Seed of the views.
        precision: What the teacher computed in, in Lightning's words.
        images: sha256 of each shard of images, by name.
    """

    teacher: str
    weights: str
    width: int
    resolutions: tuple[int, ...]
    views: int
    dtype: str
    seed: int
    precision: str
    images: dict[str, str]

    @cached_property
    def fingerprint(self) -> str:
        body = {**asdict(self), "view_rule": _VIEW_RULE}
        del body["teacher"]
        return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def folder_name(self) -> str:
        return FOLDER_PREFIX + self.fingerprint

    def num_views(self, split: str) -> int:
        return self.views if split == "train" else 1

    def layout(self, split: str) -> "Layout":
        return Layout(self.width, self.dtype, self.resolutions, self.num_views(split))

    def options(self, *, projection_sha256: str | None) -> dict[str, Any]:
        """What the cache's index.json says of it."""
        about = {**asdict(self), "view_rule": _VIEW_RULE, "fingerprint": self.fingerprint}
        return {_OPTION: about, "patch_projection": projection_sha256}


@dataclass(frozen=True)
class Layout:
    """Where the arrays of a sample lie: a function of the cache alone, the same for every sample.

    Members are sorted by name, as in every shard of the project.
    """

    width: int
    dtype: str
    resolutions: tuple[int, ...]
    views: int

    @cached_property
    def members(self) -> dict[str, int]:
        """Name of each array (what follows the key) and the bytes of its file, in the order of the tar."""
        names = {view_name(size, view): size for size in self.resolutions for view in range(self.views)}
        return {f"{name}.npy": self.npy_bytes(names[name]) for name in sorted(names)}

    @cached_property
    def arrays_bytes(self) -> int:
        """Bytes of all arrays of a sample, headers and padding included."""
        return sum(_in_tar(size) for size in self.members.values())

    def from_end(self, name: str) -> int:
        """How far before the end of a sample the header of an array stands."""
        names = list(self.members)
        return sum(_in_tar(self.members[other]) for other in names[names.index(name) :])

    def num_tokens(self, resolution: int) -> int:
        return 1 + (resolution // PATCH_SIZE) ** 2

    def array_type(self, resolution: int) -> tuple["np.dtype[Any]", tuple[int, ...]]:
        """dtype and shape of an array, as numpy knows them. bfloat16, which it does not know, is uint16."""
        tokens = self.num_tokens(resolution)
        if self.dtype == "int8":
            return np.dtype([("scale", "<f2"), ("values", "i1", (self.width,))]), (tokens,)
        return np.dtype("<f2" if self.dtype == "fp16" else "<u2"), (tokens, self.width)

    def row_bytes(self) -> int:
        return self.width + 2 if self.dtype == "int8" else 2 * self.width

    def npy_header(self, resolution: int) -> bytes:
        """What stands before the rows in the .npy file (format version 1.0).

        Written here: sizes of members follow from it, and numpy's own padding has changed between releases.
        """
        dtype, shape = self.array_type(resolution)
        descr = np.lib.format.dtype_to_descr(dtype)
        text = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape!r}, }}"
        text += " " * (-(_NPY_START + len(text) + 1) % _NPY_ALIGN) + "\n"
        return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode("ascii")

    def npy_bytes(self, resolution: int) -> int:
        return len(self.npy_header(resolution)) + self.num_tokens(resolution) * self.row_bytes()

    def sample_bytes(self, *, json_bytes: int) -> int:
        """What a sample takes in the tar."""
        return _in_tar(json_bytes) + self.arrays_bytes


def view_name(resolution: int, view: int) -> str:
    return f"r{resolution}v{view}"


def spec_problems(*, resolutions: Sequence[int], views: int, dtype: str) -> Iterator[str]:
    """Every value that no cache can have."""
    for resolution in resolutions:
        if resolution < PATCH_SIZE or resolution % PATCH_SIZE:
            near = max(1, round(resolution / PATCH_SIZE)) * PATCH_SIZE
            yield f"resolution must be a multiple of {PATCH_SIZE}; got {resolution}. Try {near}."
    if not resolutions or len(set(resolutions)) < len(resolutions):
        yield f"resolutions must be different numbers, at least one; got {list(resolutions)}."
    if views < 1:
        yield f"views must be at least 1; got {views}."
    if dtype not in DTYPES:
        yield f"dtype must be one of {', '.join(DTYPES)}; got {dtype!r}."


@dataclass(frozen=True)
class Cache:
    """A finished cache."""

    folder: Path
    index: ShardIndex
    spec: CacheSpec

    @property
    def width(self) -> int:
        return self.spec.width

    @property
    def projection_path(self) -> Path | None:
        """Where the teacher's patch projection is kept; None if the teacher has none."""
        if self.index.options["patch_projection"] is None:
            return None
        path = self.folder / PROJECTION_NAME
        if not path.is_file() or _sha256(path) != self.index.options["patch_projection"]:
            raise FileNotFoundError(f"{path} is missing or damaged. Copy it again, or make the cache again.")
        return path

    def patch_projection(self) -> "tuple[Tensor, Tensor] | None":
        """Its weight and bias, from which a student's patch embedding starts."""
        from safetensors.torch import load_file  # only here: loads torch, which a check does without

        path = self.projection_path
        return None if path is None else (load_file(path)["weight"], load_file(path)["bias"])


@dataclass(frozen=True)
class TargetsSource:
    """Which stored targets a run reads; what is stated beside the path must be true of them.

    Args:
        path: The folder of the shards, whose cache is then found beside them, or the cache's own folder.
        teacher: Name or fingerprint of the teacher; null for any.
        views: Stored views per training image; null for any.
        dtype: How targets are stored; null for any.
    """

    path: str
    teacher: str | None = None
    views: int | None = None
    dtype: Literal["fp16", "bf16", "int8"] | None = None

    def open(self) -> Cache:
        return find_cache(Path(self.path), teacher=self.teacher, views=self.views, dtype=self.dtype)


def npy_files(rows: NDArray[np.uint8], layout: Layout, resolution: int) -> Iterator[bytes]:
    """The .npy file of each view, from rows (views, tokens, row_bytes)."""
    header = layout.npy_header(resolution)
    return (header + view.tobytes() for view in rows)


def npy_rows(file: NDArray[np.uint8], layout: Layout, resolution: int) -> NDArray[np.uint8]:
    """The rows (tokens, row_bytes) in the bytes of a .npy file; ValueError unless it is just such an array.

    The header is read as the literal it is; an array of objects, which would be a pickle, has another dtype.
    """
    start = _NPY_START + int.from_bytes(file[_NPY_START - 2 : _NPY_START].tobytes(), "little")
    dtype, shape = _read_header(file[:start].tobytes())
    if (dtype, shape) != layout.array_type(resolution):
        wanted, tokens = layout.array_type(resolution)
        raise ValueError(f"holds {dtype}{shape}, not {wanted}{tokens}")
    count = layout.num_tokens(resolution)
    if len(file) != start + count * layout.row_bytes():
        raise ValueError(f"has {len(file)} bytes, not {start + count * layout.row_bytes()}")
    return file[start:].reshape(count, layout.row_bytes())


def is_cache(index: ShardIndex) -> bool:
    """Whether an index is one of targets, not of images."""
    return _OPTION in index.options


def open_cache(folder: Path) -> Cache:
    """Read the index of a cache, and check that it is the one its fingerprint names."""
    index = load_index(folder)
    if not is_cache(index):
        raise ValueError(f"{folder} holds shards of images, not cached targets.")
    about = dict(index.options[_OPTION])
    claimed, rule = about.pop("fingerprint", None), about.pop("view_rule", None)
    if rule != _VIEW_RULE:
        raise ValueError(
            f"{folder} was made with view rule {rule}; this release replays {_VIEW_RULE}. Make it again."
        )
    try:
        spec = CacheSpec(**{**about, "resolutions": tuple(about["resolutions"])})
        problems = list(spec_problems(resolutions=spec.resolutions, views=spec.views, dtype=spec.dtype))
        damaged = bool(problems) or spec.fingerprint != claimed
    except (KeyError, TypeError):
        damaged = True
    if damaged:
        raise ValueError(
            f"{folder / INDEX_NAME} does not fit its fingerprint {claimed}. Make the cache again."
        )
    return Cache(folder, index, spec)


def find_cache(path: Path, **wanted: Any) -> Cache:
    """The one cache at or directly under `path` whose spec has the `wanted` values (None: any).

    A teacher may be wanted by its name or by the fingerprint of its weights.
    """
    if path.name.startswith(FOLDER_PREFIX):
        folders = [path]
    else:
        folders = sorted(folder for folder in path.glob(f"{FOLDER_PREFIX}*") if folder.is_dir())
    finished = [open_cache(folder) for folder in folders if (folder / INDEX_NAME).is_file()]
    if not finished:
        state = f"the cache {folders[0]} is not finished" if folders else f"there is no cache in {path}"
        raise FileNotFoundError(f"{state}. Run `veca data cache` on the shards; it goes on where it stopped.")
    differences = {cache.folder: _differences(cache.spec, wanted) for cache in finished}
    fitting = [cache for cache in finished if not differences[cache.folder]]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        names = ", ".join(cache.folder.name for cache in fitting)
        raise ValueError(f"{path} holds {len(fitting)} caches: {names}. Give the path of one.")
    listed = "\n  ".join(f"{folder}: {'; '.join(found)}" for folder, found in differences.items())
    raise ValueError(f"no cache in {path} is the one asked for:\n  {listed}\nMake it with `veca data cache`.")


def _differences(spec: CacheSpec, wanted: dict[str, Any]) -> list[str]:
    found = []
    for name, value in wanted.items():
        own = getattr(spec, name)
        known = (spec.teacher, spec.weights) if name == "teacher" else (own,)
        if value is not None and value not in known:
            found.append(f"{name} is {' / '.join(map(str, known))}, not {value}")
    return found


@lru_cache(maxsize=64)  # a cache has a handful of different headers, and every array one of them
def _read_header(header: bytes) -> tuple["np.dtype[Any]", tuple[int, ...]]:
    file = BytesIO(header)
    version = np.lib.format.read_magic(file)
    if version != (1, 0):
        raise ValueError(f"is a .npy of version {version}, not (1, 0)")
    shape, fortran_order, dtype = np.lib.format.read_array_header_1_0(file)
    if fortran_order:
        raise ValueError("is stored column by column")
    return dtype, shape


def _in_tar(size: int) -> int:
    return BLOCK + -(-size // BLOCK) * BLOCK


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
