"""Maps against slow, independent computations."""

import numpy as np
import pytest
import torch

from veca import Veca
from veca.utils.maps import core_maps, core_paths, num_interactions, patch_at, pca_colours, similarity_map


def test_colours_are_the_leading_components_of_all_views_together() -> None:
    torch.manual_seed(0)
    first, second = torch.randn(40, 12) * torch.arange(12, 0, -1), torch.randn(24, 12) + 1
    colours = np.concatenate(pca_colours([first, second]))
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
    (straight,), (shuffled,) = pca_colours([patches]), pca_colours([patches[order]])
    np.testing.assert_allclose(shuffled, straight[order.numpy()], atol=1e-5)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_few_or_equal_patches_have_colours_too(count: int) -> None:
    (colours,) = pca_colours([torch.ones(count, 4)])
    assert colours.shape == (count, 3)
    assert np.isfinite(colours).all()


def test_similarity_is_the_cosine() -> None:
    patches = torch.randn(9, 5)
    found = similarity_map(patches, 4)
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


def test_the_patch_under_a_pixel() -> None:
    found = [patch_at(x, y, size=(96, 64), grid=(4, 6)) for x, y in [(0, 0), (95, 0), (16, 17), (200, -3)]]
    assert found == [0, 5, 7, 5]


def test_interactions_are_those_of_the_paper() -> None:
    """512 px: 12.9 % of full attention with 64 cores, 1.57 % with 8."""
    for budget, share in ((64, 0.129), (8, 0.0157)):
        cores, full = num_interactions(1024, budget)
        assert cores / full == pytest.approx(share, abs=5e-4)


def test_a_trace_has_what_the_maps_take(tiny_student: Veca) -> None:
    trace = tiny_student.eval().trace(torch.randn(1, 3, 32, 48), budget=8)
    assert core_maps(trace.contributions[-1, 0]).shape == (8, 6)
    assert core_paths(trace.places[:, 0], size=(48, 32)).shape == (8, 3, 2)
