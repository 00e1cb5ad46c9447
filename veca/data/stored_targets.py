"""Stored targets: what a cache holds, how its samples are laid out, and how one is found.

A cache is a folder of shards beside the images, made by `veca data cache`::

    shards/targets-FINGERPRINT/
      index.json                  a shard index whose options hold the CacheSpec
      patch_projection.safetensors   the teacher's patch projection, where it has one
      train-000000.tar            the keys of ../train-000000.tar, in the same order
      train-000000.offsets.npy

A sample is `KEY.json` (the fingerprint, and every view as it was drawn), then one array per view and
resolution, `KEY.r256v0.npy`: row 0 is the global target, the others are the patches. Where the image could
not be used, `KEY.json` says why, alone.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from veca.data.index import INDEX_NAME, Shard, ShardIndex, Source, listed, load_index
from veca.data.resolutions import PATCH_SIZE
from veca.data.tars import BLOCK

if TYPE_CHECKING:
    from torch import Tensor

DTYPES = ("fp16", "bf16", "int8")
SKIPPED_BYTES = 2 * BLOCK  # a sample without targets: a header, and less than a block of JSON
PROJECTION_NAME = "patch_projection.safetensors"
FOLDER_PREFIX = "targets-"

_OPTION = "targets"
# Raise it when a view drawn or rendered by another rule would no longer be the one that was stored.
_VIEW_RULE = 1


@dataclass(frozen=True)
class CacheSpec:
    """Everything that decides the bytes of a cache; `fingerprint` is a hash of it."""

    teacher: str  # its name, for people; another name of the same weights is the same cache
    weights: str  # `Teacher.fingerprint()`: weights, preprocessing and kind of the teacher
    width: int  # channels of a target
    resolutions: tuple[int, ...]  # sides of the views in pixels, smallest first
    views: int  # random ones per training image and resolution; val and test have the centre view
    dtype: str  # how targets are stored: fp16, bf16, or int8 with a scale per token
    seed: int  # of the views
    precision: str  # what the teacher computed in, in Lightning's words
    images: dict[str, str]  # sha256 of each shard of images, by name

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
    """Where the arrays of a sample lie, sorted by name: the same for every sample of a cache."""

    width: int
    dtype: str
    resolutions: tuple[int, ...]
    views: int

    @cached_property
    def members(self) -> dict[str, int]:
        """Name of each array (what follows the key) and the bytes of its file, in the order of the tar."""
        files = {
            size: len(header) + (1 + (size // PATCH_SIZE) ** 2) * self.row_bytes()
            for size, header in self.npy_headers.items()
        }
        names = {f"{view_name(size, view)}.npy": files[size] for size in files for view in range(self.views)}
        return dict(sorted(names.items()))

    @cached_property
    def arrays_bytes(self) -> int:
        """Bytes of all arrays of a sample in the tar."""
        return sum(_in_tar(size) for size in self.members.values())

    def from_end(self, name: str) -> int:
        """How far before the end of a sample the header of an array stands."""
        names = list(self.members)
        return sum(_in_tar(self.members[other]) for other in names[names.index(name) :])

    def row_bytes(self) -> int:
        return self.width + 2 if self.dtype == "int8" else 2 * self.width

    @cached_property
    def npy_headers(self) -> dict[int, bytes]:
        """What stands before the rows in the .npy files of a resolution (format version 1.0).

        Written here: sizes of members follow from it, and numpy's own padding has changed between releases.
        """
        headers = {}
        for resolution in self.resolutions:
            shape: tuple[int, ...] = (1 + (resolution // PATCH_SIZE) ** 2, self.width)
            descr: Any = "<f2" if self.dtype == "fp16" else "<u2"  # numpy knows no bfloat16
            if self.dtype == "int8":
                shape, descr = shape[:1], [("scale", "<f2"), ("values", "|i1", shape[1:])]
            text = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape!r}, }}"
            text += " " * (-(10 + len(text) + 1) % 64) + "\n"
            start = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little")
            headers[resolution] = start + text.encode("ascii")
        return headers

    def sample_bytes(self, *, json_bytes: int) -> int:
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

    def shards(self, split: str) -> list[Shard]:
        return Source(str(self.folder), self.index).shards(split)

    @property
    def projection_path(self) -> Path | None:
        """Where the teacher's patch projection is kept; None if the teacher has none."""
        sha256 = self.index.options["patch_projection"]
        if sha256 is None:
            return None
        path = self.folder / PROJECTION_NAME
        if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != sha256:
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
        """The one finished cache at or directly under the path of which all that is stated is true."""
        path = Path(self.path)
        if path.name.startswith(FOLDER_PREFIX):
            folders = [path]
        else:
            folders = sorted(folder for folder in path.glob(f"{FOLDER_PREFIX}*") if folder.is_dir())
        finished = [open_cache(folder) for folder in folders if (folder / INDEX_NAME).is_file()]
        if not finished:
            state = f"the cache {folders[0]} is not finished" if folders else f"there is no cache in {path}"
            raise FileNotFoundError(
                f"{state}. Run `veca data cache` on the shards; it goes on where it stopped."
            )
        fitting = [cache for cache in finished if not self._differences(cache.spec)]
        if len(fitting) == 1:
            return fitting[0]
        if fitting:
            names = ", ".join(cache.folder.name for cache in fitting)
            raise ValueError(f"{path} holds {len(fitting)} caches: {names}. Give the path of one.")
        told = [f"{cache.folder}: {self._differences(cache.spec)}" for cache in finished]
        raise ValueError(
            f"no cache in {path} is the one asked for:{listed(told)}\nMake it with `veca data cache`."
        )

    def _differences(self, spec: CacheSpec) -> str:
        found = []
        for name in ("teacher", "views", "dtype"):
            value = getattr(self, name)
            known = (spec.teacher, spec.weights) if name == "teacher" else (getattr(spec, name),)
            if value not in (None, *known):
                found.append(f"{name} is {' / '.join(map(str, known))}, not {value}")
        return "; ".join(found)


