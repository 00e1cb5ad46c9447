"""The architecture's sizes, and the random teacher: repeatable, of real shapes, with targets that vary."""

import pytest
import torch
import transformers
from torch import Tensor
from torch.nn import functional as F

from veca.model.sizes import SIZES
from veca.teachers import OfflineTeacher
from veca.teachers.dinov3 import dinov3_config, is_gated


# In millions, as the method states them; its counts leave out LayerScale, two vectors per layer.
@pytest.mark.parametrize(
    ("size", "millions"), [("small", 21.59), ("small_plus", 28.68), ("base", 85.64), ("large", 303.08)]
)
def test_size_when_real_then_parameters_are_those_of_dinov3(size: str, millions: float) -> None:
    with torch.device("meta"):
        model = transformers.DINOv3ViTModel(dinov3_config(SIZES[size], gated=is_gated(size)))
    counts = {name: parameter.numel() for name, parameter in model.named_parameters()}
    layer_scale = sum(count for name, count in counts.items() if "layer_scale" in name)
    assert layer_scale == 2 * SIZES[size].width * SIZES[size].depth
    assert round((sum(counts.values()) - layer_scale) / 1e6, 2) == millions


def smooth_images(count: int) -> Tensor:
    """Blobs of colour: neighbouring pixels agree, as in photographs."""
    coarse = torch.rand(count, 3, 6, 6, generator=torch.Generator().manual_seed(0)) * 255
    return F.interpolate(coarse, size=(64, 96), mode="bilinear").to(torch.uint8)


def mean_cosine(features: Tensor) -> float:
    """Mean cosine over pairs of different rows of (K, D)."""
    rows = F.normalize(features, dim=1)
    count = len(rows)
    return ((rows @ rows.T).sum() - count).item() / (count * (count - 1))


def test_weights_when_built_twice_then_equal_to_the_bit_and_global_state_untouched(images: Tensor) -> None:
    torch.manual_seed(7)
    before = torch.get_rng_state()
    first = OfflineTeacher(seed=3)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(8)  # another global state
    second = OfflineTeacher(seed=3)
    assert first.fingerprint() == second.fingerprint()
    assert torch.equal(first(images).patches, second(images).patches)
    assert OfflineTeacher(seed=4).fingerprint() != first.fingerprint()


def test_registers_when_tiny_then_four_and_not_among_the_patches(images: Tensor) -> None:
    teacher = OfflineTeacher()
    sequence = teacher.model(teacher._pixels(images)).last_hidden_state
    assert sequence.shape[1] == 1 + 4 + 15
    targets = teacher(images)
    torch.testing.assert_close(targets.cls, sequence[:, 0], rtol=0, atol=0)
    torch.testing.assert_close(targets.patches, sequence[:, 5:], rtol=0, atol=0)


def test_size_when_small_then_has_the_width_of_the_real_one() -> None:
    teacher = OfflineTeacher("small")
    assert teacher.width == 384
    assert teacher.num_registers == 4


def test_targets_when_images_and_positions_differ_then_differ() -> None:
    targets = OfflineTeacher()(smooth_images(12))
    assert mean_cosine(targets.cls) < 0.5
    assert max(mean_cosine(one) for one in targets.patches) < 0.7
    assert mean_cosine(targets.patches[:, 7]) < 0.3  # one position, other images


def test_size_when_unknown_then_lists_the_sizes() -> None:
    with pytest.raises(ValueError, match=r"size must be one of tiny, small, .*; got 'huge'"):
        OfflineTeacher("huge")


def test_patch_projection_when_asked_then_is_the_teachers_own() -> None:
    teacher = OfflineTeacher()
    projection = teacher.patch_projection()
    assert projection is not None
    assert torch.equal(projection[0], teacher.model.embeddings.patch_embeddings.weight)
