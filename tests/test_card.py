"""The model card tells what the run knows."""

import json
from pathlib import Path

import pytest
import torch
import yaml

from veca import Veca, load_model
from veca.card import run_facts
from veca.checkpoint import SIZE_KEY, convert

RECIPE = {
    "model": {
        "teacher": {
            "class_path": "veca.teachers.TransformersTeacher",
            "init_args": {"name_or_path": "facebook/dinov3-vits16-pretrain-lvd1689m"},
        },
        "budgets": {8: 1, 64: 4},
    },
    "data": {
        "sources": "/somebodys/home/objects365",
        "resolutions": {"phases": [{"probabilities": {256: 0.5, 384: 0.5}}, {"probabilities": {512: 1.0}}]},
    },
    "trainer": {"max_steps": 50000, "max_epochs": -1},
}


@pytest.fixture
def checkpoint(tiny_student: Veca, tmp_path: Path) -> Path:
    path = tmp_path / "run" / "checkpoints" / "last.ckpt"
    path.parent.mkdir(parents=True)
    tensors = {f"student.{name}": tensor for name, tensor in tiny_student.state_dict().items()}
    torch.save({"state_dict": tensors, SIZE_KEY: tiny_student.size.as_dict()}, path)
    (tmp_path / "run" / "config.yaml").write_text(yaml.safe_dump(RECIPE))
    row = {"name": "model", "budget": 8, "resolution": 256, "accuracy": 0.61234, "spread": None}
    body = {"format": "veca-probe", "probe": "knn", "model": str(path), "data": "d/pets", "results": [row]}
    (tmp_path / "knn.json").write_text(json.dumps(body))
    (tmp_path / "of_another_model.json").write_text(json.dumps({**body, "model": "elsewhere/x.ckpt"}))
    (tmp_path / "run" / "no_probe.json").write_text("[1, 2]")
    return path


def test_the_card_of_a_run(checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    convert(checkpoint, tmp_path / "model")
    card = (tmp_path / "model" / "README.md").read_text()
    assert "license: other\nlicense_name: dinov3-license" in card
    assert "| teacher | facebook/dinov3-vits16-pretrain-lvd1689m, under Meta's DINOv3 licence |" in card
    assert "| data | objects365 |" in card
    assert "somebodys" not in card
    assert "| resolutions in training | 256, 384, 512 |" in card
    assert "| length | 50000 steps |" in card
    assert card.count("| model | 8 | 256 | 0.612 |") == 1
    assert "| budgets (active cores) | 4, 8, 12, 16 |" in card
    assert "not recorded" not in card


def test_facts_survive_saving_again(checkpoint: Path, tmp_path: Path) -> None:
    model = load_model(checkpoint)
    model.save_pretrained(tmp_path / "one")
    load_model(tmp_path / "one").save_pretrained(tmp_path / "two")
    Veca.from_pretrained(tmp_path / "two").save_pretrained(tmp_path / "three")
    assert load_model(tmp_path / "three").facts == model.facts
    cards = {(tmp_path / name / "README.md").read_text() for name in ("one", "two", "three")}
    assert len(cards) == 1


def test_without_a_run_the_card_says_so(tiny_student: Veca, tmp_path: Path) -> None:
    tiny_student.save_pretrained(tmp_path)
    card = (tmp_path / "README.md").read_text()
    assert "license: apache-2.0" in card
    assert "The teacher was not recorded" in card


@pytest.mark.parametrize("text", ["", "model: 3", ": : :", "model: {teacher: null}\ndata: {}\ntrainer: {}"])
def test_a_recipe_of_another_kind_is_no_obstacle(checkpoint: Path, text: str) -> None:
    (checkpoint.parents[1] / "config.yaml").write_text(text)
    assert set(run_facts(checkpoint)) == {"results"}
    assert load_model(checkpoint).size.width == 32


def test_known_teachers_have_their_licence(checkpoint: Path) -> None:
    recipe = json.loads(json.dumps(RECIPE))
    recipe["model"]["teacher"] = {"class_path": "veca.teachers.EfficientNetTeacher"}
    (checkpoint.parents[1] / "config.yaml").write_text(yaml.safe_dump(recipe))
    facts = run_facts(checkpoint)
    assert facts["teacher"] == "EfficientNet-Lite0 (ImageNet-1k), Apache-2.0"
    assert "license" not in facts
