"""What a probe measured beside the paper's curves, and what FLOPs and latency come to."""

import json
from pathlib import Path

import pytest
from PIL import Image

from veca.figures.curves import (
    PAPER,
    PEER,
    CostPart,
    CostPlan,
    Subject,
    cost,
    count_flops,
    elastic,
    measure,
    measured_curves,
    paper_curves,
)
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
    by_name = {line.name: dict(line.points) for line in paper_curves(PAPER["ade20k"])}
    assert list(by_name) == ["paper: VECA-S", "paper: VECA-S+", "paper: VECA-B", "paper: VECA-L"]
    assert (by_name["paper: VECA-B"][64], by_name["paper: VECA-B"][32], by_name["paper: VECA-B"][8]) == (
        50.69,
        49.49,
        44.51,
    )
    depth = paper_curves(PAPER["nyuv2"], relative=True)[0]
    assert depth.points[-1][1] == pytest.approx(100 * 0.4347 / 0.4975)  # a larger error keeps less
    assert paper_curves(Subject("sample", "mIoU")) == []
    kin = paper_curves(Subject("sample", "mIoU"), relative=True)
    assert [curve.name for curve in kin] == ["paper: VECA-B, voc12", "paper: VECA-B, ade20k"]


def test_measured_curves_have_means_and_spreads() -> None:
    (curve,) = measured_curves(RESULTS)
    assert curve.name == "run/best.ckpt, 512 px"
    assert curve.points == [(64, pytest.approx(51)), (8, pytest.approx(41))]
    assert curve.error == pytest.approx([2**0.5, 2**0.5])
    (kept,) = measured_curves(RESULTS, relative=True)
    assert [value for _, value in kept.points] == pytest.approx([100, 100 * 41 / 51])
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


@pytest.mark.parametrize(("size", "veca", "dino"), [("small", 5.72, 30.67), ("base", 21.25, 71.02)])
def test_flops_are_the_papers(size: str, veca: float, dino: float) -> None:
    flops = count_flops(CostPlan(size, "attention", [64], 1), resolution=1024)
    assert round(flops["Veca, 64 cores"] / 1e9, 2) == veca
    assert round(flops[PEER] / 1e9, 2) == dino


def test_attention_and_model_are_timed_beside_their_peer() -> None:
    parts: tuple[CostPart, ...] = ("attention", "model")
    for part in parts:
        timings = measure(CostPlan("tiny", part, [8], 1), resolution=32, batch=1)
        assert all(timings[name].median > 0 for name in ("Veca, 8 cores", PEER))


def test_numbers_lie_beside_the_picture(tmp_path: Path) -> None:
    out = tmp_path / "new" / "cost.png"
    cost(out, size="tiny", resolutions="64", batch_sizes="2", batch_resolution=32, repeats=1, budgets="8,64")
    body = json.loads(out.with_suffix(".json").read_text())
    assert out.stat().st_size > 10_000
    names = ["Veca, 8 cores", "Veca, 64 cores", PEER]
    for table, key in (("flops", "64"), ("seconds", "64"), ("seconds_of_batch", "2")):
        assert list(body[table]) == [key]
        assert all(list(row) == names for row in body[table].values())
    assert body["flops"]["64"][names[0]] < body["flops"]["64"][names[1]]
    assert all(row[name]["median"] > 0 for row in body["seconds"].values() for name in names)


def test_an_unknown_size_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="size must be one of tiny, small"):
        cost(tmp_path / "x.png", size="huge")
