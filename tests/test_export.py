"""What `veca export` promises: a file equal to the model at sizes it was not traced at, or no file."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import veca.export as command
from veca import Veca, create_model
from veca.checkpoint import convert
from veca.export import export

onnxruntime = pytest.importorskip("onnxruntime", reason="the export extra is not installed")
pytest.importorskip("onnxscript", reason="the export extra is not installed")

SIZES = ((224, 224), (256, 384), (512, 512))


@pytest.fixture(scope="module")
def student() -> Veca:
    torch.manual_seed(0)
    model = create_model("tiny", width=64, depth=2, num_heads=2).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return model


@pytest.fixture(scope="module")
def folder(student: Veca, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    student.save_pretrained(path)
    return path


@torch.no_grad()
@pytest.mark.parametrize("budget", [8, 64])
def test_onnx_equals_the_model(student: Veca, folder: Path, tmp_path: Path, budget: int) -> None:
    export(str(folder), tmp_path / "model.onnx", budget=budget)
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    for height, width in SIZES:
        for batch in (1, 3):
            images = torch.randn(batch, 3, height, width)
            found = session.run(["cls", "patches", "cores"], {"images": images.numpy()})
            for array, wanted in zip(found, student(images, budget=budget)[:3], strict=True):
                np.testing.assert_allclose(array, wanted.numpy(), rtol=0, atol=1e-4)


def test_onnx_says_what_it_takes(folder: Path, tmp_path: Path) -> None:
    export(str(folder), tmp_path / "model.onnx", budget=16, half=True)
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    (images,), notes = session.get_inputs(), session.get_modelmeta().custom_metadata_map
    assert images.shape == ["batch", 3, "height", "width"]
    assert images.type == "tensor(float)"
    assert json.loads(notes["budget"]) == 16
    assert json.loads(notes["mean"]) == [0.485, 0.456, 0.406]
    assert (tmp_path / "model.onnx").stat().st_size < 0.7 * (folder / "model.safetensors").stat().st_size


@torch.no_grad()
def test_a_torch_program_equals_the_model(student: Veca, folder: Path, tmp_path: Path) -> None:
    export(str(folder), tmp_path / "model.pt2", format="torch", budget=8)
    module = torch.export.load(tmp_path / "model.pt2").module()
    images = torch.randn(2, 3, 48, 80)
    for found, wanted in zip(module(images), student(images, budget=8)[:3], strict=True):
        assert torch.allclose(found, wanted, atol=1e-5)


def test_a_mismatch_leaves_no_file(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = command.open_program

    def wrong(path: Path):  # type: ignore[no-untyped-def]
        network = good(path)
        return lambda images: tuple(output + 1e-3 for output in network(images))

    monkeypatch.setattr(command, "open_program", wrong)
    with pytest.raises(ValueError, match=r"differs from the model: cls at \(1, 3, 224, 224\) is off by 1"):
        export(str(folder), tmp_path / "model.pt2", format="torch", budget=8)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("out", "options", "message"),
    [
        ("model.pt2", {}, "out must be a file that ends in .onnx"),
        ("model.onnx", {"budget": 12}, "budget must be one of 8, 16, 24"),
    ],
)
def test_mistakes_are_told_before_the_work(
    folder: Path, tmp_path: Path, out: str, options: dict[str, int], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        export(str(folder), tmp_path / out, **options)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_a_folder_that_takes_no_file_is_found_before_the_model_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("veca.utils.files.os.access", lambda path, mode: path != tmp_path)
    with pytest.raises(OSError, match=r"cannot be written: .*: no files can be made in it\. Choose another"):
        export("no-model", tmp_path / "new" / "a.pt2", format="torch")
    (tmp_path / "a.ckpt").touch()
    with pytest.raises(OSError, match="no files can be made in it"):
        convert(tmp_path / "a.ckpt", tmp_path / "model")
