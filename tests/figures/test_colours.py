"""Colours that keep neighbours together, for readers with any colour vision."""

from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from veca.figures import colours
from veca.figures.colours import choose_method, joint_colours, opponent_rgb

# Machado, Oliveira and Fernandes (2009): linear sRGB as a deuteranope sees it.
DEUTERANOPE = np.array(
    [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
)


def clusters(count: int = 40) -> Tensor:
    """Three bundles of directions, one after the other."""
    generator = torch.Generator().manual_seed(0)
    return torch.cat([torch.eye(12)[k] + 0.05 * torch.rand(count, 12, generator=generator) for k in range(3)])


def is_separated(colours: np.ndarray, count: int = 40) -> bool:
    """Whether any two colours of one bundle are closer than two of different bundles, on the whole."""
    groups = colours.reshape(3, count, 3)
    inside = np.linalg.norm(groups - groups.mean(1, keepdims=True), axis=-1).mean()
    centres = groups.mean(1)
    between = min(np.linalg.norm(centres[a] - centres[b]) for a, b in ((0, 1), (0, 2), (1, 2)))
    return bool(between > 3 * inside)


def test_one_embedding_serves_all_maps() -> None:
    rows = clusters()
    parts = joint_colours([rows[:50], rows[50:]], method="pca")
    assert [part.shape for part in parts] == [(50, 3), (70, 3)]
    together = np.concatenate(parts)
    np.testing.assert_array_equal(together, joint_colours([rows], method="pca")[0])
    assert is_separated(together)
    assert together.min() >= 0
    assert together.max() <= 1


def test_only_directions_count() -> None:
    rows, lengths = clusters(), torch.linspace(0.1, 9, 120)[:, None]
    (one,), (other,) = joint_colours([rows], method="pca"), joint_colours([rows * lengths], method="pca")
    np.testing.assert_allclose(one, other, atol=1e-4)


def test_umap_keeps_neighbours() -> None:
    pytest.importorskip("umap", reason="umap-learn is not installed")
    assert is_separated(joint_colours([clusters()], method="umap", seed=1)[0])


class Halves:
    """Stands in for UMAP, whose compiler takes its time: half of what it sees, in three dimensions."""

    made: ClassVar[list[dict[str, Any]]] = []

    def __init__(self, **options: Any) -> None:
        self.made.append(options)

    def fit_transform(self, rows: np.ndarray) -> np.ndarray:
        self.num_fitted = len(rows)
        return rows[:, :3] / 2

    def transform(self, rows: np.ndarray) -> np.ndarray:
        assert self.num_fitted == 90
        assert len(rows) == 30
        return rows[:, :3] / 2


def test_umap_learns_from_some_and_places_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(colours, "MAX_FITTED", 90)
    monkeypatch.setattr(colours, "import_module", lambda name: SimpleNamespace(UMAP=Halves))
    rows = torch.rand(120, 5)
    np.testing.assert_array_equal(colours._umap(rows, seed=3).numpy(), rows[:, :3].numpy() / 2)
    asked = {"n_components": 3, "n_neighbors": 15, "min_dist": 0.1, "metric": "cosine", "random_state": 3}
    assert Halves.made == [{**asked, "n_jobs": 1}]


def test_without_umap_it_is_pca(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(colours, "find_spec", lambda name: None)
    monkeypatch.setattr("veca.utils.extras.find_spec", lambda name: None)
    assert choose_method(None) == "pca"
    assert choose_method("pca") == "pca"
    with pytest.raises(ValueError, match=r"veca\[figures\]"):
        choose_method("umap")


@pytest.mark.parametrize("axis", [0, 1])
def test_two_dimensions_survive_red_green_blindness(axis: int) -> None:
    """A step along either leading dimension is as visible to a deuteranope as half of it is to others."""
    scores = np.full((3, 3), 0.5, dtype=np.float32)
    scores[:, axis] = (0.2, 0.5, 0.8)
    linear = opponent_rgb(scores).astype(np.float64) ** 2.2
    seen = np.clip(linear @ DEUTERANOPE.T, 0, 1) ** (1 / 2.2)
    others = linear ** (1 / 2.2)
    steps, full = (np.linalg.norm(np.diff(rgb, axis=0), axis=1) for rgb in (seen, others))
    assert (steps > 0.5 * full).all()
    assert (steps > 0.1).all()


def test_lightness_follows_the_first_dimension() -> None:
    scores = np.stack((np.linspace(0, 1, 9), np.full(9, 0.5), np.full(9, 0.5)), axis=1).astype(np.float32)
    luma = opponent_rgb(scores) ** 2.2 @ (0.2126, 0.7152, 0.0722)
    assert (np.diff(luma) > 0.02).all()
