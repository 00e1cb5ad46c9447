"""The attention benchmark counts the FLOPs of the paper, and times what it says."""

import pytest

from veca.bench.attention import attention, dinov3_path, veca_path
from veca.model.sizes import resolve_size


@pytest.mark.parametrize(
    ("name", "ours", "theirs"), [("small", 5.72, 30.67), ("base", 21.25, 71.02)], ids=["small", "base"]
)
def test_flops_are_those_of_the_paper(name: str, ours: float, theirs: float) -> None:
    size = resolve_size(name, {})
    assert round(veca_path(size, 1024, budget=64).flops / 1e9, 2) == ours
    assert round(dinov3_path(size, 1024).flops / 1e9, 2) == theirs


def test_every_size_resolution_budget_and_batch_gets_its_ratio(capsys: pytest.CaptureFixture[str]) -> None:
    results = attention(sizes=["small"], resolutions=[32, 64], budgets=[8, 64], batches=[1, 2], repeats=2)
    keys = {key.rpartition("/")[0] for key in results}
    assert keys == {
        f"small/{place}/b{budget}"
        for place in ("r32/batch1", "r64/batch1", "r32/batch2")
        for budget in (8, 64)
    }
    assert all(value > 0 for name, value in results.items() if not name.endswith("_spread"))
    assert "GFLOPs" in capsys.readouterr().out
