"""How ratios are told and judged."""

import pytest

from veca.bench.goals import GOALS, Goal, said


def test_a_line_has_the_spread_and_the_verdict(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(GOALS, "fake", (Goal("speed", 1.5), Goal("share", 0.4, at_most=True)))
    results = {"speed": 2.0, "speed_spread": 0.04, "share": 0.5, "other": 1234.4}
    assert said("fake", results) is results
    speed, share, other = (line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert speed == ["speed", "2 ± 4%  goal ≥ 1.5: reached"]
    assert share == ["share", "0.5  goal ≤ 0.4: MISSED"]
    assert other == ["other", "1234"]
