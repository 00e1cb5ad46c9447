"""Thirteen learning rates of a linear probe at once, against thirteen fits one after the other.

Features are made up: what a fit costs depends on their shape alone. Both sides run the same function on the
same features, in turns; the whole probe with its default number of epochs is timed once.
"""

import io
import time
from contextlib import redirect_stderr

import torch

from veca.bench.goals import said
from veca.probes.heads import RATES, fit_linear
from veca.probes.linear import EPOCHS
from veca.utils.timing import compare, interleave


def run(
    *, num_features: int = 50_000, width: int = 384, num_classes: int = 10, epochs: int = 1, repeats: int = 3
) -> dict[str, float]:
    """Time heads on random features of this shape.

    Args:
        num_features: Training images.
        width: Channels of a feature.
        num_classes: Classes.
        epochs: Passes in the comparison; the timed probe runs its own number.
        repeats: Rounds of the comparison.
    """
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(num_features, width, generator=generator)
    labels = torch.randint(0, num_classes, (num_features,), generator=generator)

    def fit(rates: tuple[float, ...], epochs: int = epochs) -> None:
        with redirect_stderr(io.StringIO()):
            fit_linear(features, labels, num_classes=num_classes, epochs=epochs, rates=rates)

    def one_by_one() -> None:
        for rate in RATES:
            fit((rate,))

    timings = interleave(
        {"together": lambda: fit(RATES), "one_by_one": one_by_one},
        repeats=repeats,
    )
    start = time.perf_counter()
    fit(RATES, EPOCHS)
    results = {
        **compare(timings, {"together_vs_one_by_one": ("one_by_one", "together")}),
        "together_s_per_epoch": timings["together"].median / epochs,
        "one_by_one_s_per_epoch": timings["one_by_one"].median / epochs,
        f"all_{EPOCHS}_epochs_s": time.perf_counter() - start,
    }
    return said("probe", results)
