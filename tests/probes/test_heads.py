"""Heads side by side are the heads one would train alone; validation items and the choice made from them."""

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from veca.probes.datasets.splits import IGNORED
from veca.probes.heads import BATCH, MOMENTUM, RATES, Moments, choose, fit_linear, split_holdout


def fit_alone(features: Tensor, targets: Tensor, *, rate: float, epochs: int, num_classes: int) -> Tensor:
    """One head with torch's own optimizer and schedule, on standardised features."""
    features = (features - features.mean(0)) / features.std(0, correction=0)
    head = torch.nn.Linear(features.shape[1], num_classes, dtype=features.dtype)
    for parameter in head.parameters():
        torch.nn.init.zeros_(parameter)
    optimizer = torch.optim.SGD(head.parameters(), lr=rate, momentum=MOMENTUM)
    steps = epochs * -(-len(features) // BATCH)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    order = torch.Generator().manual_seed(0)
    for _ in range(epochs):
        for rows in torch.randperm(len(features), generator=order).split(BATCH):
            optimizer.zero_grad()
            logits, wanted = head(features[rows]), targets[rows]
            if targets.ndim == 1:
                loss = F.cross_entropy(logits, wanted)
            else:
                known = wanted != IGNORED
                loss = F.binary_cross_entropy_with_logits(logits[known], wanted[known].to(logits.dtype))
            loss.backward()
            optimizer.step()
            schedule.step()
    return head(features).detach()


@pytest.mark.parametrize("several", [False, True])
def test_each_head_equals_a_fit_of_its_own(several: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    features = 3 + 5 * torch.randn(300, 6, generator=generator, dtype=torch.float64)
    targets = torch.randint(0, 4, (300,), generator=generator)
    if several:
        targets = torch.randint(0, 3, (300, 4), generator=generator).to(torch.uint8)
        targets[targets == 2] = IGNORED
    rates = (1e-3, 0.1, 1.0)
    heads = fit_linear(features, targets, num_classes=4, epochs=3, rates=rates)
    together = heads.logits(features)
    for place, rate in enumerate(rates):
        alone = fit_alone(features, targets, rate=rate, epochs=3, num_classes=4)
        torch.testing.assert_close(together[:, place], alone, rtol=1e-9, atol=1e-9)


def test_thirteen_rates_that_rise() -> None:
    assert len(RATES) == 13
    assert list(RATES) == sorted(RATES)


def test_channels_that_never_change_are_harmless() -> None:
    features = torch.randn(50, 3)
    features[:, 1] = 1e4
    standard = Moments.of(features).standardise(features)
    assert bool(standard.isfinite().all())
    assert float(standard[:, 1].abs().max()) == 0.0
    torch.testing.assert_close(standard[:, 0].std(correction=0), torch.tensor(1.0))


def test_a_tenth_of_each_class_and_at_least_one() -> None:
    labels = torch.tensor([0] * 100 + [1] * 40 + [2] * 3 + [3])
    kept = split_holdout(len(labels), labels)
    counts = [int(kept[labels.numpy() == label].sum()) for label in range(4)]
    assert counts == [10, 4, 1, 0]  # the only image of a class is for training
    assert np.array_equal(kept, split_holdout(len(labels), labels))


def test_without_labels_a_tenth_of_all() -> None:
    assert int(split_holdout(57).sum()) == 6


def test_too_few() -> None:
    with pytest.raises(ValueError, match="the training split has 2 images, too few"):
        split_holdout(2, torch.tensor([0, 1]))


def test_best_and_middle_of_equals() -> None:
    assert choose([0.1, 0.9, 0.3]) == 1
    assert choose([0.5, 0.9, 0.9, 0.9, 0.1]) == 2
    assert choose([float("nan"), 0.2]) == 1
    with pytest.raises(ValueError, match="no learning rate gives a finite score"):
        choose([float("nan")])
