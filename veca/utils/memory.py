"""Keep freed memory for the next step.

A training step on a CPU allocates and frees gigabytes. The C library gives every large piece back to the
system at once, and gets it again page by page, each one zeroed first: a tenth of a step of `small` at 256 px.
Kept, it stays with the process: as much as its peak, and no more.
"""

import ctypes

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4  # names of glibc's mallopt(3)
_PIECE = 64 * 2**20  # by which the heap grows


def keep_memory() -> bool:
    """Let this process keep what it frees; False where the C library has no such switch."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:  # not glibc
        return False
    # Large pieces come from the heap, which never shrinks.
    return all([mallopt(_MMAP_MAX, 0), mallopt(_TRIM_THRESHOLD, -1), mallopt(_TOP_PAD, _PIECE)])
