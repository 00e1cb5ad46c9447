"""A file of any size through a model: equal to the plain forward, within its memory, and resumable."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import veca.huge as command
from veca import Veca, create_model
from veca.data.bands import Bands
from veca.data.views import normalise
from veca.huge import anonymous_memory, needed_memory, parse_bytes, stream_file


@pytest.fixture(scope="module")
def student() -> Veca:
    torch.manual_seed(0)
    return create_model("tiny", width=32, depth=2, num_heads=2, num_cores=16, out_width=24).eval()


@pytest.fixture
def scan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file whose bands come from an array: 75 × 100 pixels, of which 64 × 96 fill patches."""
    pixels = np.random.default_rng(0).integers(0, 255, (75, 100, 3), dtype=np.uint8)
    np.save(tmp_path / "scan.npy", pixels)

    @contextmanager
    def open_array(path: Path, *, max_pixels: int) -> Iterator[Bands]:
        array = np.load(path)
        yield Bands(array.shape[1], array.shape[0], 1000, lambda top, bottom: array[top:bottom])

    monkeypatch.setattr(command, "open_bands", open_array)
    return tmp_path / "scan.npy"


@torch.no_grad()
def test_equals_the_forward_over_what_fills_patches(student: Veca, scan: Path, tmp_path: Path) -> None:
    found = stream_file(student, scan, work=tmp_path / "work", patches=tmp_path / "p.npy", budget=8)
    pixels = torch.from_numpy(np.load(scan)[:64, :96]).permute(2, 0, 1)[None]
    expected = student(normalise(pixels), budget=8)
    torch.testing.assert_close(found.cls, expected.cls, rtol=1e-5, atol=1e-5)
    patches = torch.from_numpy(np.load(tmp_path / "p.npy"))
    torch.testing.assert_close(patches, expected.patches.unflatten(1, (4, 6)), rtol=1e-5, atol=1e-5)
    assert found.memory.grid == (4, 6)


def test_a_second_call_goes_on_and_says_so(
    student: Veca, scan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = tmp_path / "whole.npy"
    stream_file(student, scan, work=tmp_path / "one", patches=whole)
    bars: list[Any] = []
    real = command.progress_bar
    monkeypatch.setattr("veca.model.huge.CPU_PART", 6)
    monkeypatch.setattr(command, "stream", lambda *args, **options: small_chunks(*args, **options))
    monkeypatch.setattr(command, "progress_bar", lambda *args, **o: bars.append(real(*args, **o)) or bars[-1])
    small_chunks = lambda *args, **options: streaming(*args, **{**options, "chunk": 6})  # noqa: E731
    from veca.model.huge import stream as streaming

    write, calls = command._Output.write, 0

    def dies(self: Any, *args: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt
        write(self, *args)

    monkeypatch.setattr(command._Output, "write", dies)
    with pytest.raises(KeyboardInterrupt):
        stream_file(student, scan, work=tmp_path / "two", patches=tmp_path / "p.npy")
    stream_file(student, scan, work=tmp_path / "two", patches=tmp_path / "p.npy")
    assert (bars[1].initial, bars[1].n, bars[1].total) == (24 + 12, 48, 48)
    np.testing.assert_allclose(np.load(tmp_path / "p.npy"), np.load(whole), rtol=1e-5, atol=1e-5)
    (tmp_path / "p.npy").unlink()  # the pass begins anew: it could not write what was lost
    stream_file(student, scan, work=tmp_path / "two", patches=tmp_path / "p.npy")
    assert bars[2].initial == 0
    np.testing.assert_allclose(np.load(tmp_path / "p.npy"), np.load(whole), rtol=1e-5, atol=1e-5)


def test_too_little_memory_and_too_few_pixels_are_refused(student: Veca, scan: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"max_memory must be at least .* [MG]B .*got 10 MB\. Give more"):
        stream_file(student, scan, work=tmp_path / "work", max_memory=10**7)
    np.save(scan, np.zeros((15, 40, 3), np.uint8))
    with pytest.raises(ValueError, match="40×15 pixels, a patch has 16×16"):
        stream_file(student, scan, work=tmp_path / "work")
    assert not (tmp_path / "work").exists()


def test_what_is_needed_bounds_what_is_taken_and_does_not_grow_with_height(
    student: Veca, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if anonymous_memory() is None:
        pytest.skip("the system does not tell how much memory is anonymous")
    needs = []
    for rows in (16, 1600):
        bands = Bands(2048, rows, 1000, lambda top, bottom: np.zeros((bottom - top, 2048, 3), np.uint8))
        monkeypatch.setattr(command, "open_bands", lambda path, bands=bands, **options: nullcontext(bands))
        needs.append(needed_memory(student, bands, (rows // 16, 128)))
        (tmp_path / f"{rows}").touch()
        held = []
        watch = command._Advance.__call__

        def watched(self: Any, patches: int, held: list[int] = held, watch: Any = watch) -> None:
            held.append(anonymous_memory() or 0)
            watch(self, patches)

        monkeypatch.setattr(command._Advance, "__call__", watched)
        stream_file(student, tmp_path / f"{rows}", work=tmp_path / f"work{rows}")
        assert max(held) - held[0] < needs[-1]
        monkeypatch.setattr(command._Advance, "__call__", watch)
    assert needs[0] == needs[1]


@pytest.mark.parametrize(
    ("text", "size"), [("2GB", 2 * 10**9), ("500 mb", 5 * 10**8), ("1.5TB", 15 * 10**11)]
)
def test_sizes_are_read(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["2", "GB", "0GB", "-1GB", "2 GiB"])
def test_other_sizes_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"memory must be a number with MB, GB or TB.*Try 2GB"):
        parse_bytes(text)
