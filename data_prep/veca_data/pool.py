"""Tasks over processes, with one progress bar: a worker takes a whole task, and reports as it goes.

Workers come from a fork server, which has no threads to trip over, and end by themselves when the
process that wanted the work is gone (even by kill -9): a restart does not compete with the last run.
"""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from ctypes import c_bool, c_int64
from itertools import islice
from typing import Any, TypeVar

from tqdm import tqdm

from veca.utils.process import keep_memory
from veca.utils.progress import progress_bar

Task = TypeVar("Task")
Result = TypeVar("Result")

_LOOK_EVERY = 0.2  # seconds between looks at the workers' progress
_PRELOADED = ["veca_data.cli", "veca_data.pack", "veca_data.inspect", "veca_data.check"]

_report: Callable[[int], object] | None = None  # where this process sends its progress


class TaskStopped(Exception):
    """Another task has failed, so this one ends too."""


def advance(count: int) -> None:
    """Called by tasks for each piece of work, in bytes; raises TaskStopped when the work is to end."""
    if _report is not None:
        _report(count)


def num_workers(workers: int | None) -> int:
    """The number asked for, or one per core that this process may use: a batch system may allow it few."""
    if workers is None:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if workers < 1:
        raise ValueError(f"workers must be at least 1; got {workers}. Leave it out for one per core.")
    return workers


def run_tasks(
    function: Callable[[Task], Result],
    tasks: Iterable[Task],
    *,
    workers: int,
    total_bytes: int,
    label: str,
) -> Iterator[Result]:
    """Results as they come, in any order. One worker is this process itself."""
    global _report
    with progress_bar(label, total_bytes, unit="B", unit_scale=True) as bar:
        if workers > 1:
            yield from _run_in_processes(function, iter(tasks), workers, bar)
            return
        keep_memory()
        for task in tasks:
            _report = bar.update
            try:
                result = function(task)
            finally:
                _report = None
            yield result


def _run_in_processes(
    function: Callable[[Task], Result], tasks: Iterator[Task], workers: int, bar: "tqdm[Any]"
) -> Iterator[Result]:
    context = _context()
    done, stop = context.Value(c_int64), context.Value(c_bool, lock=False)
    pending: set[Future[Result]] = set()
    with ProcessPoolExecutor(workers, context, _start_worker, (done, stop)) as pool:
        try:
            while True:
                # A few tasks ahead keep the workers busy; all of them would fill the memory.
                pending |= {pool.submit(function, task) for task in islice(tasks, 2 * workers - len(pending))}
                if not pending:
                    return
                finished, pending = wait(pending, _LOOK_EVERY, FIRST_COMPLETED)
                bar.update(done.value - bar.n)
                for future in finished:
                    yield future.result()
        except BrokenProcessPool:
            raise RuntimeError(
                "a worker died; the system may have been out of memory. Try fewer workers."
            ) from None
        finally:
            stop.value = True
            pool.shutdown(wait=True, cancel_futures=True)


def _context() -> Any:
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    return context


def _start_worker(done: Any, stop: Any) -> None:
    global _report

    def report(count: int) -> None:
        if stop.value:
            raise TaskStopped
        with done.get_lock():
            done.value += count

    _report = report
    keep_memory()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # at Ctrl-C the parent speaks for all
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
