"""What a person sees of work that takes long: a bar, and how long a run still needs."""

import sys
from collections import deque
from typing import Any

from tqdm import tqdm

RECENT = 120.0  # seconds whose rate counts
LOG_EVERY = 10.0  # seconds between lines where nobody looks at a terminal


def progress_bar(label: str, total: int, *, quiet: bool = False, **options: Any) -> "tqdm[Any]":
    """A bar over `total` units with the time left at the recent rate; `quiet` on the ranks that only help."""
    interval = 0.1 if sys.stderr.isatty() else LOG_EVERY
    # tqdm's own `miniters` follows the speed so far: after a fast start, a slow rest would not be shown.
    return tqdm(total=total, desc=label, mininterval=interval, miniters=1, disable=quiet, **options)


class TimeLeft:
    """Seconds to the end of a run: steps at the rate of the last minutes, pauses at their share so far.

    The mean since the start would count a slow beginning for hours. A pause (validation) is rare and long:
    it would spoil the rate of the minutes after it.
    """

    def __init__(self, *, step: int, now: float) -> None:
        self._first = step
        self._marks = deque([(now, step)])
        self._paused = 0.0

    def pause(self, seconds: float) -> None:
        """Take out time that passed without steps."""
        self._paused += seconds
        self._marks = deque((at + seconds, step) for at, step in self._marks)

    def seconds(self, *, step: int, total: int, now: float) -> float | None:
        """What is left of `total` steps after `step`; None before the first."""
        if step > self._marks[-1][1]:
            self._marks.append((now, step))
        while len(self._marks) > 2 and self._marks[1][0] <= now - RECENT:
            self._marks.popleft()
        (begin, first), (end, last) = self._marks[0], self._marks[-1]
        if last == first:
            return None
        per_step = (end - begin) / (last - first) + self._paused / (last - self._first)
        return per_step * max(0, total - step)
