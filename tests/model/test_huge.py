"""The streamed pass against the plain forward, whole and interrupted anywhere."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import veca.model.huge as huge
from tests.model.test_veca import doubled, images
from veca import Veca, create_model
from veca.model.huge import StateFile, Streamed, stream
from veca.model.regions import cut, grid_corners, read


def small_model() -> Veca:
    torch.manual_seed(0)
    return create_model("tiny", width=32, depth=3, num_heads=2, num_cores=16, core_group=4, out_width=24)


EXACT, SINGLE = doubled(small_model()), small_model().eval()


class Stopped(Exception):
    pass


@pytest.fixture(scope="module", autouse=True)
def no_power_cuts() -> Iterator[None]:
    """Waiting for the disk after each chunk takes longer than all else here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        patch.setattr(np.memmap, "flush", lambda array: None)
        yield


def run(
    model: Veca,
    x: Tensor,
    folder: Path,
    *,
    budget: int = 8,
    chunk_rows: int = 1,
    stop: int = -1,
    **options: Any,
) -> tuple[Streamed, Tensor]:
    """A pass over x that dies at the `stop`-th thing it does; its patches are kept beside it."""
    rows, cols = x.shape[-2] // 16, x.shape[-1] // 16
    kept = folder / "kept.pt"
    found = torch.load(kept) if kept.exists() else torch.full((rows * cols, 24), torch.nan, dtype=x.dtype)
    left = stop

    def tick() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            torch.save(found, kept)
            raise Stopped

    def band(first: int, last: int) -> Tensor:
        tick()
        return x[0, :, 16 * first : 16 * last]

    class Kept:
        def write(self, start: int, features: Tensor) -> None:
            tick()
            found[start : start + len(features)] = features

        def flush(self) -> None:
            pass

    def advance(patches: int) -> None:
        tick()

    options = {"identity": "x", "sink": Kept(), "advance": advance, **options}

    class Ticking(StateFile):
        def write(self, *args: Any) -> None:
            super().write(*args)
            tick()

        def flush(self) -> None:
            super().flush()
            tick()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(huge, "StateFile", Ticking)
        streamed = stream(
            model, band, (rows, cols), folder=folder, budget=budget, chunk=chunk_rows * cols, **options
        )
    return streamed, found


@settings(max_examples=12, deadline=None)
@given(
    rows=st.integers(1, 7),
    cols=st.integers(1, 7),
    budget=st.sampled_from([4, 8, 16]),
    chunk_rows=st.integers(1, 8),
    part=st.sampled_from([3, 8, 20]),
)
@torch.no_grad()
def test_equals_the_plain_forward(
    tmp_path_factory: pytest.TempPathFactory, rows: int, cols: int, budget: int, chunk_rows: int, part: int
) -> None:
    x = images(1, 3, 16 * rows, 16 * cols)
    for model, tolerance in ((EXACT, 1e-10), (SINGLE, 1e-5)):
        pixels = x.to(model.patch_embed.weight.dtype)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(huge, "CPU_PART", part)
            folder = tmp_path_factory.mktemp("pass")
            streamed, patches = run(model, pixels, folder, budget=budget, chunk_rows=chunk_rows)
            again, _ = run(model, pixels, folder, budget=budget, chunk_rows=chunk_rows, sink=None)
            assert torch.equal(again.cls, streamed.cls)
        expected = model(pixels, budget)
        close = {"rtol": tolerance, "atol": tolerance}
        torch.testing.assert_close(patches, expected.patches[0], **close)
        torch.testing.assert_close(streamed.cls, expected.cls, **close)
        torch.testing.assert_close(streamed.cores, expected.cores, **close)
        again = read(model, streamed.memory, *cut(pixels, grid_corners((16 * rows, 16 * cols))))
        torch.testing.assert_close(again, expected.patches, **close)


@pytest.mark.parametrize("stop", range(1, 39, 2))
@torch.no_grad()
def test_goes_on_where_it_was_stopped(tmp_path: Path, stop: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does no chunk again that was finished, and half a chunk does no harm."""
    monkeypatch.setattr(huge, "CPU_PART", 4)
    x = images(1, 3, 80, 48)
    expected = EXACT(x, 8)
    with pytest.raises(Stopped):
        run(EXACT, x, tmp_path, chunk_rows=2, stop=stop)
    told: list[int] = []
    streamed, patches = run(EXACT, x, tmp_path, chunk_rows=2, advance=told.append)
    torch.testing.assert_close(patches, expected.patches[0], rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(streamed.cls, expected.cls, rtol=1e-10, atol=1e-10)
    assert sum(told) == 3 * 15
    assert (told[0] > 0) == (stop >= 7)


@torch.no_grad()
def test_another_pass_starts_anew(tmp_path: Path) -> None:
    x = images(1, 3, 80, 48)
    with pytest.raises(Stopped):
        run(EXACT, x, tmp_path, chunk_rows=2, stop=8)
    for change in ({"identity": "y"}, {"budget": 16}, {"chunk_rows": 1}):
        told: list[int] = []
        _, patches = run(EXACT, x + 1, tmp_path, **{"chunk_rows": 2, "advance": told.append, **change})  # type: ignore[arg-type]
        assert told[0] == 0
        expected = EXACT(x + 1, change.get("budget", 8)).patches[0]
        torch.testing.assert_close(patches, expected, rtol=1e-10, atol=1e-10)
        (tmp_path / "cores.safetensors").unlink()
        with pytest.raises(Stopped):
            run(EXACT, x, tmp_path, chunk_rows=2, stop=8)
    told = []
    (tmp_path / "states").unlink()
    run(EXACT, x, tmp_path, chunk_rows=2, advance=told.append)
    assert told[0] == 0


@torch.no_grad()
def test_the_global_feature_alone_runs_no_patch_through_the_last_layer(tmp_path: Path) -> None:
    x = images(1, 3, 48, 48)
    streamed, patches = run(EXACT, x, tmp_path, sink=None)
    assert patches.isnan().all()
    torch.testing.assert_close(streamed.cls, EXACT(x, 8).cls, rtol=1e-10, atol=1e-10)


@torch.no_grad()
def test_states_lie_in_a_file_of_one_slot_more_than_chunks(tmp_path: Path) -> None:
    x = images(1, 3, 80, 48).float()
    with pytest.raises(Stopped):
        run(SINGLE, x, tmp_path, chunk_rows=1, stop=8)
    assert (tmp_path / "states").stat().st_size == (5 + 1) * 3 * 32 * 4
