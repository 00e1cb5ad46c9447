"""Class folders for probes, and fakes in place of models and data."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.probes.fakes import FakeModel, Install, noise, planted
from veca.probes.datasets.splits import Dataset

COLOURS = {"blue": (20, 40, 200), "green": (30, 180, 40), "red": (210, 30, 20)}


def write_image(
    path: Path, colour: tuple[int, int, int], *, seed: int, size: tuple[int, int] = (40, 32)
) -> None:
    """A noisy picture of one colour."""
    noise = np.random.default_rng(seed).integers(-15, 16, (size[1], size[0], 3))
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray((np.array(colour) + noise).clip(0, 255).astype(np.uint8)).save(path)


@pytest.fixture
def make_folders(tmp_path: Path) -> Callable[..., Path]:
    """`make_folders(train=6, val=3)`: classes that differ in colour, with these many images of each."""

    def make(**counts: int) -> Path:
        for number, (split, count) in enumerate(counts.items()):
            for label, (name, colour) in enumerate(COLOURS.items()):
                for i in range(count):
                    path = tmp_path / "data" / split / name / f"{i}.png"
                    write_image(path, colour, seed=1000 * number + 100 * label + i)
        return tmp_path / "data"

    return make


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    """`install({"data": dataset}, patch_size=8)`: models planted, noise and pixels, and these datasets."""

    def put(datasets: dict[str, Dataset], *, patch_size: int = 8) -> dict[str, FakeModel]:
        models = {
            "planted": FakeModel("planted", planted, patch_size, (4, 8)),
            "noise": FakeModel("noise", noise, patch_size),
            "pixels": FakeModel("pixels", lambda pixels: pixels / 255, patch_size),
        }

        def open_model(spec: str, *, seed: int | None = None, allow_remote_code: bool = False) -> FakeModel:
            if seed is None:
                return models[spec]
            return FakeModel(f"random{seed}", noise, patch_size, models[spec].budgets)

        for module in ("sweep", "classify"):
            monkeypatch.setattr(f"veca.probes.{module}.open_dataset", lambda spec, **_: datasets[spec])
        monkeypatch.setattr("veca.probes.sweep.open_model", open_model)
        return models

    return put
