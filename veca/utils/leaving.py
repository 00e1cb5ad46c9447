"""Leaving a process at once, and the ranks it started with it.

The usual way out waits: for threads, for loader workers, and at exit for NCCL's process group, which is given
back when all ranks ask for it. Where one of them has failed or is stuck, that is never.

Standard library only, like `signals.py`, which uses it.
"""

import os
import subprocess
import sys
import traceback
from typing import NoReturn

STOPPED = 75  # exit status of a run that was asked to stop and can be continued (EX_TEMPFAIL)
PATIENCE = 5.0  # seconds a process has to end by itself before it is made to
TRACEBACK = "VECA_TRACEBACK"
KIND = (ValueError, OSError, FloatingPointError)  # their message says all that a user needs

started_ranks: list[subprocess.Popen[bytes]] = []  # by this process


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
