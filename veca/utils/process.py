"""This process: signals that ask it to stop, how it leaves, and the memory it keeps.

SIGUSR1, SIGTERM and Ctrl-C are a wish to stop, kept until training comes to a good moment for it. A handler
that did more than note the signal would run in the middle of a step, of a save or of a message between ranks.
So the note is all the handler does; `preemption.py` reads it at the end of a step. Before training begins and
after it has ended nobody reads it, and the signal does no harm.

A run that is stuck never comes to that moment, and stuck in C code, such as a message between ranks, it runs
no handler either. So a thread is told of signals too: a second SIGTERM or Ctrl-C ends the process. It leaves
at once, with the ranks it started: the usual way out waits for threads, for loader workers, and for NCCL's
process group, which is given back when all ranks ask for it. Where one has failed or is stuck, that is never.

Loader workers may get the same signals: SLURM sends them to every process of a job, or to the tasks alone,
as it is set up. A worker that died of one would take the run with it before it could save.

Standard library only: `veca fit` catches signals before it spends seconds on importing torch.
"""

import ctypes
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

STOP = (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT)
INSISTING = (signal.SIGTERM, signal.SIGINT)  # a second one of these does not wait for a step
ECHO = 1.0  # seconds in which another is the same wish: srun and torchrun pass on what their ranks get too
_PR_SET_PDEATHSIG = 1
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4  # names of glibc's mallopt(3)
_PIECE = 64 * 2**20  # by which the heap grows

STOPPED = 75  # exit status of a run that was asked to stop and can be continued (EX_TEMPFAIL)
PATIENCE = 5.0  # seconds a process has to end by itself before it is made to
TRACEBACK = "VECA_TRACEBACK"
KIND = (ValueError, OSError, FloatingPointError)  # their message says all that a user needs

started_ranks: list[subprocess.Popen[bytes]] = []  # by this process


class StopSignals:
    """Notes the first signal that asks this process to stop."""

    received: signal.Signals | None = None
    checkpoints: Path | None = None  # where a run that trains would go on from
    _may_wait = True

    def let_go(self) -> None:
        """The first signal ends the process, for a run that saves nothing; Ctrl-C as it does in Python."""
        self._may_wait = False
        if signal.getsignal(signal.SIGINT) == self._note:
            signal.signal(signal.SIGUSR1, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)

    @contextmanager
    def caught(self, *, ends_process: bool) -> Iterator[None]:
        """Within the block signals are noted; after it they do what they did before, and the note is gone.

        Where the process ends after the block one is ignored instead: the run is complete, and a late
        signal must not turn it into a failed one. A second one still ends an exit that is stuck.
        """
        self.received, self.checkpoints, self._may_wait = None, None, True
        before = {number: signal.signal(number, self._note) for number in STOP}
        stop_watching = self._watch()
        try:
            yield
        finally:
            self.received, self._may_wait = None, True
            for number, handler in before.items():
                signal.signal(number, _ignore if ends_process else handler or signal.SIG_DFL)
            if not ends_process:
                stop_watching()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received = self.received or signal.Signals(number)

    def _watch(self) -> Callable[[], None]:
        """Start the thread that ends a stuck process. What is returned ends the thread."""
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        before, over = signal.set_wakeup_fd(writing, warn_on_full_buffer=False), threading.Event()
        threading.Thread(target=self._end_when_insisted, args=(reading, over), daemon=True).start()

        def stop_watching() -> None:
            over.set()
            signal.set_wakeup_fd(before)
            os.close(writing)

        return stop_watching

    def _end_when_insisted(self, reading: int, over: threading.Event) -> None:
        asked = -ECHO  # when it was asked last, and how often
        times = 0
        while numbers := os.read(reading, 64):
            insisting = [number for number in numbers if number in INSISTING]
            if insisting and (now := time.monotonic()) >= asked + ECHO:
                asked, times = now, times + 1
                self._answer(signal.Signals(insisting[0]), first=times == 1, over=over)
        os.close(reading)

    def _answer(self, name: signal.Signals, *, first: bool, over: threading.Event) -> None:
        if first and self._may_wait:
            trains = signal.getsignal(name) == self._note
            if name == signal.SIGINT and trains and int(os.environ.get("LOCAL_RANK", 0)) == 0:
                say("the run saves and stops after this step. Once more ends it at once.")
            return
        if not first:
            say(f"asked again to stop, by {name.name}: the run ends within {PATIENCE:.0f} s, saved or not.")
        if (not first or name == signal.SIGINT) and over.wait(PATIENCE):
            return
        continues = self.checkpoints is not None and any(self.checkpoints.glob("*.ckpt"))
        leave(STOPPED if continues else 128 + name)


#: The one of this process: a process has one set of handlers.
stop_signals = StopSignals()


def _ignore(number: int, frame: FrameType | None) -> None:
    """Python's own, so that the thread is told; SIG_IGN would keep the signal from it."""


@contextmanager
def held_back() -> Iterator[None]:
    """Signals wait for the end of the block. A process started within it has them held back from birth."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def outlive_signals(worker_id: int) -> None:
    """In a worker started within `held_back`: signals meant for the run stay held back for good.

    A SIGTERM from its own parent still ends it, as multiprocessing expects, and so does the parent's end:
    an orphan would keep the connections of its rank open, and the other ranks waiting.
    """
    signal.set_wakeup_fd(-1)  # a forked worker has its parent's, and would speak in its name
    if sys.platform != "linux":
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP)
        return
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP)  # a first spawn lets SIGTERM through again
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    threading.Thread(target=_end_when_parent_says, daemon=True).start()


def _end_when_parent_says() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != parent.pid:
        pass
    os._exit(0)


def leave(status: int) -> NoReturn:
    """End without waiting for anything: nothing of what happens at an exit does."""
    for rank in started_ranks:
        rank.kill()
    os._exit(status)


def say(sentence: str) -> None:
    """A line on stderr past Python's buffers: a thread that is stuck may hold their lock."""
    os.write(2, f"veca: {sentence}\n".encode())


def describe(error: BaseException) -> str:
    """The message of a user's mistake, the traceback of anything else."""
    if isinstance(error, KIND) and TRACEBACK not in os.environ:
        return "\n".join([message(error), *getattr(error, "__notes__", ())])
    return "".join(traceback.format_exception(error)).rstrip()


def message(error: BaseException) -> str:
    """What a mistake's exception says; of one that the system raised, file and reason without its number."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{os.fsdecode(error.filename)}: {error.strerror.lower()}. Check the path."
    return str(error)


def flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):  # nobody reads it any more
            continue


def keep_memory() -> bool:
    """Let this process keep what it frees for the next step; False where the C library has no such switch.

    A training step on a CPU allocates and frees gigabytes. The C library gives every large piece back to the
    system at once, and gets it again page by page, each one zeroed first: a tenth of a step of `small` at
    256 px. Kept, it stays with the process: as much as its peak, and no more.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:  # not glibc
        return False
    # Large pieces come from the heap, which never shrinks.
    return all([mallopt(_MMAP_MAX, 0), mallopt(_TRIM_THRESHOLD, -1), mallopt(_TOP_PAD, _PIECE)])
