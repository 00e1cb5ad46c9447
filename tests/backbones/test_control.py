"""The full-attention control keeps the student's contract."""

import pytest
import torch
from torch import Tensor, nn

from veca.backbones.control import TransformersStudent
from veca.model.sizes import SIZES
from veca.teachers import OfflineTeacher


@pytest.fixture(scope="module")
def student() -> TransformersStudent:
    torch.manual_seed(0)
    return TransformersStudent("tiny")


@pytest.fixture
def images() -> Tensor:
    return torch.randn(2, 3, 48, 80, generator=torch.Generator().manual_seed(1))


def test_init_when_built_then_has_the_size_of_that_name_and_trains(student: TransformersStudent) -> None:
    config, size = student.model.config, SIZES["tiny"]
    assert (config.hidden_size, config.num_hidden_layers, config.num_attention_heads) == (192, 6, 3)
    assert (size.width, size.depth, size.num_heads) == (192, 6, 3)
    assert student.training
    assert student.budgets == (5,)


def test_forward_when_eval_then_features_are_the_models_tokens(
    student: TransformersStudent, images: Tensor
) -> None:
    student.eval()
    with torch.no_grad():
        features = student(images)
        tokens = student.model(images).last_hidden_state
    student.train()
    assert features.grid == (3, 5)
    assert tokens.shape[1] == 5 + 15
    torch.testing.assert_close(features.cls, tokens[:, 0], rtol=0, atol=0)
    torch.testing.assert_close(features.cores, tokens[:, :5], rtol=0, atol=0)
    torch.testing.assert_close(features.patches, tokens[:, 5:], rtol=0, atol=0)


def test_forward_when_budgets_differ_then_features_do_not(
    student: TransformersStudent, images: Tensor
) -> None:
    student.eval()
    with torch.no_grad():
        assert torch.equal(student(images, budget=8).patches, student(images, budget=64).patches)
    student.train()


def test_forward_when_training_then_coordinates_are_augmented(
    student: TransformersStudent, images: Tensor
) -> None:
    with torch.no_grad():
        assert not torch.equal(student(images).patches, student(images).patches)
    assert student.model.config.pos_embed_shift == 0.08
    assert student.model.config.pos_embed_rescale == 2.0


def test_output_proj_when_out_width_is_set_then_all_tokens_pass_it(images: Tensor) -> None:
    student = TransformersStudent("tiny", out_width=40).eval()
    features = student(images)
    assert student.output_proj is not None
    tokens = student.output_proj(student.model(images).last_hidden_state)
    torch.testing.assert_close(torch.cat((features.cores, features.patches), dim=1), tokens, rtol=0, atol=0)
    assert {"output_proj.weight", "output_proj.bias"} <= set(student.state_dict())


def test_backward_when_features_are_used_then_every_trainable_parameter_has_a_gradient(
    images: Tensor,
) -> None:
    student = TransformersStudent("tiny", out_width=40)
    features = student(images, budget=16)
    (features.cls.square().mean() + features.patches.square().mean()).backward()
    without = [name for name, p in student.named_parameters() if p.requires_grad and p.grad is None]
    assert without == []


def test_load_patch_embedding_when_shapes_agree_then_copied_else_refused(images: Tensor) -> None:
    student = TransformersStudent("tiny")
    weight, bias = torch.randn(192, 3, 16, 16), torch.randn(192)
    assert student.load_patch_embedding(weight, bias)
    assert torch.equal(student.model.embeddings.patch_embeddings.weight, weight)
    assert torch.equal(student.model.embeddings.patch_embeddings.bias, bias)
    other = OfflineTeacher().patch_projection()
    assert other is not None
    assert not student.load_patch_embedding(*other)
    assert torch.equal(student.model.embeddings.patch_embeddings.weight, weight)


def test_compile_blocks_when_called_then_names_and_features_stay(images: Tensor) -> None:
    student = TransformersStudent("tiny").eval()
    student.model.model.layer = student.model.model.layer[:1]  # tracing is slow
    names, before = list(student.state_dict()), student(images)
    student.compile_blocks(backend="eager")
    assert list(student.state_dict()) == names
    torch.testing.assert_close(student(images).patches, before.patches, rtol=1e-4, atol=1e-4)


def test_size_when_small_plus_then_gated() -> None:
    with torch.device("meta"):
        plain, plus = TransformersStudent("small"), TransformersStudent("small_plus")
    count = [sum(p.numel() for p in model.parameters()) for model in (plain, plus)]
    assert count == [21_596_544, 28_692_864]
    assert any(isinstance(m, nn.SiLU) or "silu" in type(m).__name__.lower() for m in plus.modules())


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.zeros(1, 3, 32, 32, dtype=torch.uint8), "must be normalised floats"),
        (torch.zeros(3, 32, 32), r"shape \(B, 3, H, W\)"),
        (torch.zeros(1, 3, 40, 32), "multiples of 16; got 40×32"),
    ],
)
def test_forward_when_images_are_wrong_then_says_what_to_do(
    student: TransformersStudent, images: Tensor, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        student(images)


def test_init_when_arguments_are_wrong_then_says_what_to_do() -> None:
    with pytest.raises(ValueError, match="size must be one of tiny, small"):
        TransformersStudent("huge")
    with pytest.raises(ValueError, match="out_width must be positive; got 0"):
        TransformersStudent("tiny", out_width=0)
