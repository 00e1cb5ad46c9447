"""Freed memory is kept for the next step."""

import subprocess
import sys

import pytest

ROUNDS = """
import resource, sys
import numpy as np
from veca.utils.memory import keep_memory

kept = keep_memory() if sys.argv[1] == "keep" else False
faults = []
for _ in range(4):
    pieces = [np.ones(64 * 2**20, dtype=np.uint8) for _ in range(3)]
    del pieces
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
print(int(kept), faults[-1] - faults[0])
"""


def _page_faults(how: str) -> tuple[bool, int]:
    """Whether memory is kept, and the pages fetched by three more rounds of the same 192 MiB."""
    done = subprocess.run([sys.executable, "-c", ROUNDS, how], check=True, capture_output=True, text=True)
    kept, faults = map(int, done.stdout.split())
    return bool(kept), faults


def test_the_next_round_needs_no_new_pages():
    kept, faults = _page_faults("keep")
    if not kept:
        pytest.skip("this C library has no mallopt")
    assert faults < 1000 < _page_faults("leave")[1]
