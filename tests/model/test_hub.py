"""The packaged models: offline, whole, and refused when damaged."""

import shutil
from pathlib import Path

import pytest
import torch

import veca
from veca.model import hub


def test_nano_gives_the_same_features_each_time() -> None:
    assert veca.list_models() == ["nano"]
    model = veca.load_model("nano")
    assert not model.training
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    images = torch.rand(2, 3, 128, 128, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        first, second = (load(images, budget=32) for load in (model, veca.load_model("nano")))
    assert torch.equal(first.patches, second.patches)
    assert first.cls.shape == (2, 320)
    assert "EfficientNet" in (model.facts or {})["teacher"]


def test_a_damaged_packaged_model_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(hub.PACKAGED_FOLDER, tmp_path / "weights")
    weights = tmp_path / "weights" / "nano" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    monkeypatch.setattr(hub, "PACKAGED_FOLDER", tmp_path / "weights")
    with pytest.raises(ValueError, match=r"is damaged: its sha256 is .* Install veca again"):
        veca.load_model("nano")


def test_nano_is_no_size() -> None:
    with pytest.raises(ValueError, match=r"nano is a model with weights: veca\.load_model\('nano'\)"):
        veca.create_model("nano")
