"""The vote against a slow reference, the verb from the command line to the JSON."""

import json
import math
import shutil
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from jsonargparse import auto_cli
from torch import Tensor

from tests.probes.fakes import Install, label_data
from veca import Veca
from veca.probes import classify as knn_module
from veca.probes.classify import classify, knn


def slow_classify(train: Tensor, labels: Tensor, queries: Tensor, *, k: int) -> list[int]:
    """The protocol, one pair of vectors at a time, in float64."""
    answers = []
    for query in queries.double().numpy():
        pairs = []
        for row, label in zip(train.double().numpy(), labels.tolist(), strict=True):
            cosine = float(query @ row / math.sqrt(float(query @ query) * float(row @ row)))
            pairs.append((cosine, label))
        votes: dict[int, float] = defaultdict(float)
        for cosine, label in sorted(pairs, reverse=True)[:k]:
            votes[label] += math.exp(cosine / 0.07)
        answers.append(max(votes, key=lambda label: votes[label]))
    return answers


@pytest.mark.parametrize("k", [1, 5, 20, 500])
def test_equals_slow_reference(k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(knn_module, "SIMILARITIES", 7 * 60)  # several chunks, the last one short
    generator = torch.Generator().manual_seed(k)
    labels = torch.randint(0, 4, (60,), generator=generator)
    centres = torch.randn(4, 8, generator=generator)
    train = 5 * (centres[labels] + torch.randn(60, 8, generator=generator))
    queries = centres.repeat(10, 1) + torch.randn(40, 8, generator=generator)
    found = classify(train, labels, queries, k=k, num_classes=4)
    assert found.tolist() == slow_classify(train, labels, queries, k=k)


def test_planted_features_are_all_found() -> None:
    labels = torch.arange(50) % 5
    noise = torch.randn(50, 5, generator=torch.Generator().manual_seed(0))
    features = torch.eye(5)[labels] + 0.05 * noise
    assert (
        classify(features, labels, features.flip(0), k=9, num_classes=5).tolist() == labels.flip(0).tolist()
    )


def test_noise_gives_chance() -> None:
    generator = torch.Generator().manual_seed(1)
    labels, truth = torch.arange(1000) % 4, torch.arange(2000) % 4
    train, queries = torch.randn(1000, 16, generator=generator), torch.randn(2000, 16, generator=generator)
    accuracy = (classify(train, labels, queries, k=20, num_classes=4) == truth).float().mean()
    assert abs(accuracy - 0.25) < 5 * math.sqrt(0.25 * 0.75 / 2000)


def test_closer_neighbour_outvotes_two_far_ones() -> None:
    """The vote is weighted: plain majority would say 1."""
    train = torch.tensor([[1.0, 0.0], [0.5, 1.0], [0.5, -1.0]])
    found = classify(train, torch.tensor([0, 1, 1]), torch.tensor([[1.0, 0.0]]), k=3, num_classes=2)
    assert found.tolist() == [0]


def run(out: Path, **options: object) -> list[dict[str, object]]:
    knn("planted", "data", out=out / "knn.json", **{"seeds": 0, **options})
    cells: list[dict[str, object]] = json.loads((out / "knn.json").read_text())["cells"]
    return cells


def test_planted_and_noise(tmp_path: Path, install: Install) -> None:
    install({"data": label_data(90, 200, num_classes=5)})
    cells = run(tmp_path, compare="noise", resolutions="16,24")
    assert [(cell["name"], cell["budget"], cell["resolution"]) for cell in cells] == [
        *(("model", budget, side) for side in (16, 24) for budget in (4, 8)),
        *(("noise", None, side) for side in (16, 24)),
        ("raw pixels", None, 16),
        ("constant", None, None),
    ]
    values = [cell["values"]["accuracy"] for cell in cells]  # type: ignore[index]
    assert values[:4] == [1.0] * 4
    assert abs(values[4] - 0.2) < 5 * math.sqrt(0.16 / 200)
    assert values[-1] == pytest.approx(0.2)  # the classes are equally frequent


def test_k_is_cut_to_the_training_images(tmp_path: Path, install: Install) -> None:
    install({"data": label_data(15, 6)})
    run(tmp_path, k=20)
    assert json.loads((tmp_path / "knn.json").read_text())["settings"]["k"] == 15
    with pytest.raises(ValueError, match="k must be at least 1; got 0"):
        run(tmp_path, k=0)


def test_command_line_to_json(
    tmp_path: Path,
    tiny_student: Veca,
    make_folders: Callable[..., Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Nothing is a fake here: a saved model, class folders, random weights and raw pixels."""
    tiny_student.save_pretrained(tmp_path / "model")
    data = make_folders(train=5, val=2)
    words = ["--model", str(tmp_path / "model"), "--data", str(data), "--budgets", "4,16"]
    auto_cli(knn, args=[*words, "--resolutions", "32", "--seeds", "2"], as_positional=False)
    body = json.loads((tmp_path / "model" / "knn.json").read_text())
    assert body["complete"]
    assert body["counts"] == {
        "train": dict.fromkeys(("blue", "green", "red"), 5),
        "val": dict.fromkeys(("blue", "green", "red"), 2),
    }
    names = [(cell["name"], cell["budget"], cell["seed"]) for cell in body["cells"]]
    assert names == [
        ("model", 4, None),
        ("model", 16, None),
        *(("random weights", budget, seed) for budget in (4, 16) for seed in (0, 1)),
        ("raw pixels", None, None),
        ("constant", None, None),
    ]
    assert body["cells"][-2]["values"] == {"accuracy": 1.0}  # the classes are colours
    printed = capsys.readouterr().out
    assert "train: 15 images, 3 classes of 5 images" in printed
    assert "| raw pixels | – | 16 | 100.0 % |" in printed
    assert (tmp_path / "model" / "knn.svg").read_text().rstrip().endswith("</svg>")


def test_classes_that_a_split_lacks_are_left_out(
    tmp_path: Path,
    tiny_student: Veca,
    make_folders: Callable[..., Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    tiny_student.save_pretrained(tmp_path / "model")
    data = make_folders(train=3, val=2)
    shutil.rmtree(data / "val" / "green")
    words = ["--model", str(tmp_path / "model"), "--data", str(data), "--budgets", "4", "--resolutions", "32"]
    auto_cli(knn, args=[*words, "--seeds", "0", "--classes", "common"], as_positional=False)
    body = json.loads((tmp_path / "model" / "knn.json").read_text())
    assert body["counts"]["train"] == {"blue": 3, "red": 3}
    assert body["settings"]["classes left out"] == ["green"]
    assert "1 classes are left out, as a split lacks them: green" in capsys.readouterr().out
