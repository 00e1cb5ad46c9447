"""The loader benchmark runs, and its bounds hold by a wide margin."""

import pytest

from veca.bench.loader import run


@pytest.mark.timeout(120)
def test_streaming_costs_little() -> None:
    result = run(num_images=64, repeats=1)
    assert result["resume_share"] < 0.02
    assert result["read_share"] < 0.5  # about 0.02 on an idle machine
    assert result["loader_share_0"] > 0.2  # about 0.9
    assert {"workers_1", "workers_2", "render_per_s", "loader_2_per_s"} <= set(result)
