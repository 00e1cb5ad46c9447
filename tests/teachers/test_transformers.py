"""Loading from folders and the Hub. Nothing here touches the network."""

import json
from pathlib import Path

import pytest
import torch
import transformers
from huggingface_hub import constants
from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError
from torch import Tensor

from tests.teachers.models import CLIP_MEAN, CLIP_STD, SMALL, build, normalise, save
from veca.teachers import OfflineTeacher, TransformersTeacher
from veca.teachers import transformers as hub
from veca.teachers.base import IMAGENET
from veca.teachers.tokens import TokenTeacher

DINOV3 = "facebook/dinov3-vits16-pretrain-lvd1689m"


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
