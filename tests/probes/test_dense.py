"""Dense heads side by side are the heads one would train alone; windows lie where they were cut."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.probes.fakes import FakeBackbone, map_items
from tests.probes.test_features import run, store_of
from veca.backbones import ProbeFeatures
from veca.probes.dense import BATCH, POWER, WEIGHT_DECAY, DenseHeads, fit_dense, image_maps
from veca.probes.features import Cached, Windows
from veca.probes.heads import Moments
from veca.probes.segment import cross_entropy


def soft(pixels: torch.Tensor) -> torch.Tensor:
    return torch.cat([pixels / 50, (pixels / 90).sin()], dim=1)


@pytest.fixture
def windows(tmp_path: Path) -> Cached:
    viewer = Windows(16, 8, labelled=True)
    backbone = FakeBackbone("soft", soft, 8)
    store = store_of(tmp_path, viewer, 13, backbone=backbone)
    run(store, map_items(13, num_classes=4, seed=0, size=(16, 30)), viewer, backbone)
    return Cached(store)


def fit_alone(cached: Cached, *, rate: float, epochs: int) -> nn.Linear:
    """One head on concatenated [patch ; CLS] with torch's own optimizer."""
    patches = torch.stack([cached.patches(view) for view in range(len(cached))])
    both = torch.cat([patches, cached.cls[:, None].expand_as(patches)], dim=2)
    flat = torch.cat([patches.flatten(0, 1), cached.cls.repeat_interleave(4, 0)], dim=1)
    std = flat.std(0, correction=0)
    both = (both - flat.mean(0)) / torch.where(std > 0, std, 1.0)
    targets = torch.stack([cached.target(view) for view in range(len(cached))]).long()
    head = nn.Linear(both.shape[2], 4)
    for parameter in head.parameters():
        nn.init.zeros_(parameter)
    optimizer = torch.optim.AdamW(head.parameters(), lr=rate, weight_decay=WEIGHT_DECAY)
    steps = epochs * -(-len(both) // BATCH)
    schedule = torch.optim.lr_scheduler.PolynomialLR(optimizer, steps, power=POWER)
    order = np.random.default_rng(0)
    for _ in range(epochs):
        rows = order.permutation(np.arange(len(both)))
        for start in range(0, len(rows), BATCH):
            part = rows[start : start + BATCH]
            maps = head(both[part]).transpose(1, 2).unflatten(2, (2, 2))
            upsampled = F.interpolate(maps, size=(8, 8), mode="bilinear")
            optimizer.zero_grad()
            F.cross_entropy(upsampled, targets[part]).backward()
            optimizer.step()
            schedule.step()
    return head


def test_each_head_equals_a_fit_of_its_own(windows: Cached) -> None:
    rates, views = (1e-3, 3e-2), np.arange(len(windows))
    heads = fit_dense(windows, views, num_outputs=4, loss=cross_entropy, epochs=2, rates=rates)
    for place, rate in enumerate(rates):
        alone = fit_alone(windows, rate=rate, epochs=2)
        torch.testing.assert_close(heads.weights[place].T, alone.weight, rtol=1e-3, atol=1e-5)
        torch.testing.assert_close(heads.biases[place], alone.bias, rtol=1e-3, atol=1e-5)


def test_windows_lie_where_they_were_cut(windows: Cached) -> None:
    """A head that repeats the red of a patch gives the red of the image, window by window."""
    moments = Moments(torch.zeros(12), torch.ones(12))
    heads = DenseHeads(moments, num_outputs=1, num_heads=1)
    with torch.no_grad():
        heads.weights[0][0] = 1.0
    for item, found in image_maps(heads, windows, lambda maps: maps):
        views = [view for view, record in enumerate(windows.records) if record.item == item]
        assert found.shape == (1, 16, 30)
        total, times = torch.zeros(16, 30), torch.zeros(16, 30)
        for view in views:
            record = windows.records[view]
            red = windows.patches(view)[:, 0].view(1, 1, 2, 2)
            total[:, record.left : record.left + 16] += F.interpolate(red, size=16, mode="bilinear")[0, 0]
            times[:, record.left : record.left + 16] += 1
        torch.testing.assert_close(found[0], total / times)


def test_a_pooled_cls_is_not_given_to_the_head(tmp_path: Path) -> None:
    class Pooled(FakeBackbone):
        def __call__(self, images: torch.Tensor) -> ProbeFeatures:
            return super().__call__(images)._replace(has_cls=False)

    viewer, backbone = Windows(16, 8, labelled=True), Pooled("pooled", soft, 8)
    store = store_of(tmp_path, viewer, 6, backbone=backbone)
    run(store, map_items(6, num_classes=4, seed=0, size=(16, 16)), viewer, backbone)
    heads = fit_dense(Cached(store), np.arange(6), num_outputs=4, loss=cross_entropy, epochs=1)
    assert all(float(weight[6:].detach().abs().max()) == 0 for weight in heads.weights)
    assert all(float(weight[:6].detach().abs().max()) > 0 for weight in heads.weights)
