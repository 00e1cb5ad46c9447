"""The JSON that probes leave and the report reads, and the paper's rows in it."""

from pathlib import Path

import pytest

from veca.probes.datasets import ENTRIES
from veca.probes.results import (
    RATE,
    Cell,
    Results,
    Row,
    markdown,
    paper_cells,
    read_results,
    results_path,
    shown,
    table,
    write_results,
)

CELLS = [
    Cell("model", 8, 256, {"top-1": 0.5, "top-1 on v2": 0.4}, chosen={RATE: 0.1}),
    Cell("random weights", 8, 256, {"top-1": 0.2, "top-1 on v2": 0.1}, seed=0, chosen={RATE: 0.5}),
    Cell("random weights", 8, 256, {"top-1": 0.3, "top-1 on v2": 0.1}, seed=1, chosen={RATE: 0.1}),
]
RESULTS = Results(
    probe="linear",
    model="m",
    data="d",
    quantities=["top-1", "top-1 on v2"],
    cells=CELLS,
    counts={"train": {"ä": 3}},
    paper=[Cell("paper: VECA-B", 64, 256, {"top-1": 0.8193})],
)


SOUND = (
    '{"format": "veca-probe", "version": 2, "probe": "linear", "model": "m", "data": "d", '
    '"quantities": ["top-1"], "paper": [], '
    '"cells": [{"name": "a", "budget": 8, "resolution": 256, "values": {"top-1": 0.5}}]}'
)


def test_round_trip(tmp_path: Path) -> None:
    write_results(tmp_path / "linear.json", RESULTS)
    assert read_results(tmp_path / "linear.json") == RESULTS


def test_a_plain_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "knn.json").write_text(SOUND)
    results = read_results(tmp_path / "knn.json")
    assert results is not None
    assert results.cells[0].values == {"top-1": 0.5}


def test_markdown() -> None:
    assert markdown(table(RESULTS)).splitlines() == [
        "| features | budget | resolution | top-1 | top-1 on v2 | learning rate |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
        "| model | 8 | 256 | 50.0 % | 40.0 % | 0.1 |",
        "| random weights | 8 | 256 | 25.0 ± 7.1 % | 10.0 ± 0.0 % | 0.1, 0.5 |",
        "| paper: VECA-B | 64 | 256 | 81.9 % | – | – |",
    ]


def test_quantities_that_are_no_share_keep_their_unit() -> None:
    assert shown(Row("model", 8, 256, {"RMSE": 0.5}, {"RMSE": 0.01}), "RMSE") == "0.500 ± 0.010"


def test_other_json_is_not_ours(tmp_path: Path) -> None:
    for text in ("[]", "{}", '{"model_type": "veca"}'):
        (tmp_path / "config.json").write_text(text)
        assert read_results(tmp_path / "config.json") is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not valid JSON"),
        ('{"format": "veca-probe", "version": 1}', "another version"),
        ('{"format": "veca-probe", "version": 2}', "damaged"),
        ('{"format": "veca-probe", "version": 2, "cells": [{"a": 1}], "paper": []}', "damaged"),
        ("[" * 9999, "not valid JSON"),
        (SOUND.replace("0.5", "null"), "damaged"),
        (SOUND.replace('"top-1"]', "{}]"), "damaged"),
        (SOUND.replace('"model": "m"', '"model": 3'), "damaged"),
    ],
)
def test_damaged(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "knn.json").write_text(text)
    with pytest.raises(ValueError, match=message):
        read_results(tmp_path / "knn.json")


def test_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "weights.pt").touch()
    places = {"model": "model/knn.json", "weights.pt": "knn.json", "owner/name": "knn.json"}
    for model, expected in places.items():
        assert results_path(model, None, probe="knn") == Path(expected)
    assert results_path("model", Path("new/a.json"), probe="knn") == Path("new/a.json")
    assert Path("new").is_dir()


def test_rows_of_a_dataset() -> None:
    found = {(cell.name, cell.budget): cell.values["top-1"] for cell in paper_cells("CIFAR-10", "top-1")}
    assert found["paper: VECA-B", 8] == pytest.approx(0.9676)
    assert found["paper: DINOv3-B", None] == pytest.approx(0.9832)
    depth = {(cell.name, cell.budget): cell.values["RMSE"] for cell in paper_cells("NYUv2", "RMSE")}
    assert depth["paper: VECA-S", 64] == 0.4347
    assert all(cell.resolution == 512 for cell in paper_cells("ADE20K", "mIoU"))


def test_the_curves_give_the_budgets_asked_for() -> None:
    found = paper_cells("ADE20K", "mIoU", budgets=[32])
    base = {cell.budget: cell.values["mIoU"] for cell in found if cell.name == "paper: VECA-B"}
    assert base == pytest.approx({64: 0.5069, 32: 0.4949, 8: 0.4451})
    assert len(found) == len({(cell.name, cell.budget) for cell in found})
    assert {cell.resolution for cell in found} == {512}


def test_every_named_dataset_has_its_rows() -> None:
    quantities = {"classify": "top-1", "multilabel": "mAP", "segment": "mIoU", "depth": "RMSE"}
    for name, entry in ENTRIES.items():
        if name == "CamVid":  # a neighbour, not a set of the paper
            continue
        quantity = "top-1" if name == "ReaL" else quantities[entry.task]
        assert len(paper_cells(name, quantity)) >= 4, name


def test_other_data_and_other_quantities() -> None:
    assert paper_cells("my/images", "top-1") == []
    assert paper_cells("CIFAR-10", "accuracy") == []
