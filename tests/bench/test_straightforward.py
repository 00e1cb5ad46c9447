"""The peer that the model is timed against computes the same thing."""

import pytest
import torch

from veca import create_model
from veca.bench.straightforward import straightforward


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
