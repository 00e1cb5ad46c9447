from pathlib import Path

import pytest
from PIL import Image

from veca.figures.elastic import PAPER, Subject, elastic, measured_curves, paper_curves
from veca.probes.results import Cell, Results, write_results

CELLS = [
    Cell("run/best.ckpt", budget, 512, {"mIoU": value}, seed=seed)
    for budget, values in ((64, (0.5, 0.52)), (8, (0.4, 0.42)))
    for seed, value in enumerate(values)
]
RESULTS = Results(
    "segment",
    "run/best.ckpt",
    "ADE20K:data/ade",
    ["mIoU"],
    [*CELLS, Cell("DINOv3", None, 512, {"mIoU": 0.5})],
)


def test_the_papers_curves() -> None:
    by_name = {
        curve.name: dict(zip(curve.x, curve.y, strict=True)) for curve in paper_curves(PAPER["ade20k"])
    }
    assert list(by_name) == ["paper: VECA-S", "paper: VECA-S+", "paper: VECA-B", "paper: VECA-L"]
    assert (by_name["paper: VECA-B"][64], by_name["paper: VECA-B"][32], by_name["paper: VECA-B"][8]) == (
        50.69,
        49.49,
        44.51,
    )
    depth = paper_curves(PAPER["nyuv2"], relative=True)[0]
    assert depth.y[-1] == pytest.approx(100 * 0.4347 / 0.4975)  # a larger error keeps less
    assert paper_curves(Subject("sample", "mIoU")) == []
    kin = paper_curves(Subject("sample", "mIoU"), relative=True)
    assert [curve.name for curve in kin] == ["paper: VECA-B, voc12", "paper: VECA-B, ade20k"]


def test_measured_curves_have_means_and_spreads() -> None:
    (curve,) = measured_curves(RESULTS)
    assert curve.name == "run/best.ckpt, 512 px"
    assert curve.x == [64, 8]
    assert curve.y == pytest.approx([51, 41])
    assert curve.error == pytest.approx([2**0.5, 2**0.5])
    (kept,) = measured_curves(RESULTS, relative=True)
    assert kept.y == pytest.approx([100, 100 * 41 / 51])
    assert kept.error == pytest.approx([100 * 2**0.5 / 51] * 2)


def test_files_become_a_picture(tmp_path: Path) -> None:
    write_results(tmp_path / "segment.json", RESULTS)
    elastic(tmp_path / "one.png", results=str(tmp_path / "segment.json"))
    elastic(tmp_path / "paper.png")
    with Image.open(tmp_path / "one.png") as one, Image.open(tmp_path / "paper.png") as paper:
        assert paper.size[0] > 3 * one.size[0]
    with pytest.raises(FileNotFoundError, match=r"veca probe"):
        elastic(tmp_path / "x.svg", results="nowhere.json")
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(ValueError, match="not a probe's JSON"):
        elastic(tmp_path / "x.svg", results=str(tmp_path / "other.json"))
