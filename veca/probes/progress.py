"""The progress bar of the probes: images done and to do."""

import sys
from typing import Any

from tqdm import tqdm


def count_images(label: str, total: int) -> "tqdm[Any]":
    # Without a terminal (the log of a batch job) a line a minute is enough.
    interval = 0.1 if sys.stderr.isatty() else 60
    return tqdm(total=total, desc=label, unit="image", mininterval=interval)
