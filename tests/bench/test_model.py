"""The benchmarks of the attention path and of the whole model, at sizes that take seconds."""

import time

import pytest
import torch
from torch import Tensor

from veca import create_model
from veca.bench.model import (
    CANDIDATES,
    _peak,
    attention,
    candidate,
    growth_case,
    memory_case,
    model,
    regions,
    straightforward,
    train_flops,
)


def test_the_peers_of_the_same_weights_agree() -> None:
    images = torch.randn(1, 3, 32, 32)
    ours, plain = (candidate(name)(images) for name in CANDIDATES[:2])
    torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-4)


def test_a_training_step_is_about_three_forward_passes() -> None:
    small, large = train_flops(256), train_flops(512)
    assert large / small == pytest.approx((1024 + 64) / (256 + 64), rel=0.01)  # linear in the tokens
    assert 2 * 3 * 21e6 * 256 < small < 2 * 3 * 24e6 * 320 * 1.2
    assert train_flops(256, budget=8) / small == pytest.approx((256 + 8) / (256 + 64), rel=0.05)


def test_every_ratio_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    results = model(resolutions=[32], patches=8, repeats=2, memory=False)
    assert {name for name in results if not name.endswith("_spread")} == {
        *(f"{kind}/r32/{peer}_over_veca" for kind in ("forward", "train") for peer in CANDIDATES[1:]),
        "train/r32/share_of_matrix_rate",
    }
    assert all(
        results[name] > 0 and results[f"{name}_spread"] >= 0 for name in results if "_spread" not in name
    )
    assert "share_of_matrix_rate" in capsys.readouterr().out


def test_memory_is_that_of_the_candidate_alone() -> None:
    ballast = torch.ones(500_000_000, dtype=torch.uint8)  # a large parent must not hide what a child needs
    peak = _peak("veca", 128, 4, 64)["veca"]
    assert len(ballast) / 1024 > peak > 20_000  # kilobytes; twelve layers of 512 tokens, and gradients


def test_one_odd_peak_does_not_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    peaks = {"veca": [10.0] * 3, "straightforward": [15.0] * 3, "dinov3": [9.0, 12.0, 12.0]}
    found = {name: iter(values) for name, values in peaks.items()}
    monkeypatch.setattr("veca.bench.model._peak", lambda name, *sizes: {name: next(found[name])})
    results = memory_case(resolution=256, batch=16, budget=64).measure()
    assert results["train/r256/straightforward_memory_over_veca"] == pytest.approx(1.5)
    assert results["train/r256/dinov3_memory_over_veca"] == pytest.approx(1.2)
    assert results["train/r256/dinov3_memory_over_veca_spread"] > 0


def test_growth_is_that_of_one_image() -> None:
    def linear(images: Tensor) -> Tensor:
        time.sleep(images.numel() * 4e-8)  # long enough for a busy machine
        return images.requires_grad_()

    for kind in ("forward", "train"):
        found = growth_case(linear, kind, patches=4096, repeats=3).measure()
        assert found[f"{kind}/time_1024_over_512"] == pytest.approx(4, rel=0.3)
        assert f"{kind}/time_1024_over_512_spread" in found


def test_every_size_resolution_budget_and_batch_gets_its_ratio(capsys: pytest.CaptureFixture[str]) -> None:
    results = attention(sizes=["small"], resolutions=[32, 64], budgets=[8, 64], batches=[1, 2], repeats=2)
    keys = {key.rpartition("/")[0] for key in results}
    assert keys == {
        f"small/{place}/b{budget}"
        for place in ("r32/batch1", "r64/batch1", "r32/batch2")
        for budget in (8, 64)
    }
    assert all(value > 0 for name, value in results.items() if not name.endswith("_spread"))
    assert "GFLOPs" in capsys.readouterr().out


@pytest.mark.parametrize("budget", [8, 64])
def test_it_gives_the_features_and_gradients_of_the_model(budget: int) -> None:
    torch.manual_seed(0)
    model = create_model("tiny", depth=3, out_width=20).double().eval()
    images = torch.randn(2, 3, 48, 64, dtype=torch.float64)
    grads = []
    for features in (model(images, budget), straightforward(model, images, budget)):
        model.zero_grad()
        (features.patches.square().sum() + features.cores.sum()).backward()
        grads.append({n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None})
    ours, plain = model(images, budget), straightforward(model, images, budget)
    assert ours.grid == plain.grid
    for one, other in zip(ours[:3], plain[:3], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)
    assert grads[0].keys() == grads[1].keys()
    for name, grad in grads[0].items():
        torch.testing.assert_close(grad, grads[1][name], rtol=1e-9, atol=1e-9)


def test_reading_parts_is_compared_with_reading_all() -> None:
    results = regions(size="tiny", resolution=64, budget=8, repeats=2)
    names = ("remember_over_forward", "read_over_forward", "tenth_over_read", "hundredth_over_read")
    assert results.goals.keys() == set(names)
    assert results["hundredth_over_read"] < 5  # a patch, and all 16
