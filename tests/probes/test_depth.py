"""Planted depth is found; errors equal those by hand, where something was measured and near enough."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.probes.fakes import Install, MemorySplit, label_items, map_items
from veca.probes.datasets.splits import Dataset
from veca.probes.depth import depth, depth_errors, expected_depth


def data(size: tuple[int, int] = (16, 16), *, max_depth: float | None = 10.0) -> Dataset:
    """Metres follow the colour: 0.6, 1.6, 2.6 …; the judged maps have a hole and a far corner."""

    def split(number: int, seed: int) -> MemorySplit:
        items = map_items(number, num_classes=6, seed=seed, size=size).items
        return MemorySplit([item._replace(target=item.target.astype(np.float32) + 0.6) for item in items])

    splits = {"train": split(40, 0), "test": split(10, 800)}
    for item in splits["test"].items:
        item.target[:2] = 0  # type: ignore[index]
        item.target[-1, -1] = 60  # type: ignore[index]
    return Dataset("fake", "depth", [], {**splits}, max_depth)


def run(out: Path, **options: object) -> list[dict[str, dict[str, float]]]:
    depth("planted", "data", out=out / "d.json", **{"seeds": 0, "epochs": 30, **options})
    cells: list[dict[str, dict[str, float]]] = json.loads((out / "d.json").read_text())["cells"]
    return cells


def test_planted_noise_and_constant(tmp_path: Path, install: Install) -> None:
    """With a patch per pixel nothing is lost by upsampling; what is left of the error shrinks with epochs."""
    install({"data": data((8, 8))}, patch_size=1)
    options = {"budgets": "8", "resolutions": "8", "compare": "noise"}
    short, *_ = run(tmp_path / "short", **options, epochs=4)
    model, noise, _, constant = run(tmp_path, **options)
    assert model["values"]["RMSE"] < short["values"]["RMSE"] / 4
    assert model["values"]["RMSE"] < 0.1
    assert model["values"]["δ<1.25"] == 1.0
    assert noise["values"]["RMSE"] > 0.8
    assert constant["name"] == "constant"
    assert constant["values"]["RMSE"] > 0.8


def test_planted_depth_without_edges_is_found_to_the_millimetre(tmp_path: Path, install: Install) -> None:
    """One depth an image: upsampling has no edge to blur, neither in training nor in judging."""

    def split(number: int, seed: int) -> MemorySplit:
        items = label_items([place % 6 for place in range(number)], seed=seed, size=(8, 8)).items
        return MemorySplit(
            [item._replace(target=np.full((8, 8), item.target + 0.6, np.float32)) for item in items]
        )

    install({"data": Dataset("fake", "depth", [], {"train": split(42, 0), "test": split(12, 800)}, 10.0)})
    cell, *_ = run(tmp_path, budgets="8", resolutions="8", epochs=60)
    assert cell["values"]["RMSE"] < 0.001


def test_the_choice_of_a_rate_does_not_see_judged_depths(tmp_path: Path, install: Install) -> None:
    dataset = data()
    install({"data": dataset}, patch_size=8)
    before, *_ = run(tmp_path / "a", budgets="8", epochs=2)
    items = dataset.splits["test"].items  # type: ignore[attr-defined]
    shuffled = [
        item._replace(target=other.target) for item, other in zip(items, items[1:] + items[:1], strict=True)
    ]
    install(
        {"data": dataset._replace(splits={**dataset.splits, "test": MemorySplit(shuffled)})}, patch_size=8
    )
    after, *_ = run(tmp_path / "b", budgets="8", epochs=2)
    assert after["chosen"] == before["chosen"]
    assert after["values"] != before["values"]


def test_the_constant_is_the_mean_of_the_training_maps(tmp_path: Path, install: Install) -> None:
    dataset = data()
    install({"data": dataset}, patch_size=8)
    *_, constant = run(tmp_path, budgets="8", epochs=1)
    mean = np.mean([item.target for item in dataset.splits["train"].items])  # type: ignore[attr-defined]
    errors = []
    for item in dataset.splits["test"].items:  # type: ignore[attr-defined]
        truth = item.target[(item.target > 0) & (item.target <= 10)]
        errors.append(math.sqrt(np.mean((truth - mean) ** 2)))
    assert constant["values"]["RMSE"] == pytest.approx(np.mean(errors), rel=1e-5)


def test_without_a_largest_depth_that_of_the_training_maps_counts(tmp_path: Path, install: Install) -> None:
    install({"data": data((19, 45), max_depth=None)}, patch_size=8)
    run(tmp_path, budgets="8", epochs=1, inference="whole")
    assert json.loads((tmp_path / "d.json").read_text())["settings"]["max depth"] == pytest.approx(5.6)


def test_errors_by_hand() -> None:
    truth = torch.tensor([[2.0, 0.0], [4.0, 50.0]])
    answer = torch.tensor([[2.2, 9.0], [6.0, 1.0]])
    other = torch.full((1, 1), 3.0), torch.full((1, 1), 2.0)
    unmeasured = torch.ones(2, 2), torch.zeros(2, 2)
    found = depth_errors([(answer, truth), other, unmeasured], max_depth=10)
    rmse = math.sqrt((0.2**2 + 2.0**2) / 2)
    assert found["RMSE"] == pytest.approx((rmse + 1.0) / 2)
    assert found["AbsRel"] == pytest.approx(((0.1 + 0.5) / 2 + 0.5) / 2)
    assert found["δ<1.25"] == pytest.approx((0.5 + 0.0) / 2)


def test_depth_of_bins() -> None:
    logits = torch.full((1, 4, 1, 2), -50.0)
    logits[0, 1, 0, 0] = 50.0
    logits[0, :, 0, 1] = 0.0
    assert expected_depth(logits, 8.0).flatten().tolist() == pytest.approx([3.0, 4.0])
