"""Which resolution an optimizer step trains at, and how many images of it a rank takes.

Stage 1 has one resolution. Stage 2 (method, section 4) draws one per optimizer step from the phase the step
lies in. The draw depends on (seed, step) alone: no stream to advance, none to restore, the same on every
rank.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

PATCH_SIZE = 16  # of the student; targets always lie on this grid


@dataclass(frozen=True)
class Phase:
    """Resolutions and their probabilities from one optimizer step on.

    Args:
        start_step: First optimizer step of the phase.
        probabilities: Probability of each resolution; they sum to 1.
    """

    start_step: int
    probabilities: dict[int, float]


@dataclass(frozen=True)
class ResolutionSchedule:
    """The resolutions of a run.

    Args:
        phases: What is drawn from which step on; the first phase starts at step 0.
        batch_size: Images per rank and micro-batch: one number, or one per resolution.
        teacher_micro_batch: Images the teacher takes at once: one number, one per resolution, or null for
            the whole batch.
        seed: Seed of the draws.
    """

    phases: list[Phase] = field(default_factory=lambda: [Phase(0, {256: 1.0})])
    batch_size: int | dict[int, int] = 128
    teacher_micro_batch: int | dict[int, int] | None = None
    seed: int = 424242

    def __post_init__(self) -> None:
        problems = list(_problems(self))
        if problems:
            raise ValueError("the resolution schedule cannot be used:\n  " + "\n  ".join(problems))

    @property
    def resolutions(self) -> list[int]:
        """Every resolution of any phase, smallest first."""
        return sorted({size for phase in self.phases for size in phase.probabilities})

    @property
    def batch_sizes(self) -> dict[int, int]:
        """Images per rank and micro-batch, by resolution."""
        return self._by_resolution(self.batch_size)

    @property
    def teacher_micro_batches(self) -> dict[int, int]:
        """Images the teacher takes at once, by resolution."""
        return self._by_resolution(self.teacher_micro_batch or self.batch_size)

    def resolution(self, step: int) -> int:
        """The resolution of an optimizer step."""
        phase = [phase for phase in self.phases if phase.start_step <= step][-1]
        sizes = list(phase.probabilities)
        if len(sizes) == 1:
            return sizes[0]
        # Philox is a function of (key, counter): the draw of a step needs no draw before it.
        word = np.random.Philox(key=self.seed, counter=step).random_raw()
        uniform = (int(word) >> 11) * 2.0**-53
        bounds = np.cumsum(list(phase.probabilities.values()))
        # The probabilities may sum to a little less than 1; the last resolution takes the difference.
        return sizes[min(int(np.searchsorted(bounds, uniform, side="right")), len(sizes) - 1)]

    def _by_resolution(self, table: int | dict[int, int]) -> dict[int, int]:
        return {size: table if isinstance(table, int) else table[size] for size in self.resolutions}


def _problems(schedule: ResolutionSchedule) -> Iterator[str]:
    """Every broken rule as `key = value: rule`."""
    if schedule.seed < 0:
        yield f"seed = {schedule.seed}: must not be negative"
    starts = [phase.start_step for phase in schedule.phases]
    if not starts or starts[0] != 0 or sorted(set(starts)) != starts:
        yield f"phases: start_step = {starts}: must begin with 0 and increase"
    for number, phase in enumerate(schedule.phases):
        where = f"phases[{number}].probabilities"
        for resolution, probability in phase.probabilities.items():
            if resolution <= 0 or resolution % PATCH_SIZE:
                near = max(PATCH_SIZE, round(resolution / PATCH_SIZE) * PATCH_SIZE)
                yield f"{where}: resolution {resolution}: must be a multiple of {PATCH_SIZE}. Try {near}."
            if not 0 < probability <= 1:
                yield f"{where}[{resolution}] = {probability}: must be above 0 and at most 1"
        total = sum(phase.probabilities.values())
        if not abs(total - 1) <= 1e-6:
            yield f"{where} sum to {total:g}: must sum to 1"
    yield from _table_problems("batch_size", schedule.batch_size, schedule.resolutions)
    if schedule.teacher_micro_batch is not None:
        yield from _table_problems("teacher_micro_batch", schedule.teacher_micro_batch, schedule.resolutions)


def _table_problems(key: str, table: int | dict[int, int], resolutions: list[int]) -> Iterator[str]:
    if isinstance(table, int):
        if table < 1:
            yield f"{key} = {table}: must be at least 1"
        return
    missing = [resolution for resolution in resolutions if resolution not in table]
    if missing:
        yield f"{key} = {table}: has no entry for resolutions {missing}"
    unused = sorted(set(table) - set(resolutions))
    if unused:
        yield f"{key} = {table}: resolutions {unused} are in no phase; drop them or add them to one"
    for resolution, value in table.items():
        if value < 1:
            yield f"{key}[{resolution}] = {value}: must be at least 1"
