"""Both loops do the same work, and every benchmark of training reports its ratios."""

import copy
import re

import pytest

from veca.bench import training

pytestmark = pytest.mark.filterwarnings(
    "ignore:The number of training batches .* is smaller than the logging interval",
)
TOY = {"width": 32, "depth": 2, "num_heads": 2, "num_cores": 64}


def test_both_loops_end_with_the_same_weights() -> None:
    bare = training.make_model(size_overrides=TOY)
    bare.student.augment_rope = False  # the bare loop does not seed its draws
    lightning, start = copy.deepcopy(bare), copy.deepcopy(bare)
    batches = training.make_batches(num=3)
    for model, fit in ((bare, training.fit_bare), (lightning, training.fit_lightning)):
        assert min(fit(model, batches, num_steps=4)) > 0
    first, weights = start.student.state_dict(), lightning.student.state_dict()
    for name, tensor in bare.student.state_dict().items():
        # Not bit for bit: a CPU sums in another order where memory is aligned in another way.
        difference, change = (tensor - weights[name]).norm(), (tensor - first[name]).norm()
        assert difference <= 1e-3 * change, f"{name}: {difference} of {change}"
        assert change > 0, name


def test_the_ratio_is_reported(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    make = training.make_model
    monkeypatch.setattr(training, "make_model", lambda: make(size_overrides=TOY))
    results = training.loop(num_steps=2, repeats=2)
    assert all(results[f"{kind}_ratio"] > 0 for kind in ("cpu", "wall"))
    assert 0 < results["bare_cpu_seconds"] < 10
    assert re.search(r"^cpu_ratio .* ± \d+%  goal ≤ 1\.03: ", capsys.readouterr().out, re.MULTILINE)


def test_a_cache_is_measured() -> None:
    results = training.cache(size="tiny", num_images=32, num_steps=1, repeats=1)
    assert results["cached_speedup"] > 0
    assert 0 < results["reading_share"] < 10
    assert 0 < results["int8_read_share"] < 10


def test_the_arithmetic_by_hand() -> None:
    """Small at 256 px: products of 24·D² FLOPs per token and layer, and attention; a step is three passes."""
    width, depth, patches = 384, 12, 256

    def layers(tokens: int, scores: int) -> int:
        return depth * (24 * width**2 * tokens + 4 * width * scores)

    def student(cores: int) -> int:
        return layers(patches + cores, cores * (patches + cores) + patches * cores)

    weights = {8: 1, 16: 1, 24: 2, 32: 2, 40: 3, 48: 3, 56: 4, 64: 4}
    step = 3 * sum(weight * student(cores) for cores, weight in weights.items()) / 20
    expected = 1 + layers(patches + 5, (patches + 5) ** 2) / step
    assert training.flop_speedup("small", batch_size=10**9) == pytest.approx(expected, rel=0.005)
    assert training.flop_speedup("small", batch_size=16) < 0.96 * expected


def test_a_probe_is_measured() -> None:
    found = training.probe(num_features=300, width=8, num_classes=3, repeats=1)
    assert all(value > 0 for name, value in found.items() if not name.endswith("_spread"))
    assert set(found) == {
        "together_vs_one_by_one",
        "together_vs_one_by_one_spread",
        "together_s_per_epoch",
        "one_by_one_s_per_epoch",
        "all_50_epochs_s",
    }


def test_two_real_ranks_are_timed_against_one(capsys: pytest.CaptureFixture[str]) -> None:
    results = training.scale(num_steps=2, repeats=1)
    assert 0 < results["two_ranks_over_one"] < 4
    said = capsys.readouterr().out
    assert "two_ranks_over_one" in said
    assert results["gradient_mb_per_step"] > 0
    assert results["normuon_gflops_each_of_two"] < results["normuon_gflops_one_rank"]
