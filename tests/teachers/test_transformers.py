"""Targets of transformers models, against calling the model by hand; loading, without a network."""

import json
from pathlib import Path

import pytest
import torch
import transformers
from huggingface_hub import constants
from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError
from torch import Tensor, nn
from torch.nn import functional as F

from tests.teachers.models import CLIP_MEAN, CLIP_STD, SMALL, build, normalise, save
from veca.backbones.control import TransformersStudent
from veca.data.views import MEAN, STD
from veca.teachers import OfflineTeacher, TransformersTeacher
from veca.teachers import transformers as hub
from veca.teachers.base import IMAGENET, Normalisation
from veca.teachers.transformers import TokenTeacher
from veca.types import Targets

DINOV3 = "facebook/dinov3-vits16-pretrain-lvd1689m"
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


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("DINOv3ViT", {"num_register_tokens": 4}),
        ("Dinov2", {"patch_size": 14, "image_size": 56}),
        ("Dinov2WithRegisters", {"patch_size": 14, "image_size": 56}),
        ("ViT", {"image_size": 32}),
        ("CLIPVision", {"patch_size": 16, "image_size": 32}),
        ("SiglipVision", {"patch_size": 16, "image_size": 32}),
    ],
)
def test_folder_when_loaded_then_targets_are_those_of_the_saved_model(
    tmp_path: Path, images: Tensor, kind: str, fields: dict[str, object]
) -> None:
    model = build(kind, **fields)
    teacher = TransformersTeacher(save(model, tmp_path / "teacher"))
    by_hand = TokenTeacher(model, normalisation=teacher.normalisation)
    torch.testing.assert_close(teacher(images), by_hand(images), rtol=0, atol=0)
    assert teacher.width == 32
    assert teacher.fingerprint() == by_hand.fingerprint()


def test_folder_when_loaded_then_its_own_normalisation_is_used(tmp_path: Path, images: Tensor) -> None:
    model = build("DINOv3ViT", num_register_tokens=4)
    teacher = TransformersTeacher(save(model, tmp_path))
    with torch.no_grad():
        expected = model(normalise(images, CLIP_MEAN, CLIP_STD)).last_hidden_state
    torch.testing.assert_close(teacher(images).patches, expected[:, 5:], rtol=1e-4, atol=1e-4)


def test_folder_when_weights_are_in_half_precision_then_loaded_as_float32(tmp_path: Path) -> None:
    teacher = TransformersTeacher(save(build("DINOv3ViT").to(torch.bfloat16), tmp_path))
    assert {parameter.dtype for parameter in teacher.parameters()} == {torch.float32}


