"""The paper's rows, by the names that datasets have here."""

import pytest

from veca.probes.datasets import ENTRIES
from veca.probes.paper import paper_cells


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
