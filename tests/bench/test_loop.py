"""Both loops do the same work, and the benchmark reports their ratio."""

import copy
import os
import re

import pytest

from veca.bench import loop

pytestmark = pytest.mark.filterwarnings(
    "ignore:The number of training batches .* is smaller than the logging interval",
)
TOY = {"width": 32, "depth": 2, "num_heads": 2, "num_cores": 64}


def test_both_loops_end_with_the_same_weights() -> None:
    bare = loop.make_model(size_overrides=TOY)
    bare.student.augment_rope = False  # the bare loop does not seed its draws
    lightning, start = copy.deepcopy(bare), copy.deepcopy(bare)
    batches = loop.make_batches(num=3)
    for model, fit in ((bare, loop.fit_bare), (lightning, loop.fit_lightning)):
        assert min(fit(model, batches, num_steps=4)) > 0
    first, weights = start.student.state_dict(), lightning.student.state_dict()
    for name, tensor in bare.student.state_dict().items():
        # Not bit for bit: a CPU sums in another order where memory is aligned in another way.
        difference, change = (tensor - weights[name]).norm(), (tensor - first[name]).norm()
        assert difference <= 1e-3 * change, f"{name}: {difference} of {change}"
        assert change > 0, name


def test_the_ratio_is_reported(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    make = loop.make_model
    monkeypatch.setattr(loop, "make_model", lambda: make(size_overrides=TOY))
    results = loop.run(num_steps=2, repeats=2)
    assert all(results[f"{kind}_ratio"] > 0 for kind in ("cpu", "wall"))
    assert 0 < results["bare_cpu_seconds"] < 10
    assert re.search(r"^cpu_ratio .* ± \d+%  goal ≤ 1\.03: ", capsys.readouterr().out, re.MULTILINE)


def test_the_thread_count_is_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    with loop.one_thread():
        assert os.environ["OMP_NUM_THREADS"] == "1"
    assert "OMP_NUM_THREADS" not in os.environ
