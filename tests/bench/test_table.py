"""The table of benchmarks names ratios that exist, and a loss is found."""

import json
import sys
import types
from pathlib import Path

import pytest

from veca.bench import table
from veca.bench.goals import GOALS, Goal
from veca.bench.table import BENCHMARKS, MAX_LOSS, check, losses, run_all


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, float]:
    """One benchmark that takes no time; its ratios can be changed."""
    ratios = {"speed": 2.0, "speed_spread": 0.04, "share": 0.5, "other": 1.0}
    module = types.ModuleType("fake_bench")
    module.run = lambda: dict(ratios)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "fake_bench", module)
    goals = (Goal("speed", 1.5), Goal("share", 0.4, at_most=True))
    monkeypatch.setattr(table, "BENCHMARKS", {"fake": ("fake_bench", "run")})
    monkeypatch.setitem(GOALS, "fake", goals)
    monkeypatch.chdir(tmp_path)  # where bench.json is written
    return ratios


def test_goals_are_judged_and_all_ratios_kept(
    fake: dict[str, float], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_all(out=tmp_path / "bench.json")
    assert json.loads((tmp_path / "bench.json").read_text()) == {"fake": fake}
    said = capsys.readouterr().out
    assert "| fake | speed | 2 ± 4% | ≥ 1.5 | reached |" in said
    assert "| fake | share | 0.5 | ≤ 0.4 | MISSED |" in said


def test_a_loss_of_more_than_15_percent_fails(fake: dict[str, float], tmp_path: Path) -> None:
    kept = tmp_path / "kept.json"
    run_all(out=kept)
    fake |= {"speed": 1.75, "share": 0.57, "other": 0.1}
    check(baseline=kept)
    fake |= {"speed": 1.65, "share": 0.6}
    with pytest.raises(ValueError, match=r"speed: 1\.65, was 2") as error:
        check(baseline=kept)
    assert "share: 0.6, was 0.5" in str(error.value)
    assert losses({"fake": {}}, {"fake": fake}) == []


def test_what_is_worse_only_once_is_noise(
    fake: dict[str, float], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "kept.json"
    run_all(out=kept)
    rounds = iter([fake | {"speed": 1.0}, fake | {"share": 9.0}])
    sys.modules["fake_bench"].run = lambda: next(rounds)  # type: ignore[attr-defined]
    check(baseline=kept)
    assert "measured again:\n- fake speed: 1, was 2\n" in capsys.readouterr().out
    assert next(rounds, None) is None
    assert json.loads((tmp_path / "bench.json").read_text())["fake"]["share"] == 9.0


def test_a_check_does_not_overwrite_what_it_compares_with(fake: dict[str, float], tmp_path: Path) -> None:
    kept = tmp_path / "bench.json"
    run_all(out=kept)
    with pytest.raises(ValueError, match="is the baseline itself"):
        check(baseline=kept)


def test_a_part_leaves_the_rest_of_the_file(fake: dict[str, float], tmp_path: Path) -> None:
    out = tmp_path / "bench.json"
    out.write_text(json.dumps({"fake": {"speed": 1.0}, "other": {"x": 2.0}}))
    run_all(out=out, only=["fake"])
    assert json.loads(out.read_text()) == {"fake": fake, "other": {"x": 2.0}}


def test_what_is_measured_is_kept_when_the_next_one_fails(
    fake: dict[str, float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = ("fake_bench", "no_such_function")
    monkeypatch.setattr(table, "BENCHMARKS", table.BENCHMARKS | {"broken": broken})
    with pytest.raises(AttributeError):
        run_all(out=tmp_path / "bench.json")
    assert json.loads((tmp_path / "bench.json").read_text()) == {"fake": fake}


def test_twice_next_to_nothing_is_no_loss() -> None:
    goal = Goal("share", 0.02, at_most=True)
    assert goal.loss(0.0006, kept=0.0003) < MAX_LOSS < goal.loss(0.006, kept=0.0003)


def test_a_missing_baseline_is_named_before_the_work(fake: dict[str, float], tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="veca bench all --out"):
        check(baseline=tmp_path / "none.json")


def test_an_unknown_name_is_refused(fake: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="no benchmark nope"):
        run_all(only=["nope"])


def test_every_benchmark_can_be_imported() -> None:
    from importlib import import_module

    for module, function in BENCHMARKS.values():
        assert callable(getattr(import_module(module), function))
    assert list(GOALS) == list(BENCHMARKS)
