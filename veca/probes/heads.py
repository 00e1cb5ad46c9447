"""Linear classifiers on fixed features, one for every learning rate, and the choice between them.

The rates see the same batches in the same order, so that their heads are the columns of one matrix product.
Each is trained exactly as it would be alone: SGD with momentum, a cosine from the rate to zero, no weight
decay, from zero, on features that are centred and scaled with the moments of the training images.

The rate is chosen by validation images alone: the judged split is not even an argument here.

Shapes: n images, D width, G heads, C classes, B batch.
"""

import math
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from veca.probes.datasets.splits import IGNORED
from veca.utils.progress import progress_bar

# 1, 2, 5 and so on over four decades: DINOv2's number of rates, moved to standardised features.
RATES = (1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
MOMENTUM = 0.9
BATCH = 128
VAL_SHARE = 0.1
SEED = 0


class Moments(NamedTuple):
    """Channel means and standard deviations; a constant channel keeps its scale."""

    mean: Tensor  # (D,)
    std: Tensor

    @classmethod
    def of(cls, features: Tensor) -> "Moments":
        std = features.std(dim=0, correction=0)
        # Below rounding noise of its mean a channel is constant, and dividing would only blow the noise up.
        constant = std <= 1e-6 * features.mean(dim=0).abs().clamp(min=1e-6)
        return cls(features.mean(dim=0), std.masked_fill(constant, 1.0))

    def standardise(self, features: Tensor) -> Tensor:
        return (features - self.mean) / self.std


class LinearHeads(NamedTuple):
    """G classifiers of standardised features."""

    weight: Tensor  # (D, G·C)
    bias: Tensor  # (G·C,)
    moments: Moments
    num_classes: int

    def logits(self, features: Tensor) -> Tensor:
        """(n, G, C) of features (n, D)."""
        standard = self.moments.standardise(features.to(self.weight.device))
        logits: Tensor = torch.addmm(self.bias, standard, self.weight)
        return logits.view(len(features), -1, self.num_classes)


@torch.no_grad()
def fit_linear(
    features: Tensor,
    targets: Tensor,
    *,
    num_classes: int,
    epochs: int,
    rates: tuple[float, ...] = RATES,
    device: torch.device | str = "cpu",
) -> LinearHeads:
    """Fit heads to features (n, D) and labels (n,), or 0, 1 and IGNORED of several classes (n, C) uint8."""
    features, targets = features.to(device), targets.to(device)
    moments = Moments.of(features)
    features = moments.standardise(features)
    number, width = features.shape
    weight = features.new_zeros(width, len(rates) * num_classes)
    bias = features.new_zeros(len(rates) * num_classes)
    speeds = weight.clone(), bias.clone()
    scale = features.new_tensor(rates).repeat_interleave(num_classes)  # (G·C,)
    order = torch.Generator().manual_seed(SEED)
    steps, step = epochs * math.ceil(number / BATCH), 0
    with progress_bar("heads", epochs, unit="epoch") as progress:
        for _ in range(epochs):
            for rows in torch.randperm(number, generator=order).to(device).split(BATCH):
                batch = features[rows]
                logits = torch.addmm(bias, batch, weight).view(len(rows), len(rates), num_classes)
                slope = loss_slope(logits, targets[rows]).flatten(1)  # (B, G·C)
                speeds[0].mul_(MOMENTUM).addmm_(batch.T, slope)
                speeds[1].mul_(MOMENTUM).add_(slope.sum(0))
                now = -scale * (0.5 + 0.5 * math.cos(math.pi * step / steps))
                weight.addcmul_(speeds[0], now)
                bias.addcmul_(speeds[1], now)
                step += 1
            progress.update()
    return LinearHeads(weight, bias, moments, num_classes)


def loss_slope(logits: Tensor, targets: Tensor) -> Tensor:
    """The derivative of the mean loss by the logits (B, G, C), each head by itself.

    The loss is the cross-entropy of labels (B,), or the binary one of (B, C) where it is not IGNORED.
    """
    if targets.ndim == 1:
        slope = logits.softmax(dim=-1)
        places = targets[:, None, None].expand(-1, logits.shape[1], 1)
        slope.scatter_add_(2, places, slope.new_full((), -1.0).expand_as(places))
        return slope.div_(len(logits))
    counted = (targets != IGNORED)[:, None]
    slope = (logits.sigmoid() - (targets == 1)[:, None].float()) * counted
    return slope.div_(counted.sum().clamp(min=1))


def split_holdout(num_items: int, labels: Tensor | None = None) -> NDArray[np.bool_]:
    """Mark the training items that are kept for validation; of each class with two or more, at least one.

    Without labels (several per image, masks, depth) all items are one class.
    """
    groups = np.zeros(num_items, dtype=np.int64) if labels is None else labels.numpy()
    rng = np.random.default_rng(SEED)
    kept = np.zeros(num_items, dtype=bool)
    for group in np.unique(groups):
        members = rng.permutation(np.flatnonzero(groups == group))
        number = max(1, round(VAL_SHARE * len(members))) if len(members) > 1 else 0
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
