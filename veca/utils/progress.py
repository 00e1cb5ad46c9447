"""The progress bar of probes and figures: what is done and to do."""

import sys
from typing import Any

from tqdm import tqdm


def count_images(label: str, total: int, *, unit: str = "image", quiet: bool = False) -> "tqdm[Any]":
    """A bar over `total` units; `quiet` on the ranks that only help."""
    # Without a terminal (the log of a batch job) a line a minute is enough.
    interval = 0.1 if sys.stderr.isatty() else 60
    return tqdm(total=total, desc=label, unit=unit, mininterval=interval, disable=quiet)
