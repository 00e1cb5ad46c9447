"""Validation items and the choice made from them."""

import numpy as np
import pytest
import torch

from veca.probes.choice import carve, choose


def test_a_tenth_of_each_class_and_at_least_one() -> None:
    labels = torch.tensor([0] * 100 + [1] * 40 + [2] * 3 + [3])
    kept = carve(len(labels), labels)
    counts = [int(kept[labels.numpy() == label].sum()) for label in range(4)]
    assert counts == [10, 4, 1, 0]  # the only image of a class is for training
    assert np.array_equal(kept, carve(len(labels), labels))


def test_without_labels_a_tenth_of_all() -> None:
    assert int(carve(57).sum()) == 6


def test_too_few() -> None:
    with pytest.raises(ValueError, match="the training split has 2 images, too few"):
        carve(2, torch.tensor([0, 1]))


def test_best_and_middle_of_equals() -> None:
    assert choose([0.1, 0.9, 0.3]) == 1
    assert choose([0.5, 0.9, 0.9, 0.9, 0.1]) == 2
    assert choose([float("nan"), 0.2]) == 1
    with pytest.raises(ValueError, match="no learning rate gives a finite score"):
        choose([float("nan")])
