"""Which resolution a step has: a function of (seed, step), with the probabilities of its phase."""

from collections import Counter

import pytest

from veca.data.resolutions import Phase, ResolutionSchedule

STAGE_2 = [
    Phase(0, {256: 0.35, 384: 0.35, 512: 0.30}),
    Phase(7000, {256: 0.15, 384: 0.25, 512: 0.30, 768: 0.30}),
]


def test_one_resolution_is_the_default() -> None:
    schedule = ResolutionSchedule()
    assert {schedule.resolution(step) for step in range(100)} == {256}
    assert schedule.batch_sizes == schedule.teacher_micro_batches == {256: 128}


def test_draws_depend_on_the_step_alone() -> None:
    schedule = ResolutionSchedule(STAGE_2)
    forwards = [schedule.resolution(step) for step in range(300)]
    backwards = [ResolutionSchedule(STAGE_2).resolution(step) for step in reversed(range(300))]
    assert forwards == backwards[::-1]
    assert forwards != [ResolutionSchedule(STAGE_2, seed=1).resolution(step) for step in range(300)]


def test_draws_are_fixed_for_good() -> None:
    drawn = [ResolutionSchedule(STAGE_2).resolution(step) for step in range(6995, 7005)]
    assert drawn == [512, 512, 384, 256, 256, 512, 384, 768, 768, 256]


@pytest.mark.parametrize(("phase", "first"), [(STAGE_2[0], 0), (STAGE_2[1], 7000)])
def test_shares_follow_the_probabilities(phase: Phase, first: int) -> None:
    schedule = ResolutionSchedule(STAGE_2)
    counts = Counter(schedule.resolution(step) for step in range(first, first + 6000))
    assert set(counts) == set(phase.probabilities)
    for resolution, probability in phase.probabilities.items():
        assert counts[resolution] / 6000 == pytest.approx(probability, abs=0.025)  # 4 standard deviations


def test_sizes_per_resolution() -> None:
    tables = {256: 8, 384: 4, 512: 2, 768: 1}
    schedule = ResolutionSchedule(STAGE_2, batch_size=tables, teacher_micro_batch=2)
    assert schedule.resolutions == [256, 384, 512, 768]
    assert schedule.batch_sizes == tables
    assert set(schedule.teacher_micro_batches.values()) == {2}


def test_every_mistake_is_reported_at_once() -> None:
    with pytest.raises(ValueError, match="cannot be used") as error:
        ResolutionSchedule(
            phases=[Phase(5, {250: 0.5, 384: -0.1}), Phase(2, {512: 0.9})],
            batch_size={384: 0},
            teacher_micro_batch={384: 1, 512: 1, 250: 1, 64: 1},
            seed=-1,
        )
    message = str(error.value)
    for part in (
        "seed = -1",
        "start_step = [5, 2]: must begin with 0 and increase",
        "resolution 250: must be a multiple of 16. Try 256.",
        "phases[0].probabilities[384] = -0.1",
        "phases[0].probabilities sum to 0.4",
        "phases[1].probabilities sum to 0.9: must sum to 1",
        "batch_size = {384: 0}: has no entry for resolutions [250, 512]",
        "batch_size[384] = 0: must be at least 1",
        "resolutions [64] are in no phase",
    ):
        assert part in message
