"""Cases become numbers, numbers are judged, and a loss is found."""

import inspect
import json
import os
import sys
import types
from importlib import import_module
from pathlib import Path

import pytest

from veca.bench import harness
from veca.bench.harness import (
    MAX_LOSS,
    MODULES,
    Case,
    Goal,
    Ratio,
    Steps,
    benchmark,
    check,
    losses,
    one_thread,
    run_all,
)
from veca.bench.model import attention
from veca.cli.args import VerbParser

GOALS = {"speed": Goal(1.5), "share": Goal(0.4, at_most=True)}


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, float]:
    """One benchmark whose numbers can be changed; a round of it takes no time."""
    ratios = {"speed": 2.0, "share": 0.5}
    module = types.ModuleType("fake_bench")

    @benchmark
    def fake() -> Steps:
        yield Case(
            candidates={"all": lambda: {"one": 1.0, **ratios}},
            ratios={name: Ratio(name, "one", goal) for name, goal in GOALS.items()},
            repeats=2,
            warmup=0,
            own_clock=True,
        )
        yield {"other": 1234.4}

    module.fake = fake  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "fake_bench", module)
    monkeypatch.setattr(harness, "MODULES", {"fake": "fake_bench"})
    monkeypatch.chdir(tmp_path)  # where bench.json is written
    return ratios


RESULTS = {"speed": 2.0, "speed_spread": 0.0, "share": 0.5, "share_spread": 0.0, "other": 1234.4}


def test_a_line_has_the_spread_and_the_verdict(
    fake: dict[str, float], capsys: pytest.CaptureFixture[str]
) -> None:
    run_all()
    told = capsys.readouterr().out.split("\n\n")[0].splitlines()[1:]
    speed, share, other = (line.split(maxsplit=1) for line in told)
    assert speed == ["speed", "2 ± 0%  goal ≥ 1.5: reached"]
    assert share == ["share", "0.5 ± 0%  goal ≤ 0.4: MISSED"]
    assert other == ["other", "1234"]


def test_candidates_have_numbers_of_their_own() -> None:
    case = Case(
        candidates={"a": lambda: {"a": 2.0}, "b": lambda: {"b": 4.0}},
        ratios={"half": Ratio("b", "a", scale=0.5)},
        amounts={"a": 10.0},
        unit="{}_per_s",
        repeats=1,
        own_clock=True,
    )
    assert case.measure() == {"half": 1.0, "half_spread": 0.0, "a_per_s": 5.0}
    seconds = Case(**{**vars(case), "unit": "{}_s_per_epoch"}).measure()
    assert seconds["a_s_per_epoch"] == 0.2


def test_lists_may_have_commas() -> None:
    parser = VerbParser(attention, name="veca bench attention", example="")
    given = parser.parse(["--sizes", "small,base", "--budgets", "8,64"])
    assert (given["sizes"], given["budgets"]) == (["small", "base"], [8, 64])
    for wrong in ("8,,64", "a"):
        with pytest.raises(Exception, match="budgets"):
            parser.parse(["--budgets", wrong])


def test_the_thread_count_is_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    with one_thread():
        assert os.environ["OMP_NUM_THREADS"] == "1"
    assert "OMP_NUM_THREADS" not in os.environ


def test_goals_are_judged_and_all_ratios_kept(
    fake: dict[str, float], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_all(out=tmp_path / "bench.json")
    assert json.loads((tmp_path / "bench.json").read_text()) == {"fake": RESULTS}
    said = capsys.readouterr().out
    assert "| fake | speed | 2 ± 0% | ≥ 1.5 | reached |" in said
    assert "| fake | share | 0.5 ± 0% | ≤ 0.4 | MISSED |" in said


def test_a_loss_of_more_than_15_percent_fails(fake: dict[str, float], tmp_path: Path) -> None:
    kept = tmp_path / "kept.json"
    run_all(out=kept)
    fake |= {"speed": 1.75, "share": 0.57}
    check(baseline=kept)
    fake |= {"speed": 1.65, "share": 0.6}
    with pytest.raises(ValueError, match=r"speed: 1\.65, was 2") as error:
        check(baseline=kept)
    assert "share: 0.6, was 0.5" in str(error.value)
    assert losses({"fake": sys.modules["fake_bench"].fake()}, {}) == {}


def test_what_is_worse_only_once_is_noise(
    fake: dict[str, float], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "kept.json"
    run_all(out=kept)
    run = sys.modules["fake_bench"].fake
    rounds = iter([{"speed": 1.0, "share": 0.5}, {"speed": 2.0, "share": 9.0}])

    def changing() -> dict[str, float]:
        fake.update(next(rounds))
        result: dict[str, float] = run()
        return result

    sys.modules["fake_bench"].fake = changing  # type: ignore[attr-defined]
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
    assert json.loads(out.read_text()) == {"fake": RESULTS, "other": {"x": 2.0}}


def test_what_is_measured_is_kept_when_the_next_one_fails(
    fake: dict[str, float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(harness, "MODULES", {"fake": "fake_bench", "broken": "fake_bench"})
    with pytest.raises(AttributeError):
        run_all(out=tmp_path / "bench.json")
    assert json.loads((tmp_path / "bench.json").read_text()) == {"fake": RESULTS}


def test_twice_next_to_nothing_is_no_loss() -> None:
    goal = Goal(0.02, at_most=True)
    assert goal.loss(0.0006, kept=0.0003) < MAX_LOSS < goal.loss(0.006, kept=0.0003)


def test_a_missing_baseline_is_named_before_the_work(fake: dict[str, float], tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="veca bench all --out"):
        check(baseline=tmp_path / "none.json")


def test_an_unknown_name_is_refused(fake: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="no benchmark nope"):
        run_all(only=["nope"])


def test_every_benchmark_can_be_imported_and_has_flags() -> None:
    for name, module in MODULES.items():
        assert "repeats" in inspect.signature(getattr(import_module(module), name)).parameters


def test_names_with_commas_are_run(fake: dict[str, float], tmp_path: Path) -> None:
    from veca.cli.main import main

    main(["bench", "all", "--only", "fake", "--out", "x.json"])
    assert json.loads((tmp_path / "x.json").read_text()) == {"fake": RESULTS}
    with pytest.raises(SystemExit):
        main(["bench", "all", "--only", "fake,nope"])
