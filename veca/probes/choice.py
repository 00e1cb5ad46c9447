"""Which setting is best, told by validation images alone: the test split is not even an argument here."""

import math

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

VAL_SHARE = 0.1
SEED = 0


def carve(num_items: int, labels: Tensor | None = None, *, share: float = VAL_SHARE) -> NDArray[np.bool_]:
    """Mark the training items that are kept for validation; of each class with two or more, at least one.

    Without labels (several per image, masks, depth) all items are one class.
    """
    groups = np.zeros(num_items, dtype=np.int64) if labels is None else labels.numpy()
    rng = np.random.default_rng(SEED)
    kept = np.zeros(num_items, dtype=bool)
    for group in np.unique(groups):
        members = rng.permutation(np.flatnonzero(groups == group))
        number = max(1, round(share * len(members))) if len(members) > 1 else 0
        kept[members[:number]] = True
    if not kept.any():
        raise ValueError(
            f"the training split has {num_items} images, too few to keep some for the choice of the learning "
            "rate. Two of a class are the least."
        )
    return kept


def choose(scores: list[float]) -> int:
    """The place of the highest score; of several equal ones the middle."""
    finite = [score for score in scores if math.isfinite(score)]
    if not finite:
        raise ValueError(f"no learning rate gives a finite score; got {scores}. Are the features sound?")
    best = [place for place, score in enumerate(scores) if score == max(finite)]
    return best[len(best) // 2]
