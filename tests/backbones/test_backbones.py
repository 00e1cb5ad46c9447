"""Every kind of backbone against calling its model by hand, and the specs that name them."""

import json
from pathlib import Path

import pytest
import torch
import transformers
from torch import Tensor
from torch.nn import functional as F

from tests.teachers.models import CLIP_MEAN, CLIP_STD, build, normalise, save
from veca import Veca
from veca.backbones import (
    PEERS,
    MapNetwork,
    PixelsNetwork,
    ProbedModel,
    RadioNetwork,
    TokenNetwork,
    open_model,
    random_model,
)
from veca.data import views as pixels
from veca.teachers import OfflineTeacher

TOKENS = {  # short name → how a tiny one is built, tokens before the patches
    "clip-b16": ("CLIPVision", {"patch_size": 16, "image_size": 32}, 1),
    "openclip-b16": ("CLIPVision", {"patch_size": 16, "image_size": 32}, 1),
    "dfn-clip-b16": ("CLIPVision", {"patch_size": 16, "image_size": 32, "hidden_act": "quick_gelu"}, 1),
    "dinov2-b14": ("Dinov2", {"patch_size": 14, "image_size": 56}, 1),
    "dinov2-reg-b14": ("Dinov2WithRegisters", {"patch_size": 14, "image_size": 56}, 5),
    "dinov3-b16": ("DINOv3ViT", {"patch_size": 16, "num_register_tokens": 4}, 5),
    "siglip2-b16": ("SiglipVision", {"patch_size": 16, "image_size": 32}, 0),
}


def random_images(height: int, width: int) -> Tensor:
    generator = torch.Generator().manual_seed(height)
    return torch.randint(0, 256, (2, 3, height, width), dtype=torch.uint8, generator=generator)


def close(actual: Tensor | None, expected: Tensor) -> None:
    assert actual is not None
    assert actual.dtype == torch.float32
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", TOKENS)
def test_peer_has_its_own_normalisation_global_feature_and_grid(name: str, tmp_path: Path) -> None:
    kind, fields, num_others = TOKENS[name]
    model = build(kind, **fields)
    found = open_model(f"{name}:{save(model, tmp_path)}")
    patch = int(str(fields["patch_size"]))
    images = random_images(5 * patch, 7 * patch)  # neither the model's size nor square
    options = {} if "DINO" in kind.upper() else {"interpolate_pos_encoding": True}
    with torch.no_grad():
        output = model(normalise(images, CLIP_MEAN, CLIP_STD), **options)
        tokens = output.last_hidden_state
        tokens = model.post_layernorm(tokens) if kind == "CLIPVision" else tokens
    features = found.at(None)(images)
    assert (found.patch_size, features.grid, found.budgets) == (patch, (5, 7), ())
    assert features.has_cls == (num_others > 0)
    close(features.cls, tokens[:, 0] if num_others else output.pooler_output)
    close(features.patches, tokens[:, num_others:])
    assert found.default_resolution("classify") == (224 if patch == 14 else 256)
    assert found.default_resolution("multilabel") == (224 if patch == 14 else 256)
    assert found.default_resolution("segment") == found.default_resolution("depth")
    assert found.default_resolution("depth") == (518 if patch == 14 else 512)


def test_every_baseline_of_the_paper_has_a_name() -> None:
    assert set(PEERS) == {*TOKENS, "c-radiov3-b"}


