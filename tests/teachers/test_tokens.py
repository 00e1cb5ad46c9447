"""Targets of transformers models, against calling the model by hand."""

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional as F

from tests.teachers.models import CLIP_MEAN, CLIP_STD, build, normalise
from veca.backbones.control import TransformersStudent
from veca.data.views import MEAN, STD
from veca.teachers.base import Normalisation
from veca.teachers.tokens import TokenTeacher
from veca.types import Targets

CLIP = Normalisation.from_unit(CLIP_MEAN, CLIP_STD)


def close(actual: Targets, cls: Tensor, patches: Tensor) -> None:
    torch.testing.assert_close(actual.cls, cls, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(actual.patches, patches, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("num_registers", [0, 4])
def test_dinov3_when_it_has_registers_then_they_are_no_patches(images: Tensor, num_registers: int) -> None:
    model = build("DINOv3ViT", num_register_tokens=num_registers)
    with torch.no_grad():
        tokens = model(normalise(images, CLIP_MEAN, CLIP_STD)).last_hidden_state
    assert tokens.shape[1] == 1 + num_registers + 15
    close(TokenTeacher(model, normalisation=CLIP)(images), tokens[:, 0], tokens[:, 1 + num_registers :])


def test_dinov3_when_its_config_denies_the_registers_then_refused(images: Tensor) -> None:
    teacher = TokenTeacher(build("DINOv3ViT", num_register_tokens=4))
    teacher.num_registers = 0
    with pytest.raises(ValueError, match=r"not a global token, 0 registers and 3×5 patches"):
        teacher(images)


@pytest.mark.parametrize("kind", ["Dinov2", "Dinov2WithRegisters"])
def test_dinov2_when_patches_are_14_pixels_then_its_grid_is_resampled(kind: str) -> None:
    images = torch.randint(0, 256, (2, 3, 256, 128), dtype=torch.uint8)
    model = build(kind, patch_size=14, image_size=56)
    num_registers = 4 if kind == "Dinov2WithRegisters" else 0
    small = F.interpolate(images.float(), size=(252, 126), mode="bicubic", antialias=True).clamp(0, 255)
    with torch.no_grad():
        tokens = model(normalise(small, MEAN, STD)).last_hidden_state
    own = tokens[:, 1 + num_registers :].reshape(2, 18, 9, 32).permute(0, 3, 1, 2)
    patches = F.interpolate(own, size=(16, 8), mode="bilinear", antialias=True)
    close(TokenTeacher(model)(images), tokens[:, 0], patches.flatten(2).transpose(1, 2))


def test_vit_when_the_image_is_not_its_own_size_then_positions_are_interpolated(images: Tensor) -> None:
    model = build("ViT", image_size=32)
    with torch.no_grad():
        pixels = normalise(images, MEAN, STD)
        tokens = model(pixels, interpolate_pos_encoding=True).last_hidden_state
    close(TokenTeacher(model)(images), tokens[:, 0], tokens[:, 1:])


def test_clip_when_asked_then_every_token_passes_the_last_norm(images: Tensor) -> None:
    model = build("CLIPVision", patch_size=16, image_size=32)
    with torch.no_grad():
        output = model(normalise(images, CLIP_MEAN, CLIP_STD), interpolate_pos_encoding=True)
        patches = model.post_layernorm(output.last_hidden_state[:, 1:])
    close(TokenTeacher(model, normalisation=CLIP)(images), output.pooler_output, patches)


def test_siglip_when_there_is_no_cls_token_then_pooled_output_is_the_global_target(images: Tensor) -> None:
    model = build("SiglipVision", patch_size=16, image_size=32)
    with torch.no_grad():
        output = model(normalise(images, CLIP_MEAN, CLIP_STD), interpolate_pos_encoding=True)
    close(TokenTeacher(model, normalisation=CLIP)(images), output.pooler_output, output.last_hidden_state)


def test_siglip_when_built_without_head_then_refused(images: Tensor) -> None:
    model = build("SiglipVision", patch_size=16, image_size=32, vision_use_head=False)
    with pytest.raises(ValueError, match="is not a global token"):
        TokenTeacher(model)(images)


def test_dinov3_when_the_holder_trains_then_coordinates_are_not_augmented(images: Tensor) -> None:
    model = build("DINOv3ViT", pos_embed_shift=0.5, pos_embed_jitter=2.0, pos_embed_rescale=2.0)
    teacher = TokenTeacher(model)
    nn.Sequential(teacher).train()
    torch.testing.assert_close(teacher(images), teacher(images), rtol=0, atol=0)
    model.train()  # what the teacher prevents
    assert not torch.equal(teacher(images).patches, teacher(images).patches)


def test_dinov3_when_a_student_shares_its_coordinates_then_backward_works() -> None:
    images = torch.randint(0, 256, (1, 3, 208, 176), dtype=torch.uint8)  # a size no other test has cached
    targets = TokenTeacher(build("DINOv3ViT"))(images)
    student = TransformersStudent("tiny", out_width=32)
    features = student(normalise(images, MEAN, STD))
    F.mse_loss(features.patches, targets.patches).backward()
    assert student.output_proj is not None
    assert student.output_proj.weight.grad is not None


def test_micro_batch_when_set_then_targets_are_equal(images: Tensor) -> None:
    model = build("DINOv3ViT", num_register_tokens=4)
    torch.testing.assert_close(
        TokenTeacher(model, micro_batch=2)(images), TokenTeacher(model)(images), rtol=1e-4, atol=1e-4
    )


def test_autocast_when_bf16_then_runs_and_stays_near(images: Tensor) -> None:
    teacher = TokenTeacher(build("DINOv3ViT", num_register_tokens=4))
    full = teacher(images)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = teacher(images)
    assert mixed.patches.dtype == torch.float32
    assert not torch.equal(mixed.patches, full.patches)
    assert F.cosine_similarity(mixed.patches, full.patches, dim=-1).min() > 0.97


def test_compile_teacher_when_resolutions_and_batches_vary_then_few_graphs_and_equal_targets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graphs = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> torch.fx.GraphModule:
        graphs.append(graph)
        return graph

    original = nn.Module.compile
    monkeypatch.setattr(
        nn.Module, "compile", lambda self, **options: original(self, backend=backend, **options)
    )
    fields = {"num_register_tokens": 4, "num_hidden_layers": 1}
    plain = TokenTeacher(build("DINOv3ViT", **fields))
    compiled = TokenTeacher(build("DINOv3ViT", **fields), compile_teacher=True)
    assert set(compiled.state_dict()) == set(plain.state_dict())
    torch._dynamo.reset()
    for height, width, count in [(48, 80, 3), (32, 32, 2), (64, 64, 3), (96, 48, 2), (80, 80, 4)]:
        batch = torch.randint(0, 256, (count, 3, height, width), dtype=torch.uint8)
        torch.testing.assert_close(compiled(batch), plain(batch), rtol=1e-4, atol=1e-4)
    assert 1 <= len(graphs) <= 3


@pytest.mark.parametrize(
    ("mean", "std", "normalisation"),
    [(MEAN, STD, None), (CLIP_MEAN, CLIP_STD, CLIP)],
)
def test_patch_projection_when_used_on_student_pixels_then_gives_the_teachers_embedding(
    images: Tensor, mean: tuple[float, ...], std: tuple[float, ...], normalisation: Normalisation | None
) -> None:
    model = build("DINOv3ViT")
    teacher = TokenTeacher(model, normalisation=normalisation) if normalisation else TokenTeacher(model)
    projection = teacher.patch_projection()
    assert projection is not None
    weight, bias = projection
    expected = model.embeddings.patch_embeddings(normalise(images, mean, std))
    actual = F.conv2d(normalise(images, MEAN, STD), weight, bias, stride=16)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
    if normalisation is None:
        assert torch.equal(weight, model.embeddings.patch_embeddings.weight)
        assert torch.equal(bias, model.embeddings.patch_embeddings.bias)


def test_patch_projection_when_there_is_no_bias_then_shift_alone(images: Tensor) -> None:
    model = build("CLIPVision", patch_size=16, image_size=32)
    projection = TokenTeacher(model, normalisation=CLIP).patch_projection()
    assert projection is not None
    actual = F.conv2d(normalise(images, MEAN, STD), *projection, stride=16)
    expected = model.embeddings.patch_embedding(normalise(images, CLIP_MEAN, CLIP_STD))
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


def test_patch_projection_when_patches_are_not_16_pixels_then_none() -> None:
    assert TokenTeacher(build("Dinov2", patch_size=14, image_size=56)).patch_projection() is None


def test_init_when_the_model_has_no_patches_then_refused() -> None:
    with pytest.raises(ValueError, match="bert cannot be a teacher: its config has no patch_size"):
        TokenTeacher(build("Bert", vocab_size=10))


def test_init_when_the_model_needs_more_than_pixels_then_refused() -> None:
    with pytest.raises(
        ValueError, match="siglip2_vision_model cannot be a teacher: it does not run on images"
    ):
        TokenTeacher(build("Siglip2Vision", patch_size=16, num_patches=16))


def test_forward_when_the_model_merges_patches_then_refused(images: Tensor) -> None:
    sizes = {"embed_dim": 8, "depths": [1, 1], "num_heads": [1, 1], "window_size": 2}
    config = transformers.SwinConfig(**sizes, image_size=32, patch_size=4)
    teacher = TokenTeacher(transformers.SwinModel(config))
    with pytest.raises(ValueError, match="swin cannot be a teacher: its output of shape"):
        teacher(images)
