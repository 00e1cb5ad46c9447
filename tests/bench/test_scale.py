"""Two real ranks are timed against one."""

import pytest

from veca.bench.scale import scale


def test_the_ratio_and_its_arithmetic_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    results = scale(num_steps=2, repeats=1)
    assert 0 < results["two_ranks_over_one"] < 4
    said = capsys.readouterr().out
    assert "MB of gradients per step" in said
    assert "without any cost it would be 2.00" in said