def npy_files(rows: NDArray[np.uint8], layout: Layout, resolution: int) -> Iterator[bytes]:
    """The .npy file of each view, from rows (views, tokens, row_bytes)."""
    return (layout.npy_headers[resolution] + view.tobytes() for view in rows)


def npy_rows(file: NDArray[np.uint8], layout: Layout, resolution: int) -> NDArray[np.uint8]:
    """The rows (tokens, row_bytes) in a .npy file's bytes; ValueError unless it is just such an array."""
    header, size = layout.npy_headers[resolution], layout.members[f"{view_name(resolution, 0)}.npy"]
    found = file[: len(header)].tobytes()
    if found != header:
        says, should = (part[10:].decode("latin-1").strip() for part in (found, header))
        raise ValueError(f"begins with {says!r}, not {should!r}")
    if len(file) != size:
        raise ValueError(f"has {len(file)} bytes, not {size}")
    return file[len(header) :].reshape(-1, layout.row_bytes())


def is_cache(index: ShardIndex) -> bool:
    """Whether an index is one of targets, not of images."""
    return _OPTION in index.options


def open_cache(folder: Path) -> Cache:
    """Read the index of a cache, and check that it is the one its fingerprint names."""
    index = load_index(folder)
    if not is_cache(index):
        raise ValueError(f"{folder} holds shards of images, not cached targets.")
    stored = index.options[_OPTION]
    about = dict(stored) if isinstance(stored, dict) else {}
    claimed, rule = about.pop("fingerprint", None), about.pop("view_rule", None)
    if about and rule != _VIEW_RULE:
        raise ValueError(
            f"{folder} was made with view rule {rule}; this release replays {_VIEW_RULE}. Make it again."
        )
    try:
        spec = CacheSpec(**{**about, "resolutions": tuple(about["resolutions"])})
        problems = spec_problems(resolutions=spec.resolutions, views=spec.views, dtype=spec.dtype)
        damaged = any(problems) or spec.fingerprint != claimed
    except (KeyError, TypeError):
        damaged = True
    if damaged:
        raise ValueError(
            f"{folder / INDEX_NAME} does not fit its fingerprint {claimed}. Make the cache again."
        )
    return Cache(folder, index, spec)


def _in_tar(size: int) -> int:
    return BLOCK + -(-size // BLOCK) * BLOCK
