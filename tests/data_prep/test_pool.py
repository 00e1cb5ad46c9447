"""Tasks over processes."""

import os
import time
from functools import partial

import pytest

from veca_data.pool import TaskStopped, advance, num_workers, run_tasks


def _square(number: int) -> tuple[int, int]:
    advance(number)
    return number * number, os.getpid()


def _fail_at(wrong: int, number: int) -> int:
    if number == wrong:
        raise ValueError(f"no {number}")
    return number


def _die(number: int) -> int:
    os._exit(9)


def _endless(number: int) -> int:
    if number == 0:
        raise OSError(28, "No space left on device")
    while True:
        advance(1)
        time.sleep(0.01)


@pytest.mark.parametrize("workers", [1, 2])
def test_all_results_come(workers):
    results = list(run_tasks(_square, range(20), workers=workers, total_bytes=190, label="test"))
    assert sorted(square for square, _ in results) == [i * i for i in range(20)]
    here = {os.getpid()}
    assert ({pid for _, pid in results} == here) == (workers == 1)


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_reaches_the_caller(workers):
    with pytest.raises(ValueError, match="no 3"):
        list(run_tasks(partial(_fail_at, 3), range(10), workers=workers, total_bytes=0, label="test"))


def test_one_failure_stops_the_others():
    start = time.monotonic()
    with pytest.raises(OSError, match="No space"):
        list(run_tasks(_endless, range(3), workers=2, total_bytes=0, label="test"))
    assert time.monotonic() - start < 60


def test_a_dead_worker_is_named():
    with pytest.raises(RuntimeError, match="a worker died"):
        list(run_tasks(_die, range(3), workers=2, total_bytes=0, label="test"))


def test_tasks_are_made_only_a_few_ahead():
    made = []

    def tasks():
        for i in range(100):
            made.append(i)
            yield i

    results = run_tasks(_square, tasks(), workers=2, total_bytes=0, label="test")
    next(results)
    assert len(made) < 20
    results.close()


def test_number_of_workers():
    assert num_workers(3) == 3
    assert num_workers(None) >= 1
    with pytest.raises(ValueError, match="workers must be at least 1; got 0"):
        num_workers(0)


def test_stopped_is_no_mistake_of_the_user():
    assert not issubclass(TaskStopped, (ValueError, OSError, RuntimeError))
