"""A saved folder in transformers: the same numbers through every Auto class."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from transformers import AutoBackbone, AutoConfig, AutoImageProcessor, AutoModel, pipeline

import veca
from veca import Veca
from veca.interop import VecaBackbone, VecaConfig, VecaImageProcessor, VecaModel

IMAGES = torch.randn(2, 3, 64, 96, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module", autouse=True)
def quiet() -> None:
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


@pytest.fixture(scope="module")
def student() -> Veca:
    torch.manual_seed(0)
    model = veca.create_model("tiny", width=32, depth=3, num_heads=2, num_cores=16, out_width=24).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


@pytest.fixture(scope="module")
def folder(student: Veca, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved")
    student.facts = {"teacher": "a good one"}
    student.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def picture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("picture") / "photo.png"
    pixels = np.random.default_rng(0).integers(0, 255, (90, 140, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return path


@torch.no_grad()
@pytest.mark.parametrize("budget", [None, 8])
def test_auto_model_equals_the_model(student: Veca, folder: Path, budget: int | None) -> None:
    model = AutoModel.from_pretrained(folder)
    assert type(model) is VecaModel
    assert not model.training
    features, outputs = student(IMAGES, budget=budget), model(IMAGES, budget=budget)
    cores = budget or 16
    assert torch.equal(outputs.pooler_output, features.cls)
    assert torch.equal(outputs.last_hidden_state[:, :cores], features.cores)
    assert torch.equal(outputs.last_hidden_state[:, cores:], features.patches)
    assert torch.equal(model(IMAGES, budget=budget, return_dict=False)[1], features.cls)


@torch.no_grad()
def test_the_budget_of_the_config_holds_where_a_call_names_none(student: Veca, folder: Path) -> None:
    model = AutoModel.from_pretrained(folder, budget=8)
    assert torch.equal(model(IMAGES).pooler_output, student(IMAGES, budget=8).cls)
    assert torch.equal(model(IMAGES, budget=16).pooler_output, student(IMAGES).cls)
    with pytest.raises(ValueError, match="budget must be one of 8, 16; got 12"):
        model(IMAGES, budget=12)


@torch.no_grad()
def test_what_transformers_saves_our_loader_reads(student: Veca, folder: Path, tmp_path: Path) -> None:
    AutoModel.from_pretrained(folder, budget=8).save_pretrained(tmp_path)
    loaded = veca.load_model(tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(loaded(IMAGES)[:3], student(IMAGES)[:3], strict=True))
    assert loaded.facts == student.facts
    again = AutoModel.from_pretrained(tmp_path)
    assert again.config.budget == 8
    assert torch.equal(again(IMAGES).pooler_output, student(IMAGES, budget=8).cls)


@pytest.mark.parametrize("reader", [AutoModel, AutoBackbone])
def test_a_flipped_bit_is_found(folder: Path, tmp_path: Path, reader: Any) -> None:
    reader.from_pretrained(folder).save_pretrained(tmp_path)  # transformers writes; the checksum is ours
    path = tmp_path / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-100] ^= 1
    path.write_bytes(content)
    for read in (reader.from_pretrained, veca.load_model):
        with pytest.raises(ValueError, match=r"model.safetensors is damaged: .*checksum"):
            read(tmp_path)


@torch.no_grad()
def test_backbones_give_maps_of_the_layers_asked_for(student: Veca, folder: Path) -> None:
    backbone = AutoBackbone.from_pretrained(folder, out_features=["stem", "stage1", "stage3"])
    assert type(backbone) is VecaBackbone
    assert backbone.channels == [32, 32, 32]
    outputs = backbone(IMAGES, budget=8)
    assert [IMAGES.shape[-1] // maps.shape[-1] for maps in outputs.feature_maps] == [16, 16, 16]
    assert [IMAGES.shape[-2] // maps.shape[-2] for maps in outputs.feature_maps] == [16, 16, 16]
    wanted = student.get_intermediate_layers(
        IMAGES, n=[0, 2], reshape=True, return_class_token=True, budget=8
    )
    for (maps, cls), found, token in zip(wanted, outputs.feature_maps[1:], outputs.cls_tokens, strict=True):
        assert torch.equal(found, maps)
        assert torch.equal(token, cls)


@torch.no_grad()
def test_backbones_by_number_and_without_norm(student: Veca, folder: Path) -> None:
    backbone = AutoBackbone.from_pretrained(folder, out_indices=[0, 2], apply_layernorm=False)
    assert backbone.out_features == ["stem", "stage2"]
    stem, second = backbone(IMAGES).feature_maps
    assert torch.equal(stem, student.patch_embed(IMAGES))
    assert torch.equal(second, student.get_intermediate_layers(IMAGES, n=[1], reshape=True, norm=False)[0])
    assert len(AutoBackbone.from_pretrained(folder)(IMAGES).feature_maps) == 1


def test_configs_speak_both_vocabularies(folder: Path) -> None:
    config = AutoConfig.from_pretrained(folder)
    assert type(config) is VecaConfig
    assert (config.hidden_size, config.num_hidden_layers, config.num_attention_heads) == (32, 3, 2)
    assert config.size == veca.load_model(folder).size
    with pytest.raises(ValueError, match="width must be a multiple of num_heads"):
        VecaConfig(width=30, num_heads=4)


def test_the_processor_is_our_preprocessing(folder: Path, picture: Path) -> None:
    processor = AutoImageProcessor.from_pretrained(folder)
    assert type(processor) is VecaImageProcessor
    values = processor([Image.open(picture), picture], resolution=64)["pixel_values"]
    wanted = veca.preprocess(picture, resolution=64)
    assert torch.equal(values, wanted.expand(2, -1, -1, -1))
    assert processor(picture)["pixel_values"].shape == (1, 3, 256, 256)
    with pytest.raises(ValueError, match="uint8 array"):
        processor(np.zeros((8, 8, 3), dtype=np.float32))


@torch.no_grad()
def test_pipelines_run_from_the_folder(student: Veca, folder: Path, picture: Path) -> None:
    extract = pipeline("image-feature-extraction", model=str(folder))
    features = student(veca.preprocess(picture))
    tokens = extract(str(picture), return_tensors=True)
    assert torch.allclose(tokens[:, 16:], features.patches, atol=1e-5)
    pooled = extract([str(picture)] * 2, pool=True, return_tensors=True, batch_size=2)
    assert torch.allclose(pooled[1], features.cls, atol=1e-5)


def test_what_is_not_given_is_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match="use AutoBackbone with out_features"):
        AutoModel.from_pretrained(folder)(IMAGES, output_hidden_states=True)


def test_other_folders_go_their_own_way(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "another"}))
    with pytest.raises(Exception, match=r"(?i)repo id|timm|offline|connect"):
        AutoBackbone.from_pretrained(str(tmp_path))
