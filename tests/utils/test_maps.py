"""Maps against slow, independent computations."""

from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from veca import Veca
from veca.utils import maps
from veca.utils.maps import (
    as_pixels,
    choose_method,
    core_maps,
    core_paths,
    cosine_map,
    joint_colours,
    opponent_rgb,
    patch_at,
    principal_scores,
    stretch,
)


def test_colours_are_the_leading_components_of_all_views_together() -> None:
    torch.manual_seed(0)
    first, second = torch.randn(40, 12) * torch.arange(12, 0, -1), torch.randn(24, 12) + 1
    colours = stretch(principal_scores(torch.cat([first, second]))).numpy()
    assert colours.shape == (64, 3)
    assert colours.min() == 0
    assert colours.max() == 1
    everything = np.concatenate([first, second]).astype(np.float64)
    values, vectors = np.linalg.eigh(np.cov(everything.T))
    for channel, component in enumerate(vectors[:, np.argsort(values)[::-1][:3]].T):
        scores = (everything - everything.mean(0)) @ component
        inside = (colours[:, channel] > 0) & (colours[:, channel] < 1)
        assert inside.mean() > 0.9
        correlation = np.corrcoef(scores[inside], colours[inside, channel])[0, 1]
        assert abs(correlation) > 1 - 1e-6


def test_colours_do_not_depend_on_the_order_of_patches() -> None:
    """Nor on the sign an eigensolver happens to give: each patch keeps its colour."""
    patches = torch.randn(30, 8, generator=torch.Generator().manual_seed(1))
    order = torch.randperm(30, generator=torch.Generator().manual_seed(2))
    (straight,), (shuffled,) = (joint_colours([rows], method="pca") for rows in (patches, patches[order]))
    np.testing.assert_allclose(shuffled, straight[order.numpy()], atol=1e-5)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_few_or_equal_patches_have_colours_too(count: int) -> None:
    (colours,) = joint_colours([torch.ones(count, 4)], method="pca")
    assert colours.shape == (count, 3)
    assert np.isfinite(colours).all()


def test_similarity_is_the_cosine() -> None:
    patches = torch.randn(9, 5)
    found = cosine_map(patches, patches[4])
    for other in range(9):
        a, b = patches[4].double().numpy(), patches[other].double().numpy()
        assert found[other] == pytest.approx(a @ b / np.sqrt((a @ a) * (b @ b)), abs=1e-6)


def test_each_core_has_its_own_scale() -> None:
    maps = core_maps(torch.tensor([[0.0, 2.0, 1.0], [0.01, 0.0, 0.0], [0.0, 0.0, 0.0]]))
    np.testing.assert_array_equal(maps, [[0, 1, 0.5], [1, 0, 0], [0, 0, 0]])


def test_paths_are_in_pixels_x_first() -> None:
    places = torch.tensor([[[-1.0, -1.0], [0.0, 0.0]], [[1.0, 1.0], [0.5, -0.5]]])  # (L, C, 2)
    paths = core_paths(places, size=(200, 100))
    np.testing.assert_allclose(paths, [[[0, 0], [200, 100]], [[100, 50], [150, 25]]])


def test_every_patch_has_its_colour() -> None:
    colours = np.eye(3, dtype=np.float32)[[0, 1, 2, 0, 1, 2]]
    assert as_pixels(colours, (2, 3)).reshape(6, 3).tolist() == (255 * colours).tolist()


def test_the_patch_under_a_pixel() -> None:
    found = [patch_at(x, y, size=(96, 64), grid=(4, 6)) for x, y in [(0, 0), (95, 0), (16, 17), (200, -3)]]
    assert found == [0, 5, 7, 5]


def test_a_trace_has_what_the_maps_take(tiny_student: Veca) -> None:
    trace = tiny_student.eval().trace(torch.randn(1, 3, 32, 48), budget=8)
    assert core_maps(trace.contributions[-1, 0]).shape == (8, 6)
    assert core_paths(trace.places[:, 0], size=(48, 32)).shape == (8, 3, 2)


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
    monkeypatch.setattr(maps, "MAX_FITTED", 90)
    monkeypatch.setattr(maps, "import_module", lambda name: SimpleNamespace(UMAP=Halves))
    rows = torch.rand(120, 5)
    np.testing.assert_array_equal(maps._umap(rows, seed=3).numpy(), rows[:, :3].numpy() / 2)
    asked = {"n_components": 3, "n_neighbors": 15, "min_dist": 0.1, "metric": "cosine", "random_state": 3}
    assert Halves.made == [{**asked, "n_jobs": 1}]


def test_without_umap_it_is_pca(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maps, "find_spec", lambda name: None)
    monkeypatch.setattr("veca.utils.imports.find_spec", lambda name: None)
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
