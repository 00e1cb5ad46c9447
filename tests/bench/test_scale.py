"""Two real ranks are timed against one."""

import pytest

from veca.bench.scale import scale


def test_the_ratio_and_its_arithmetic_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    results = scale(num_steps=2, repeats=1)
    assert 0 < results["two_ranks_over_one"] < 4
    said = capsys.readouterr().out
    assert "two_ranks_over_one" in said
    assert results["gradient_mb_per_step"] > 0
    assert results["normuon_gflops_each_of_two"] < results["normuon_gflops_one_rank"]
