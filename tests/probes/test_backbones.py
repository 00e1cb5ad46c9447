"""What probes evaluate."""

import torch

from veca import Veca
from veca.data.pixels import normalise
from veca.probes.backbones import RawPixels, VecaAtBudget, random_model


def test_global_feature_is_core_zero_at_the_budget(tiny_student: Veca) -> None:
    model = tiny_student.eval()
    images = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
    found = VecaAtBudget(model, 4, 32)(images)
    torch.testing.assert_close(found, model(normalise(images), budget=4).cores[:, 0])
    assert not torch.allclose(found, VecaAtBudget(model, 16, 32)(images))


def test_random_model_depends_on_its_seed_alone(tiny_student: Veca) -> None:
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = random_model(tiny_student.size, seed=0)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    again, other = random_model(tiny_student.size, seed=0), random_model(tiny_student.size, seed=1)
    weights = [model.patch_embed.weight for model in (first, again, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert not first.training
    assert first.size == tiny_student.size


def test_raw_pixels() -> None:
    images = torch.randint(0, 256, (2, 3, 16, 16), dtype=torch.uint8)
    assert RawPixels().resolution == 16
    torch.testing.assert_close(RawPixels()(images).reshape(2, 3, 16, 16), normalise(images))