@pytest.mark.parametrize(
    ("preprocessor", "mean", "std"),
    [
        ({}, (0.5, 0.25, 0.75), (0.5, 0.2, 0.1)),
        ({"rescale_factor": 1 / 127.5}, (0.25, 0.125, 0.375), (0.25, 0.1, 0.05)),
        ({"do_normalize": False}, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
    ],
)
def test_preprocessor_when_read_then_bytes_are_rescaled_once(
    tmp_path: Path, preprocessor: dict[str, object], mean: tuple[float, ...], std: tuple[float, ...]
) -> None:
    entries = {"image_mean": [0.5, 0.25, 0.75], "image_std": [0.5, 0.2, 0.1], **preprocessor}
    teacher = TransformersTeacher(save(build("DINOv3ViT"), tmp_path, **entries))
    images = torch.arange(3 * 16 * 16, dtype=torch.int64).remainder(256).to(torch.uint8).view(1, 3, 16, 16)
    torch.testing.assert_close(teacher._pixels(images), normalise(images, mean, std))


@pytest.mark.parametrize("content", [None, "{}"])
def test_preprocessor_when_absent_then_imagenet_with_a_warning(tmp_path: Path, content: str | None) -> None:
    save(build("DINOv3ViT"), tmp_path)
    path = tmp_path / "preprocessor_config.json"
    path.unlink() if content is None else path.write_text(content)
    with pytest.warns(UserWarning, match="ImageNet's are used"):
        assert TransformersTeacher(str(tmp_path)).normalisation == IMAGENET


def test_two_tower_folder_when_loaded_then_the_vision_tower_teaches(tmp_path: Path, images: Tensor) -> None:
    text = {**SMALL, "vocab_size": 50, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}
    vision = {**SMALL, "patch_size": 16, "image_size": 32}
    model = transformers.CLIPModel(transformers.CLIPConfig(text_config=text, vision_config=vision)).eval()
    teacher = TransformersTeacher(save(model, tmp_path))
    with torch.no_grad():
        pixels = normalise(images, CLIP_MEAN, CLIP_STD)
        expected = model.vision_model(pixels, interpolate_pos_encoding=True).pooler_output
    torch.testing.assert_close(teacher(images).cls, expected, rtol=1e-4, atol=1e-4)


def test_classifier_folder_when_it_has_no_pooler_then_nothing_stays_random(
    tmp_path: Path, images: Tensor
) -> None:
    model = transformers.ViTForImageClassification(transformers.ViTConfig(**SMALL, image_size=32))
    folder = save(model, tmp_path)
    first, second = TransformersTeacher(folder), TransformersTeacher(folder)
    assert first.fingerprint() == second.fingerprint()
    assert not any("pooler" in name for name in first.state_dict())
    assert first(images).patches.shape == (3, 15, 32)


def test_folder_when_weights_are_incomplete_then_refused(tmp_path: Path) -> None:
    folder = save(build("DINOv3ViT"), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
    with pytest.raises(ValueError, match=r"lack \d+ tensors of its architecture"):
        TransformersTeacher(folder)


@pytest.mark.parametrize("name", ["./nowhere", "/nowhere/at/all", "~/nowhere", "a/b/c"])
def test_path_when_it_leads_nowhere_then_says_so_without_asking_the_hub(name: str) -> None:
    with pytest.raises(FileNotFoundError, match="is not a folder"):
        TransformersTeacher(name)


def test_folder_when_it_holds_a_pickle_then_it_is_not_read(tmp_path: Path) -> None:
    folder = save(build("DINOv3ViT"), tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(FileNotFoundError, match="no weights in safetensors"):
        TransformersTeacher(folder)


def test_hub_when_offline_then_explains_the_ways_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(FileNotFoundError) as caught:
        TransformersTeacher(DINOV3)
    message = str(caught.value)
    assert message.startswith(f"teacher {DINOV3} cannot be loaded: ")
    for hint in (
        "hf auth login",
        "pass its folder",
        "cached targets",
        "EfficientNetTeacher",
        "OfflineTeacher",
    ):
        assert hint in message


def test_hub_when_gated_then_explains(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **options: object) -> None:
        raise OSError("You are trying to access a gated repo.\nMake sure to have access to it.")

    monkeypatch.setattr(transformers.AutoModel, "from_pretrained", refuse)
    with pytest.raises(FileNotFoundError, match=r"gated repo\.\nWays out:\n- gated .* accept the licence"):
        TransformersTeacher(DINOV3)


def test_a_model_with_code_of_its_own_is_refused_without_advice_to_trust_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*args: object, **options: object) -> None:
        raise ValueError(
            "contains custom code. Please pass the argument `trust_remote_code=True` to allow it"
        )

    monkeypatch.setattr(transformers.AutoModel, "from_pretrained", refuse)
    with pytest.raises(ValueError, match=r"name_or_path = a/b: .* never executed") as error:
        TransformersTeacher("a/b")
    assert "trust_remote_code" not in str(error.value)


def test_hub_when_loaded_then_safetensors_and_no_remote_code(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, object] = {}

    def load(source: str, **options: object) -> tuple[object, dict[str, object]]:
        asked.update(options, source=source)
        return build("DINOv3ViT"), {"missing_keys": set()}

    def absent(*args: object, **options: object) -> str:
        raise EntryNotFoundError("404")

    monkeypatch.setattr(transformers.AutoModel, "from_pretrained", load)
    monkeypatch.setattr(hub, "hf_hub_download", absent)
    with pytest.warns(UserWarning, match="ImageNet's are used"):
        TransformersTeacher(DINOV3, revision="abc")
    assert asked["source"] == DINOV3
    assert asked["revision"] == "abc"
    assert asked["use_safetensors"] is True
    assert asked["trust_remote_code"] is False


def test_hub_when_the_preprocessor_is_out_of_reach_then_not_taken_for_absent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unreachable(*args: object, **options: object) -> str:
        raise LocalEntryNotFoundError("no connection")

    monkeypatch.setattr(
        transformers.AutoModel,
        "from_pretrained",
        lambda *a, **k: (build("DINOv3ViT"), {"missing_keys": set()}),
    )
    monkeypatch.setattr(hub, "hf_hub_download", unreachable)
    with pytest.raises(FileNotFoundError, match="no connection\nWays out"):
        TransformersTeacher(DINOV3)


def test_offline_teacher_when_saved_and_loaded_then_is_the_same_teacher(
    tmp_path: Path, images: Tensor
) -> None:
    first = OfflineTeacher()
    mean_std = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}
    second = TransformersTeacher(save(first.model, tmp_path, **mean_std))
    assert second.fingerprint() == first.fingerprint()
    torch.testing.assert_close(second(images), first(images), rtol=0, atol=0)
