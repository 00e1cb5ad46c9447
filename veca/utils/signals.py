"""SIGUSR1 and SIGTERM as a wish to stop, kept until training comes to a good moment for it.

A handler that did more than note the signal would run in the middle of a step, of a save or of a message
between ranks. So the note is all there is here; `preempt.py` reads it at the end of a step. Before training
begins and after it has ended nobody reads it, and the signal does no harm.

Loader workers may get the same signals: SLURM sends them to every process of a job, or to the tasks alone,
as it is set up. A worker that died of one would take the run with it before it could save.

Standard library only: `veca fit` catches signals before it spends seconds on importing torch.
"""

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

STOP = (signal.SIGUSR1, signal.SIGTERM)
_PR_SET_PDEATHSIG = 1


class StopSignals:
    """Notes the first signal that asks this process to stop."""

    def __init__(self) -> None:
        self.received: signal.Signals | None = None

    def let_go(self) -> None:
        """Signals end the process again, for a run that saves nothing."""
        for number in STOP:
            if signal.getsignal(number) == self._note:
                signal.signal(number, signal.SIG_DFL)

    @contextmanager
    def caught(self, *, ends_process: bool) -> Iterator[None]:
        """Within the block signals are noted; after it they do what they did before, and the note is gone.

        Where the process ends after the block they are ignored instead: the run is complete, and a late
        signal must not turn it into a failed one.
        """
        self.received = None
        before = {number: signal.signal(number, self._note) for number in STOP}
        try:
            yield
        finally:
            self.received = None
            for number, handler in before.items():
                signal.signal(number, signal.SIG_IGN if ends_process else handler or signal.SIG_DFL)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received = self.received or signal.Signals(number)


#: The one of this process: a process has one set of handlers.
stop_signals = StopSignals()


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
