"""Stored views and their targets, read beside the images they belong to.

A view is replayed exactly as it was recorded, so the student sees the pixels that the teacher saw. Which of
the K stored views a visit takes is a function of (seed, visit, key): every K visits take each of them once,
in an order of their own.

Of a teacher's tokens (…, D) rows of bytes (…, row_bytes) are kept, as they stand in the .npy. int8 keeps,
per token, a float16 scale and D steps of it; the scale of a token is its largest magnitude / 127. int8 rows
stay packed until they are on the training device (`open_targets`): workers and buses move half the bytes, and
a CPU worker would spend on unpacking what the smaller read has saved.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from veca.data.index import Shard, check_shards, listed
from veca.data.reader import BadSample, Sample, ShardReader, parse_header, tar_members
from veca.data.stored_targets import SKIPPED_BYTES, Cache, npy_rows, view_name
from veca.data.tars import BLOCK
from veca.data.views import View, sample_generator, view_from_json
from veca.types import Targets

_FLOATS = {"fp16": torch.float16, "bf16": torch.bfloat16}

_STEPS = 127
_SMALLEST_SCALE = 2.0**-24  # float16's smallest number: a token of zeros needs some scale
_SCALE_BYTES = 2


class StoredViews:
    """A `ViewSource` over one split of a cache, whose shards are those of the images, number by number.

    `seed` decides the choice among a sample's views.
    """

    def __init__(self, cache: Cache, split: str, *, seed: int, max_open: int) -> None:
        self._reader = ShardReader(cache.shards(split), cache=None, max_open=max_open)
        self._fingerprint = cache.spec.fingerprint
        self._layout = cache.spec.layout(split)
        self._seed = seed

    def choose(self, sample: Sample, *, visit: int, resolution: int) -> tuple[View, Targets | None]:
        number = view_of_visit(self._seed, visit, sample.key, num_views=self._layout.views)
        name = view_name(resolution, number)
        about = self.read_about(sample.shard, sample.number, key=sample.key)
        if "skipped" in about:
            raise BadSample("no-targets", f"the cache has no targets of it: {about['skipped']}")
        view = view_from_json(about["views"][name])
        return view, self._read_targets(sample, f"{name}.npy", resolution)

    def read_about(self, shard: int, number: int, *, key: str | None = None) -> dict[str, Any]:
        """The JSON of a sample; ValueError if it is not of this cache, or not of this key (None: any)."""
        begin, end = self._reader.span(shard, number)
        if end - begin > SKIPPED_BYTES:
            end -= self._layout.arrays_bytes
        try:
            ((name, content),) = tar_members(self._reader.read_span(shard, begin, max(begin, end)).tobytes())
            about: dict[str, Any] = json.loads(content)
        except (BadSample, ValueError) as error:
            raise self._refusal(shard, number, f"is damaged ({error})") from None
        if about.get("targets") != self._fingerprint:
            raise self._refusal(shard, number, f"belongs to the cache {about.get('targets')}")
        if key is not None and name != f"{key}.json":
            raise self._refusal(shard, number, f"is {name}, but the image there is {key}: another order")
        return about

    def _read_targets(self, sample: Sample, name: str, resolution: int) -> Targets:
        _, end = self._reader.span(sample.shard, sample.number)
        begin, size = end - self._layout.from_end(name), self._layout.members[name]
        data = self._reader.read_span(sample.shard, begin, begin + BLOCK + size)
        try:
            if parse_header(data[:BLOCK].tobytes()) != (f"{sample.key}.{name}", size):
                raise ValueError("has another name or size")
            rows = npy_rows(data[BLOCK:], self._layout, resolution)
        except ValueError as error:
            raise self._refusal(sample.shard, sample.number, f"is damaged: {name} {error}") from None
        tokens = unpack_rows(torch.from_numpy(rows), self._layout.dtype)
        return Targets(cls=tokens[0], patches=tokens[1:])

    def _refusal(self, shard: int, number: int, problem: str) -> ValueError:
        return ValueError(
            f"{self._reader.name(shard)}: sample {number} {problem}. Run `veca data check` on the cache, "
            "then copy or make this shard again."
        )


def pack_rows(tokens: Tensor, dtype: str) -> Tensor:
    """Tokens (…, D) as bytes (…, row_bytes); refuses what the dtype cannot hold."""
    if dtype == "int8":
        largest = tokens.abs().amax(-1, keepdim=True)
        stored = scale = (largest / _STEPS).clamp_min(_SMALLEST_SCALE).half()
        # Divided by the scale as it is stored, so that its own rounding does no harm.
        steps = (tokens / scale.float()).round().clamp(-_STEPS, _STEPS).to(torch.int8)
        rows = torch.cat([scale.view(torch.uint8), steps.view(torch.uint8)], dim=-1)
    else:
        stored = tokens.to(_FLOATS[dtype]).contiguous()
        rows = stored.view(torch.uint8)
    if not bool(stored.isfinite().all()):
        raise ValueError(f"the teacher's targets have values that {dtype} cannot hold. Try --dtype bf16.")
    return rows


def unpack_rows(rows: Tensor, dtype: str) -> Tensor:
    """Stored bytes as tokens: fp16 and bf16 as they are; int8 stays packed."""
    return rows if dtype == "int8" else rows.view(_FLOATS[dtype])


def open_targets(targets: Targets) -> Targets:
    """Targets as numbers, on the device where they are: packed int8 rows become float32."""
    return Targets(_opened(targets.cls), _opened(targets.patches))


def view_of_visit(seed: int, visit: int, key: str, *, num_views: int) -> int:
    """Which stored view a visit takes."""
    if num_views == 1:
        return 0
    order = sample_generator(seed, visit // num_views, key).permutation(num_views)
    return int(order[visit % num_views])


def check_replay(cache: Cache, images: Mapping[str, Sequence[Shard]], *, resolutions: Sequence[int]) -> None:
    """Raise one error that names every way in which a cache does not serve these images, by split."""
    problems = []
    missing = [resolution for resolution in resolutions if resolution not in cache.spec.resolutions]
    if missing:
        problems.append(f"resolution: the run needs {missing}, the cache has {list(cache.spec.resolutions)}")
    for split, shards in images.items():
        held = [shard.info.name for shard in cache.shards(split)]
        for shard in shards:
            if cache.spec.images.get(shard.info.name) != shard.info.sha256:
                problems.append(f"shards: {shard.location} is not the file that the targets were made of")
            elif shard.info.name not in held:
                problems.append(f"shards: the cache's index does not list {shard.info.name}")
        if len(held) > len(shards):
            told = f"the cache has targets of {len(held)} shards of {split}, the run {len(shards)}"
            problems.append(f"shards: {told}")
    if not problems:
        check_shards([shard for split in images for shard in cache.shards(split)])
        problems = [problem for split, shards in images.items() for problem in _ends(cache, shards, split)]
    if problems:
        raise ValueError(
            f"the stored targets in {cache.folder} cannot be used:{listed(problems)}"
            "\nMake a cache of these shards with `veca data cache`, or give the path of another one."
        )


def _ends(cache: Cache, images: Sequence[Shard], split: str) -> Iterator[str]:
    """Read both ends of each shard: one of another cache, or in another order, is found before training.

    Every sample is compared again when it is read; remote images are compared only then.
    """
    views = StoredViews(cache, split, seed=0, max_open=2)
    reader = ShardReader(images, cache=None, max_open=2)
    for number, shard in enumerate(images):
        for sample in sorted({0, shard.info.samples - 1}):
            try:
                key = None if shard.is_remote else reader.read(number, sample).key
                views.read_about(number, sample, key=key)
            except BadSample:
                continue  # the image is what cannot be read; training will count it
            except ValueError as error:
                yield str(error)
                break


def _opened(rows: Tensor) -> Tensor:
    if rows.dtype != torch.uint8:
        return rows
    scale = rows[..., :_SCALE_BYTES].contiguous().view(torch.float16)
    return rows[..., _SCALE_BYTES:].view(torch.int8) * scale.float()
