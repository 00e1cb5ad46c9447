"""Planted masks reach mIoU 1; the loss and the score equal slow ones."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from tests.probes.fakes import Install, map_items
from veca.probes import segment as segment_module
from veca.probes.datasets.splits import IGNORED, Dataset
from veca.probes.segment import cross_entropy, segment, upsampled_argmax

CLASSES = ["sky", "road", "car", "tree"]


def data(size: tuple[int, int] = (16, 16), *, test: int = 12) -> Dataset:
    train = map_items(40, num_classes=4, seed=0, size=size)
    judged = map_items(test, num_classes=4, seed=900, size=size)
    for place, item in enumerate(judged.items):
        mask = np.array(item.target)
        mask[0, :3] = IGNORED
        judged.items[place] = item._replace(target=mask)
    return Dataset("fake", "segment", CLASSES, {"train": train, "val": judged})


def run(out: Path, model: str = "planted", **options: object) -> list[dict[str, dict[str, float]]]:
    segment(model, "data", out=out / "s.json", **{"seeds": 0, "epochs": 10, **options})
    cells: list[dict[str, dict[str, float]]] = json.loads((out / "s.json").read_text())["cells"]
    return cells


def test_planted_noise_and_constant(tmp_path: Path, install: Install) -> None:
    """With a patch per pixel nothing is lost by upsampling, so the answer is exact."""
    install({"data": data((8, 8))}, patch_size=1)
    model, noise, _, constant = run(tmp_path, budgets="8", compare="noise", resolutions="8", epochs=5)
    assert model["values"]["mIoU"] == pytest.approx(1.0)
    assert model["values"]["pixel accuracy"] == pytest.approx(1.0)
    assert noise["values"]["mIoU"] < 0.35
    assert constant["name"] == "constant"
    assert constant["values"]["mIoU"] <= 0.25


def test_the_constant_is_the_most_frequent_class(tmp_path: Path, install: Install) -> None:
    dataset = data()
    install({"data": dataset}, patch_size=8)
    *_, constant = run(tmp_path, budgets="8", epochs=1)
    train = np.concatenate([np.ravel(item.target) for item in dataset.splits["train"].items])  # type: ignore[attr-defined]
    frequent = np.bincount(train).argmax()
    truth = np.concatenate([np.ravel(item.target) for item in dataset.splits["val"].items])  # type: ignore[attr-defined]
    truth = truth[truth != IGNORED]
    hits = (truth == frequent).mean()
    assert constant["values"]["pixel accuracy"] == pytest.approx(hits)
    assert constant["values"]["mIoU"] == pytest.approx(hits / len(np.unique(truth)))


@pytest.mark.parametrize("inference", ["slide", "whole"])
def test_odd_sizes_are_judged_at_their_own(tmp_path: Path, install: Install, inference: str) -> None:
    """21 × 53 pixels: resized, in several windows, scored at every pixel that is not ignored."""
    install({"data": data((21, 53), test=3)}, patch_size=8)
    model, *_ = run(tmp_path, budgets="8", epochs=3, inference=inference)
    assert 0.2 < model["values"]["pixel accuracy"] <= 1.0
    assert model["values"]["mIoU"] > 0.1


def test_score_by_hand(tmp_path: Path) -> None:
    """Class 3 is nowhere and has no part; class 2 is only answered and counts as 0."""
    metric = segment_module._metrics(4)
    truth = torch.tensor([[[0, 0, 1], [1, IGNORED, 1]]])
    found = torch.tensor([[[0, 1, 1], [1, 3, 2]]])
    metric.update(found, truth)
    values = metric.compute()
    assert float(values["mIoU"]) == pytest.approx((1 / 2 + 2 / 4 + 0) / 3)
    assert float(values["pixel accuracy"]) == pytest.approx(3 / 5)


def test_loss_equals_a_slow_one() -> None:
    generator = torch.Generator().manual_seed(0)
    maps = torch.randn(3, 2, 4, 5, 3, generator=generator, dtype=torch.float64)
    targets = torch.randint(0, 4, (2, 11, 7), generator=generator)
    targets[0, :5] = IGNORED
    found = cross_entropy(maps, targets.to(torch.uint8))
    for head in range(3):
        upsampled = F.interpolate(maps[head], size=(11, 7), mode="bilinear").log_softmax(1)
        slow = [
            -upsampled[b, targets[b, i, j], i, j]
            for b in range(2)
            for i in range(11)
            for j in range(7)
            if targets[b, i, j] != IGNORED
        ]
        torch.testing.assert_close(found[head], torch.stack(slow).mean())
    assert cross_entropy(maps, torch.full((2, 11, 7), IGNORED)).tolist() == [0.0, 0.0, 0.0]


def test_classes_some_at_a_time_give_the_same_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.randn(7, 5, 4, generator=torch.Generator().manual_seed(0))
    expected = F.interpolate(logits[None], size=(13, 9), mode="bilinear")[0].argmax(0)
    for pixels in (1, 3 * 13 * 9, 2**25):
        monkeypatch.setattr(segment_module, "PIXELS_AT_ONCE", pixels)
        assert torch.equal(upsampled_argmax(logits, size=(13, 9)), expected)


def test_the_choice_never_sees_the_judged_masks(tmp_path: Path, install: Install) -> None:
    dataset = data()
    install({"data": dataset}, patch_size=8)
    before = run(tmp_path / "a", compare="noise", epochs=3)
    items = dataset.splits["val"].items  # type: ignore[attr-defined]
    items[:] = [item._replace(target=items[(i + 5) % 12].target) for i, item in enumerate(list(items))]
    after = run(tmp_path / "b", compare="noise", epochs=3)
    assert [cell["chosen"] for cell in before] == [cell["chosen"] for cell in after]
    assert before[0]["values"] != after[0]["values"]
