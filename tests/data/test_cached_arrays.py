"""Tokens come back as they were, as nearly as their dtype can say, and nothing else is taken for an array."""

import io

import numpy as np
import pytest
import torch
from torch.nn.functional import cosine_similarity

from veca.data.cached import DTYPES, Layout
from veca.data.cached_arrays import npy_files, npy_rows, open_targets, pack_rows, unpack_rows
from veca.types import Targets

WIDTH = 40


def tokens(*shape: int) -> torch.Tensor:
    """Like a transformer's: a few channels ten times as large as the others."""
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(*shape, WIDTH, generator=generator)
    values[..., :2] *= 10
    return values


def there_and_back(values: torch.Tensor, dtype: str) -> torch.Tensor:
    rows = pack_rows(values, dtype)
    assert rows.dtype == torch.uint8
    stored = unpack_rows(rows, dtype)
    return open_targets(Targets(stored, stored)).patches


@pytest.mark.parametrize(
    ("dtype", "least", "error"), [("fp16", 0.999999, 2**-11), ("bf16", 0.99999, 2**-8), ("int8", 0.999, None)]
)
def test_every_token_survives(dtype: str, least: float, error: float | None) -> None:
    values = tokens(5, 17)
    back = there_and_back(values, dtype).float()
    assert cosine_similarity(back, values, dim=-1).min() > least
    largest = values.abs().amax(-1, keepdim=True)
    bound = values.abs() * error if error else largest / 127 * 0.51
    assert bool(((back - values).abs() <= bound + 1e-7).all())


def test_int8_is_what_plain_numpy_makes_of_it() -> None:
    values = tokens(1, 9)
    layout = Layout(WIDTH, "int8", (32,), 1)
    (file,) = npy_files(pack_rows(values[:, :5], "int8").numpy(), layout, 32)
    array = np.load(io.BytesIO(file), allow_pickle=False)
    expected = array["values"].astype(np.float32) * array["scale"].astype(np.float32)[:, None]
    assert np.array_equal(there_and_back(values[:, :5], "int8")[0].numpy(), expected)


def test_a_token_of_zeros_stays_one() -> None:
    assert not there_and_back(torch.zeros(2, 3, WIDTH), "int8").any()


@pytest.mark.parametrize(("dtype", "value"), [("fp16", 1e6), ("bf16", float("nan")), ("int8", 1e9)])
def test_what_a_dtype_cannot_hold_is_refused(dtype: str, value: float) -> None:
    values = tokens(2, 3)
    values[1, 2, 5] = value
    with pytest.raises(ValueError, match=f"values that {dtype} cannot hold"):
        pack_rows(values, dtype)


def as_bytes(file: bytes) -> np.ndarray:
    return np.frombuffer(file, np.uint8)


@pytest.mark.parametrize("dtype", DTYPES)
def test_other_arrays_are_refused(dtype: str) -> None:
    layout = Layout(WIDTH, dtype, (32, 48), 1)
    (file,) = npy_files(pack_rows(tokens(1, 5), dtype).numpy(), layout, 32)
    assert npy_rows(as_bytes(file), layout, 32).shape == (5, layout.row_bytes())

    def saved(array: np.ndarray, **options: bool) -> bytes:
        buffer = io.BytesIO()
        np.save(buffer, array, **options)
        return buffer.getvalue()

    objects = np.array([[print]], dtype=object)
    cases = {
        "bytes, not": [file[:-1], file + b"\0"],
        "holds": [saved(np.zeros((5, WIDTH), np.float32)), saved(objects, allow_pickle=True)],
        "column by column": [saved(np.zeros((5, WIDTH), np.float16, order="F"))],
        "magic|header|EOF": [b"", file[:20], b"PK" + file[2:], bytes(200)],
    }
    for words, files in cases.items():
        for bad in files:
            with pytest.raises(ValueError, match=words):
                npy_rows(as_bytes(bad), layout, 32)
    with pytest.raises(ValueError, match="holds"):
        npy_rows(as_bytes(file), layout, 48)
