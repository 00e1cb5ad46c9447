"""Tokens ↔ stored bytes: what is kept of a teacher's targets, and how they come back.

In: tokens (…, D) in float32, on whatever device the teacher ran. Out: rows of bytes (…, row_bytes), as they
stand in the .npy. int8 keeps, per token, a float16 scale and D steps of it; the scale of a token is its
largest magnitude / 127.

int8 rows stay packed until they are on the training device (`open_targets`): workers and buses move half the
bytes, and a CPU worker would spend on unpacking what the smaller read has saved.
"""

from collections.abc import Iterator
from functools import lru_cache
from io import BytesIO
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from veca.data.cached import Layout
from veca.types import Targets

_STEPS = 127
_SMALLEST_SCALE = 2.0**-24  # float16's smallest number: a token of zeros needs some scale
_SCALE_BYTES = 2
_NPY_START = 10  # magic, version, and the length of the header that follows


def pack_rows(tokens: Tensor, dtype: str) -> Tensor:
    """Tokens (…, D) as bytes (…, row_bytes); refuses what the dtype cannot hold."""
    if dtype == "int8":
        largest = tokens.abs().amax(-1, keepdim=True)
        scale = (largest / _STEPS).clamp_min(_SMALLEST_SCALE).half()
        # Divided by the scale as it is stored, so that its own rounding does no harm.
        steps = (tokens / scale.float()).round().clamp(-_STEPS, _STEPS).to(torch.int8)
        _check_finite(scale, dtype)
        return torch.cat([scale.view(torch.uint8), steps.view(torch.uint8)], dim=-1)
    stored = tokens.to(torch.float16 if dtype == "fp16" else torch.bfloat16).contiguous()
    _check_finite(stored, dtype)
    return stored.view(torch.uint8)


def unpack_rows(rows: Tensor, dtype: str) -> Tensor:
    """Stored bytes as tokens: fp16 and bf16 as they are; int8 stays packed."""
    if dtype == "int8":
        return rows
    return rows.view(torch.float16 if dtype == "fp16" else torch.bfloat16)


def open_targets(targets: Targets) -> Targets:
    """Targets as numbers, on the device where they are: packed int8 rows become float32."""
    return Targets(_opened(targets.cls), _opened(targets.patches))


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


def _opened(rows: Tensor) -> Tensor:
    if rows.dtype != torch.uint8:
        return rows
    scale = rows[..., :_SCALE_BYTES].contiguous().view(torch.float16)
    return rows[..., _SCALE_BYTES:].view(torch.int8) * scale.float()


def _check_finite(stored: Tensor, dtype: str) -> None:
    if not bool(stored.isfinite().all()):
        raise ValueError(f"the teacher's targets have values that {dtype} cannot hold. Try --dtype bf16.")


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
