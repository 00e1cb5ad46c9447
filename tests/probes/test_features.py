"""The feature matrix: right rows in the right order, whatever the batch."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from veca import Veca, preprocess
from veca.probes import features as features_module
from veca.probes.backbones import VecaAtBudget
from veca.probes.features import global_features
from veca.probes.folders import read_folders


class Counter:
    def __init__(self) -> None:
        self.n = 0

    def update(self, n: int) -> None:
        self.n += n


def test_rows_equal_single_images(
    tiny_student: Veca, make_folders: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(features_module, "MAX_BATCH", 4)  # 9 images: two batches and a rest
    images, progress = read_folders(make_folders(train=3, val=1)).train, Counter()
    model = tiny_student.eval()
    found = global_features(VecaAtBudget(model, 8, 32), images, progress=progress)
    alone = [model(preprocess(path, resolution=32), budget=8).cls for path in images.paths]
    torch.testing.assert_close(found, torch.cat(alone).detach(), rtol=1e-4, atol=1e-5)
    assert progress.n == 9


def test_batches_shrink_with_resolution(make_folders: Callable[..., Path]) -> None:
    seen: list[tuple[int, ...]] = []

    class Recorder:
        resolution = 2048

        def __call__(self, images: Tensor) -> Tensor:
            seen.append(tuple(images.shape))
            return torch.ones(len(images), 2)

    global_features(Recorder(), read_folders(make_folders(train=1, val=1)).train, progress=Counter())
    assert seen == [(1, 3, 2048, 2048)] * 3


def test_features_that_are_not_finite_are_refused(make_folders: Callable[..., Path]) -> None:
    class Diverged:
        resolution = 32

        def __call__(self, images: Tensor) -> Tensor:
            return torch.full((len(images), 2), torch.nan)

        def __repr__(self) -> str:
            return "diverged"

    images = read_folders(make_folders(train=1, val=1)).train
    with pytest.raises(ValueError, match="diverged gives features that are not finite"):
        global_features(Diverged(), images, progress=Counter())
