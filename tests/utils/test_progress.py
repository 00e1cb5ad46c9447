import io
import sys
import time
from typing import Any

import pytest

from veca.utils.progress import RECENT, TimeLeft, progress_bar


def test_a_slow_start_is_forgotten() -> None:
    left = TimeLeft(step=0, now=0.0)
    assert left.seconds(step=0, total=1000, now=50.0) is None
    assert left.seconds(step=10, total=1000, now=600.0) == pytest.approx(60 * 990)  # a minute a step
    for step in range(20, 400, 10):  # then a second a step
        now = 600.0 + step - 10
        shown = left.seconds(step=step, total=1000, now=now)
        if now > 600 + RECENT + 10:
            assert shown == pytest.approx(1000 - step)


def test_a_slower_rest_is_seen() -> None:
    left = TimeLeft(step=100, now=0.0)
    for step in range(200, 400, 10):
        left.seconds(step=step, total=1000, now=float(step - 100))
    assert left.seconds(step=400, total=1000, now=1000.0) == pytest.approx(600 * 71, rel=0.2)


def test_validation_counts_by_its_share() -> None:
    left = TimeLeft(step=0, now=0.0)
    assert left.seconds(step=100, total=200, now=100.0) == pytest.approx(100)
    left.pause(50.0)
    # 100 steps in 150 seconds, a third of it validation, which comes again.
    assert left.seconds(step=101, total=201, now=151.0) == pytest.approx(100 * (1 + 50 / 101))


def test_without_new_steps_the_last_rate_stands() -> None:
    left = TimeLeft(step=0, now=0.0)
    for now in (10.0, 1000.0):
        assert left.seconds(step=10, total=20, now=now) == pytest.approx(10)


@pytest.mark.parametrize(
    ("terminal", "seconds", "lines"), [(True, 0.5, 15), (False, 1.0, 3), (False, 15.0, 12)]
)
def test_a_bar_moves_every_few_seconds_and_not_too_often(
    terminal: bool, seconds: float, lines: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twenty updates, fast ones first, shown on a terminal and in a log."""
    now = [0.0]
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    monkeypatch.setattr(time, "time", lambda: now[0])
    output: Any = io.StringIO()
    bar = progress_bar("cache", 100, unit="view", file=output)
    bar._time = lambda: now[0]
    bar.last_print_t = bar.start_t = 0.0
    for number in range(20):
        now[0] += seconds / 10 if number < 10 else seconds
        bar.update(1)
    shown = output.getvalue().count("\r")
    bar.close()
    assert abs(shown - lines) <= 1, output.getvalue()
