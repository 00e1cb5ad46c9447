"""The benchmark runs and returns what it promises; its numbers are for a quiet machine."""

from veca.bench.probe import run


def test_small() -> None:
    found = run(num_features=300, width=8, num_classes=3, repeats=1)
    assert all(value > 0 for name, value in found.items() if not name.endswith("_spread"))
    assert set(found) == {
        "together_vs_one_by_one",
        "together_vs_one_by_one_spread",
        "together_s_per_epoch",
        "one_by_one_s_per_epoch",
        "all_50_epochs_s",
    }
