"""The progress bar of probes and figures: what is done and to do."""

from typing import Any

from tqdm import tqdm

from veca.progress import progress_bar


def count_images(label: str, total: int, *, unit: str = "image", quiet: bool = False) -> "tqdm[Any]":
    """A bar over `total` units; `quiet` on the ranks that only help."""
    return progress_bar(label, total, unit=unit, quiet=quiet)
