"""Planted features reach 100 %, noise reaches chance, and the judged labels decide nothing."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.probes.fakes import Install, MemorySplit, label_data, label_items
from veca.probes.classify import hit_share, linear, mean_precision
from veca.probes.datasets.splits import IGNORED, Dataset, Item


def run(model: str, out: Path, **options: object) -> list[dict[str, object]]:
    linear(model, "data", out=out / "linear.json", **{"seeds": 0, "epochs": 5, **options})
    cells: list[dict[str, object]] = json.loads((out / "linear.json").read_text())["cells"]
    return cells


def test_planted_and_noise(tmp_path: Path, install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    models = install({"data": label_data(120, 300, num_classes=6)})
    cells = run("planted", tmp_path, compare="noise")
    found = [(cell["name"], cell["budget"], cell["values"]) for cell in cells]
    assert found[0] == ("model", 4, {"top-1": 1.0, "top-5": 1.0})
    assert found[1][:2] == ("model", 8)
    name, budget, values = found[2]
    assert (name, budget) == ("noise", None)
    assert abs(values["top-1"] - 1 / 6) < 5 * math.sqrt(5 / 36 / 300)
    assert found[3][0] == "raw pixels"
    name, _, values = found[4]
    assert name == "constant"
    assert values == {"top-1": pytest.approx(1 / 6), "top-5": pytest.approx(5 / 6)}
    assert sum(call[0] for call in models["planted"].calls) == 2 * 420
    printed = capsys.readouterr().out
    assert "train: 120 images, 6 classes of 20 images" in printed
    assert "| model | 4 | 16 | 100.0 % | 100.0 % |" in printed
    assert (tmp_path / "linear.md").read_text().startswith("| features | budget | resolution | top-1 |")


def test_the_choice_never_sees_the_judged_labels(tmp_path: Path, install: Install) -> None:
    data = label_data(100, 60, num_classes=4)
    install({"data": data})
    before = run("planted", tmp_path / "a", compare="noise")
    test = data.splits["test"]
    assert isinstance(test, MemorySplit)
    order = np.random.default_rng(0).permutation(60)
    shuffled = [item._replace(target=test.items[order[i]].target) for i, item in enumerate(test.items)]
    install({"data": data._replace(splits={**data.splits, "test": MemorySplit(shuffled)})})
    after = run("planted", tmp_path / "b", compare="noise")
    assert [cell["chosen"] for cell in before] == [cell["chosen"] for cell in after]
    assert before[0]["values"] != after[0]["values"]
    assert len(before[0]["chosen"]["validation"]) == 13  # type: ignore[index, arg-type]


def test_the_val_split_chooses_where_a_test_split_is_judged(tmp_path: Path, install: Install) -> None:
    data = label_data(60, 30, num_classes=3)
    wrong = label_items([(i + 1) % 3 for i in range(30)], seed=500)
    flipped = MemorySplit([item._replace(target=(item.target + 1) % 3) for item in wrong.items])
    install({"data": data._replace(splits={**data.splits, "val": flipped})})
    (cell, *_) = run("planted", tmp_path)
    assert set(cell["chosen"]["validation"].values()) == {0.0}  # type: ignore[index]


def test_a_finished_cell_is_not_repeated(
    tmp_path: Path, install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    models = install({"data": label_data()})
    first = run("planted", tmp_path, budgets="4")
    models["planted"].calls.clear()
    capsys.readouterr()
    again = run("planted", tmp_path, budgets="4,8")
    assert "model, budget 4, 16 px: measured before" in capsys.readouterr().out
    assert again[0] == first[0]
    assert sum(call[0] for call in models["planted"].calls) == 70  # budget 8 alone
    models["planted"].calls.clear()
    third = run("planted", tmp_path, budgets="4,8", epochs=6)  # other heads, the same features
    assert models["planted"].calls == []
    assert third[0]["key"] != first[0]["key"]


def test_random_weights_have_a_spread(tmp_path: Path, install: Install) -> None:
    install({"data": label_data()})
    cells = run("planted", tmp_path, budgets="8", seeds=2)
    assert [(cell["name"], cell["seed"]) for cell in cells] == [
        ("model", None),
        ("random weights", 0),
        ("random weights", 1),
        ("raw pixels", None),
        ("constant", None),
    ]
    row = (tmp_path / "linear.md").read_text().splitlines()[3]
    assert "±" in row


def test_several_labels(tmp_path: Path, install: Install) -> None:
    def split(number: int, seed: int) -> MemorySplit:
        items = label_items([i % 3 for i in range(number)], seed=seed).items
        rows = np.eye(3, dtype=np.uint8)
        rows[0, 2] = IGNORED
        return MemorySplit([Item(one.name, one.image, rows[one.target]) for one in items])

    splits = {"train": split(60, 0), "test": split(30, 900)}
    install({"data": Dataset("voc", "multilabel", ["a", "b", "c"], {**splits})})
    cells = run("planted", tmp_path, compare="noise")
    assert cells[0]["values"] == {"mAP": 1.0}
    assert cells[2]["values"]["mAP"] < 0.8  # type: ignore[index]
    assert cells[-1]["name"] == "constant"
    # The share of images that have the class, of those that count: 1/3, 1/3 and 10 of 20.
    assert cells[-1]["values"]["mAP"] == pytest.approx((1 / 3 + 1 / 3 + 1 / 2) / 3)  # type: ignore[index]


def test_transfer(tmp_path: Path, install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    data = label_data(60, 30, num_classes=3)
    other = label_items([0, 1, 2, 0], seed=77)
    valid = [[1, 1, 0], [0, 0, 1], [0, 0, 1], [0, 0, 0]]
    real = [Item(f"r{i}", one.image, np.array(valid[i], dtype=np.uint8)) for i, one in enumerate(other.items)]
    sets = {
        "data": data,
        "v2": data._replace(splits={"test": other}),
        "real": data._replace(task="multilabel", splits={"val": MemorySplit(real)}),
        "alien": data._replace(classes=["x", "y", "z"]),
    }
    install(sets)
    cells = run("planted", tmp_path, transfer="v2,real")
    assert cells[0]["values"] == {"top-1": 1.0, "top-1 on v2": 1.0, "top-1 on real": pytest.approx(2 / 3)}
    assert "4 images of real, 1 without a label do not count" in capsys.readouterr().out
    with pytest.raises(
        ValueError, match="alien has other classes than data: 3 and 3, first different 'class0' and 'x'"
    ):
        run("planted", tmp_path, transfer="alien")
    sets["numbers"] = data._replace(classes=["0", "1", "2"])
    assert "top-1 on numbers" in run("planted", tmp_path, transfer="numbers")[0]["values"]  # type: ignore[operator]
    sets["data"] = data._replace(dropped=("class3",))  # then labels are other ones
    with pytest.raises(ValueError, match="numbers has other classes than data"):
        run("planted", tmp_path, transfer="numbers")


def test_shares_equal_slow_counts() -> None:
    generator = torch.Generator().manual_seed(0)
    logits, labels = (
        torch.randn(200, 9, generator=generator),
        torch.randint(0, 9, (200,), generator=generator),
    )
    for top in (1, 5):
        slow = sum(
            int(label in sorted(range(9), key=lambda c, row=row: -row[c])[:top])
            for row, label in zip(logits.tolist(), labels.tolist(), strict=True)
        )
        assert hit_share(logits, labels, top=top) == pytest.approx(slow / 200)


def test_mean_precision_by_hand() -> None:
    """Class 0: hits at ranks 1 and 3 of the three that count; class 1: at rank 2; class 2 has no image."""
    logits = torch.tensor([[0.9, 0.1, 0.5], [0.8, 0.9, 0.5], [0.7, 0.8, 0.5], [0.6, 0.2, 0.5]])
    targets = torch.tensor([[1, 0, 0], [IGNORED, 0, 0], [0, 1, 0], [1, 0, 0]], dtype=torch.uint8)
    expected = ((1 / 1 + 2 / 3) / 2 + 1 / 2) / 2
    assert mean_precision(logits, targets) == pytest.approx(expected)


def test_bad_numbers(tmp_path: Path, install: Install) -> None:
    install({"data": label_data()})
    with pytest.raises(ValueError, match="epochs must be at least 1; got 0"):
        run("planted", tmp_path, epochs=0)
    with pytest.raises(ValueError, match="seeds must be at least 0; got -1"):
        run("planted", tmp_path, seeds=-1)
    with pytest.raises(ValueError, match="out must be a file"):
        linear("planted", "data", out=tmp_path)
    data = label_data()
    install({"data": data._replace(splits={"test": data.splits["test"]})})
    with pytest.raises(ValueError, match="data must have the split train, and val or test; it has test"):
        run("planted", tmp_path)