def test_clip_with_a_text_tower_is_its_image_tower(tmp_path: Path) -> None:
    config = transformers.CLIPConfig(
        text_config={"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 99},
        vision_config={"hidden_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2, "patch_size": 16},
        projection_dim=24,
    )
    model = transformers.CLIPModel(config).eval()
    features = open_model(f"clip-b16:{save(model, tmp_path)}").at(None)(random_images(64, 64))
    assert features.cls.shape == (2, 48)  # before the projection


def test_cnn_gives_its_last_map(tmp_path: Path) -> None:
    model = transformers.ConvNextModel(transformers.ConvNextConfig(depths=[1] * 4, hidden_sizes=[8] * 4))
    found = open_model(f"hf:{save(model.eval(), tmp_path)}")
    images = random_images(64, 128)
    with torch.no_grad():
        output = model(normalise(images, CLIP_MEAN, CLIP_STD))
    features = found.at(None)(images)
    assert isinstance(found, MapNetwork)
    assert (found.patch_size, features.grid, features.has_cls) == (32, (2, 4), False)
    close(features.cls, output.pooler_output)
    close(features.patches, output.last_hidden_state.flatten(2).transpose(1, 2))


def test_hierarchical_transformer_gives_its_last_tokens(tmp_path: Path) -> None:
    config = transformers.SwinConfig(
        embed_dim=8, depths=[1, 1], num_heads=[1, 2], window_size=4, image_size=64
    )
    model = transformers.SwinModel(config).eval()
    found = open_model(f"hf:{save(model, tmp_path)}")
    images = random_images(64, 128)
    with torch.no_grad():
        output = model(normalise(images, CLIP_MEAN, CLIP_STD), interpolate_pos_encoding=True)
    features = found.at(None)(images)
    assert (found.patch_size, features.grid) == (8, (8, 16))
    close(features.patches, output.last_hidden_state)


def test_model_without_a_grid_is_refused(tmp_path: Path) -> None:
    fields = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    model = transformers.DeiTModel(transformers.DeiTConfig(**fields, image_size=256)).eval()
    with pytest.raises(ValueError, match="DeiTModel cannot be probed: 258 tokens of 256×256 pixels"):
        open_model(f"hf:{save(model, tmp_path)}")


REMOTE = """
import torch, transformers
class TinyConfig(transformers.PretrainedConfig):
    model_type = "tiny_radio"
class TinyModel(transformers.PreTrainedModel):
    config_class = TinyConfig
    def __init__(self, config):
        super().__init__(config)
        self.conv = torch.nn.Conv2d(3, 4, 16, 16)
        self.post_init()
    def forward(self, x):
        patches = self.conv(x).flatten(2).transpose(1, 2)
        return patches.mean(1).repeat(1, 3), patches
"""


def test_remote_code_runs_only_when_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from safetensors.torch import save_file
    from transformers import dynamic_module_utils

    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(str(tmp_path / "cache"))
    folder = tmp_path / "radio"
    folder.mkdir()
    (folder / "tiny.py").write_text(REMOTE)
    classes = {"AutoConfig": "tiny.TinyConfig", "AutoModel": "tiny.TinyModel"}
    (folder / "config.json").write_text(json.dumps({"model_type": "tiny_radio", "auto_map": classes}))
    conv = torch.nn.Conv2d(3, 4, 16, 16)
    tensors = {f"conv.{name}": tensor.detach() for name, tensor in conv.named_parameters()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"c-radiov3-b comes with code of its own .* --allow-remote-code"):
        open_model(f"c-radiov3-b:{folder}")
    found = open_model(f"c-radiov3-b:{folder}", allow_remote_code=True)
    images = random_images(32, 48)
    features = found.at(None)(images)
    assert isinstance(found, RadioNetwork)
    close(features.patches, conv(images / 255).flatten(2).transpose(1, 2))
    assert (features.cls.shape, features.grid) == ((2, 12), (2, 3))


def test_radio_of_transformers_needs_no_remote_code(tmp_path: Path) -> None:
    if not hasattr(transformers, "RadioConfig"):
        pytest.skip("this release of transformers has no RADIO")
    config = transformers.RadioConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=2, max_img_size=64, num_registers=3
    )
    model = transformers.RadioModel(config).eval()
    found = open_model(f"hf:{save(model, tmp_path)}")
    images = random_images(32, 48)
    with torch.no_grad():
        output = model(images / 255)
    features = found.at(None)(images)
    close(features.cls, output.summary)
    close(features.patches, output.features)
    assert (features.cls.shape, features.grid, found.patch_size) == ((2, 64), (2, 3), 16)


def test_veca_at_a_budget(tiny_student: Veca, tmp_path: Path) -> None:
    tiny_student.save_pretrained(tmp_path / "m")
    found, images = open_model(str(tmp_path / "m")), random_images(32, 48)
    assert found.budgets == (4, 8, 12, 16)
    for budget in found.budgets:
        with torch.no_grad():
            expected = tiny_student.eval()(pixels.normalise(images), budget=budget)
        features = found.at(budget)(images)
        close(features.cls, expected.cores[:, 0])
        close(features.patches, expected.patches)
        assert (features.grid, features.has_cls) == ((2, 3), True)
    assert found.at(None).budget == 16
    with pytest.raises(ValueError, match=r"5 is not a budget of .*; its budgets are 4, 8, 12, 16"):
        found.at(5)


def test_fixed_compute_has_no_budget() -> None:
    with pytest.raises(ValueError, match=r"8 is not a budget of pixels; .* its compute is fixed"):
        open_model("pixels").at(8)


def test_teacher_is_what_the_student_sees() -> None:
    images = random_images(32, 48)
    expected = OfflineTeacher("tiny")(images)
    for spec in ("teacher:OfflineTeacher", "teacher:veca.teachers.OfflineTeacher:tiny"):
        features = open_model(spec).at(None)(images)
        close(features.cls, expected.cls)
        close(features.patches, expected.patches)


def test_a_pooled_vector_is_no_cls_token() -> None:
    images = torch.zeros(1, 3, 64, 64, dtype=torch.uint8)
    assert open_model("teacher:OfflineTeacher").at()(images).has_cls
    assert not open_model("teacher:EfficientNetTeacher").at()(images).has_cls


def test_pixels() -> None:
    images = random_images(32, 48)
    found = open_model("pixels")
    features = found.at(None)(images)
    close(features.cls, F.interpolate(pixels.normalise(images), size=16, mode="area").flatten(1))
    close(features.patches, F.unfold(pixels.normalise(images), 16, stride=16).transpose(1, 2))
    small = random_images(16, 16)
    close(found.at(None)(small).cls, pixels.normalise(small).flatten(1))
    assert (found.default_resolution("classify"), found.default_resolution("segment")) == (16, 512)


def test_random_weights_depend_on_their_seed_alone(tiny_student: Veca, tmp_path: Path) -> None:
    tiny_student.save_pretrained(tmp_path)
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = random_model(tiny_student.size, seed=0)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    again, other = open_model(str(tmp_path), seed=0), open_model(str(tmp_path), seed=1)
    assert again.at(4).fingerprint() != other.at(4).fingerprint()
    close(
        again.at(4)(random_images(32, 32)).cls,
        first.eval()(pixels.normalise(random_images(32, 32)), budget=4).cls,
    )
    assert first.size == tiny_student.size
    assert open_model("random:tiny").budgets == (8, 16, 24, 32, 40, 48, 56, 64)


def test_random_weights_of_a_peer(tmp_path: Path) -> None:
    folder = save(build("DINOv3ViT", patch_size=16, num_register_tokens=4), tmp_path)
    prints = [open_model(f"hf:{folder}", seed=seed).at(None).fingerprint() for seed in (0, 0, 1, None)]
    assert prints[0] == prints[1]
    assert len(set(prints)) == 3


def fingerprints(model: ProbedModel) -> list[str]:
    return [model.at(budget).fingerprint() for budget in model.budgets or (None,)]


def test_fingerprint_changes_with_weights_normalisation_and_budget(
    tiny_student: Veca, tmp_path: Path
) -> None:
    tiny_student.save_pretrained(tmp_path / "a")
    with torch.no_grad():
        tiny_student.patch_embed.weight[0, 0, 0, 0] += 1e-3
    tiny_student.save_pretrained(tmp_path / "b")
    model = build("DINOv3ViT", patch_size=16)
    specs = [str(tmp_path / "a"), str(tmp_path / "b"), "pixels", "teacher:OfflineTeacher"]
    specs += [f"hf:{save(model, tmp_path / 'c')}", f"hf:{save(model, tmp_path / 'd', image_mean=[0, 0, 0])}"]
    prints = [text for spec in specs for text in fingerprints(open_model(spec))]
    assert len(set(prints)) == len(prints) == 4 + 4 + 4
    assert fingerprints(open_model(specs[0])) == prints[:4]


def test_images_of_another_kind_are_refused() -> None:
    backbone = open_model("pixels").at(None)
    for images in (random_images(30, 32), random_images(32, 32).float()):
        with pytest.raises(
            ValueError, match="pixels takes uint8 images whose sides are multiples of 16; got"
        ):
            backbone(images)


@pytest.mark.parametrize(
    ("spec", "error", "message"),
    [
        ("nowhere.pt", FileNotFoundError, "no model at nowhere.pt.*clip-b16.*random:SIZE and pixels"),
        ("random:huge", ValueError, "random:SIZE takes one of tiny, small"),
        ("teacher:Nobody", ValueError, "teacher:CLASS must name a teacher; got 'Nobody'"),
        ("teacher:pathlib.Path", ValueError, "teacher:CLASS must name a teacher; got 'pathlib.Path'"),
        ("teacher:", ValueError, "teacher:CLASS must name a teacher; got ''"),
        ("dfn-clip-b16", FileNotFoundError, "in open_clip's format alone.*give dfn-clip-b16:FOLDER"),
        ("hf:./nowhere", FileNotFoundError, "./nowhere is not a folder"),
    ],
)
def test_bad_specs(spec: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        open_model(spec)


def test_seed_where_there_is_nothing_to_draw() -> None:
    with pytest.raises(ValueError, match="pixels has no counterpart with random weights; got seed=0"):
        open_model("pixels", seed=0)


def test_networks_are_chosen_by_what_the_model_gives(tmp_path: Path) -> None:
    assert isinstance(open_model("pixels"), PixelsNetwork)
    vit = build("ViT", image_size=32)
    assert isinstance(open_model(f"hf:{save(vit, tmp_path)}"), TokenNetwork)
