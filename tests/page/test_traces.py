import numpy as np
import pytest
import torch
from PIL import Image

from veca import Veca, preprocess
from veca.page.pictures import GAP, SHOWN, TILE, Choice, core_at, cost_table, draw_sides
from veca.page.traces import Visit, cost, landscape, sample_images, trace_view


@pytest.fixture
def visit() -> Visit:
    pixels = np.random.default_rng(0).integers(0, 255, (50, 70, 3), dtype=np.uint8)
    return Visit(Image.fromarray(pixels))


def test_a_trace_is_the_models_own_output(tiny_student: Veca, visit: Visit) -> None:
    tiny_student.eval()
    trace = visit.trace(tiny_student, resolution=64, budget=8)
    with torch.no_grad():
        features = tiny_student(preprocess(visit.image, resolution=64), budget=8)
    assert torch.allclose(trace.patches, features.patches[0], atol=1e-6)
    assert trace.grid == (4, 4)
    assert trace.places.shape == (3, 8, 2)
    assert trace.contributions.shape == (3, 8, 16)
    assert visit.trace(tiny_student, resolution=64, budget=8) is trace
    assert trace.milliseconds > 0


def test_cost_follows_the_paper() -> None:
    from veca.model import SIZES

    small = cost(SIZES["small"], resolution=512, budget=64)
    assert small.interactions / small.full_interactions == pytest.approx(0.129, abs=5e-4)
    few = cost(SIZES["small"], resolution=512, budget=8)
    assert few.interactions / few.full_interactions == pytest.approx(0.0157, abs=5e-4)
    assert small.flops > few.flops


def test_both_sides_are_drawn_for_any_choice(tiny_student: Veca, visit: Visit) -> None:
    tiny_student.eval()
    traces = [visit.trace(tiny_student, resolution=64, budget=budget) for budget in (4, 16)]
    for choice in (Choice(), Choice(x=1.0, y=0.0, core=15, layer=2)):  # core 15 is not active at budget 4
        sides = draw_sides(visit.view(64), traces, choice, num_cores=16)
        assert len(sides) == 2
        for side in sides:
            assert side.colours.size == side.similarity.size == side.path.size == SHOWN
            assert side.cores.size == (8 * (TILE[0] + GAP) - GAP, 2 * (TILE[1] + GAP) - GAP)


def test_the_core_under_a_click() -> None:
    step = TILE[0] + GAP
    assert core_at(1, 1, num_cores=8) == 0
    assert core_at(7 * step + 1, step + 1, num_cores=64) == 15
    assert core_at(1, step + 1, num_cores=8) is None


def test_the_table_has_all_numbers(tiny_student: Veca, visit: Visit) -> None:
    trace = trace_view(tiny_student.eval(), visit.view(64), budget=4)
    text = cost_table(cost(tiny_student.size, resolution=64, budget=4), trace, budget=4)
    for number in ("with 4 cores", "56.2%", ">144<", ">256<", "GFLOP", "ms"):
        assert number in text


def test_samples_are_pictures() -> None:
    assert "landscape" in sample_images()
    assert landscape().size == (512, 512)
