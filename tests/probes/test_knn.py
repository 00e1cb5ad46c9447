"""The vote against a slow reference, the verb from the command line to the JSON."""

import json
import math
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from jsonargparse import auto_cli
from torch import Tensor

from veca import Veca, create_model
from veca.probes import knn as knn_module
from veca.probes.knn import classify, knn


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


@pytest.fixture
def saved(tmp_path: Path, tiny_student: Veca) -> Path:
    tiny_student.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_command_line_to_json(
    saved: Path, make_folders: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    data = make_folders(train=5, val=2)
    words = ["--model", str(saved), "--data", str(data), "--budgets", "4,16", "--resolutions", "32,48"]
    auto_cli(knn, args=[*words, "--seeds", "2"], as_positional=False)
    body = json.loads((saved / "knn.json").read_text())
    rows = body["results"]
    assert body["probe"] == "knn"
    assert body["counts"] == {
        "train": dict.fromkeys(("blue", "green", "red"), 5),
        "val": dict.fromkeys(("blue", "green", "red"), 2),
    }
    assert body["settings"]["k"] == 15  # cut to the training images
    grid = [(4, 32), (16, 32), (4, 48), (16, 48)]
    assert [(row["name"], row["budget"], row["resolution"]) for row in rows] == [
        *(("model", *place) for place in grid),
        *(("random weights", *place) for place in grid),
        ("raw pixels", None, None),
    ]
    assert rows[-1]["accuracy"] == 1.0  # the classes are colours
    assert [row["spread"] is None for row in rows] == [True] * 4 + [False] * 4 + [True]
    printed = capsys.readouterr().out
    assert "train: 15 images, 3 classes of 5" in printed
    assert "| raw pixels | – | – | 100.0 % |" in printed
    assert str(saved / "knn.json") in printed


def test_random_baseline_repeats(saved: Path, make_folders: Callable[..., Path], tmp_path: Path) -> None:
    data = make_folders(train=3, test=2)
    texts = []
    for number in range(2):
        torch.manual_seed(number)  # the baseline must not depend on what ran before it
        out = tmp_path / f"{number}.json"
        knn(str(saved), data, budgets=[8], resolutions=[32], out=out, k=3, seeds=2)
        texts.append(out.read_text())
    assert texts[0] == texts[1]


def test_spread_is_the_standard_deviation_over_seeds(
    saved: Path, make_folders: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = iter([0.9, 0.2, 0.5, 0.6, 0.1])
    monkeypatch.setattr(knn_module, "_accuracy", lambda *_, **__: next(scores))
    knn(str(saved), make_folders(train=1, val=1), budgets=[8], resolutions=[32], out=tmp_path / "a", seeds=3)
    rows = json.loads((tmp_path / "a").read_text())["results"]
    assert [row["accuracy"] for row in rows] == pytest.approx([0.9, np.mean([0.2, 0.5, 0.6]), 0.1])
    assert rows[1]["spread"] == pytest.approx(np.std([0.2, 0.5, 0.6], ddof=1))


def test_run_checkpoint_leaves_its_result_in_the_run_folder(
    tiny_student: Veca, make_folders: Callable[..., Path], tmp_path: Path
) -> None:
    checkpoint = tmp_path / "run" / "checkpoints" / "last.ckpt"
    checkpoint.parent.mkdir(parents=True)
    state = {f"student.{name}": tensor for name, tensor in tiny_student.state_dict().items()}
    torch.save({"state_dict": state, "student_size": tiny_student.size.as_dict()}, checkpoint)
    knn(str(checkpoint), make_folders(train=1, val=1), resolutions=[32], seeds=0)
    rows = json.loads((tmp_path / "run" / "knn.json").read_text())["results"]
    assert [(row["name"], row["budget"]) for row in rows] == [
        ("model", 4),
        ("model", 16),
        ("raw pixels", None),
    ]


def test_bad_numbers_are_refused_before_work(saved: Path, tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere"
    with pytest.raises(ValueError, match="k must be at least 1 and seeds at least 0; got k=0, seeds=3"):
        knn(str(saved), nowhere, k=0)
    with pytest.raises(ValueError, match="out must be a file"):
        knn(str(saved), nowhere, out=tmp_path)
    with pytest.raises(FileNotFoundError, match="no model at"):
        knn(str(nowhere), nowhere)


def test_blind_model_gets_chance(make_folders: Callable[..., Path], tmp_path: Path) -> None:
    """A core 0 that does not depend on the image: one class gets every vote."""
    torch.manual_seed(0)
    blind = create_model("tiny", width=32, depth=1, num_heads=2, num_cores=8)
    with torch.no_grad():
        blind.patch_embed.weight.zero_()
    blind.save_pretrained(tmp_path / "blind")
    knn(str(tmp_path / "blind"), make_folders(train=6, val=3), resolutions=[32], seeds=0)
    rows = json.loads((tmp_path / "blind" / "knn.json").read_text())["results"]
    assert rows[0]["accuracy"] == pytest.approx(1 / 3)
    assert rows[1]["accuracy"] == 1.0
