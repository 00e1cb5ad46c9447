"""The model card tells what the run knows."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from veca import Veca, load_model
from veca.card import TEACHER_RECORD, UNKNOWN_TEACHER, run_facts, teacher_facts
from veca.checkpoint import SIZE_KEY, convert
from veca.data.index import INDEX_NAME, ShardIndex, index_to_json
from veca.data.stored_targets import CacheSpec
from veca.utils.recipes import load_recipe

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


RECIPES = Path(__file__).resolve().parents[1] / "recipes"


STORED = {
    path.stem: targets
    for path in sorted(RECIPES.glob("*.yaml"))
    if (targets := load_recipe(path.stem)["data"].get("targets"))
}


def use_teacher(checkpoint: Path, entry: dict[str, Any] | None, *, targets: Any = None) -> None:
    model, data = {**RECIPE["model"], "teacher": entry}, {**RECIPE["data"], "targets": targets}
    recipe = {**RECIPE, "model": model, "data": data}
    (checkpoint.parents[1] / "config.yaml").write_text(yaml.safe_dump(recipe))


def use_targets(checkpoint: Path, targets: dict[str, Any], *, former: bool) -> None:
    """Stored targets as recipes state them, or as they did."""
    entry = {"class_path": "veca.teachers.CachedTargets", "init_args": targets}
    use_teacher(checkpoint, entry if former else None, targets=None if former else targets)


def finished_cache(shards: Path, teacher: str, *, views: int, dtype: str, **options: Any) -> None:
    spec = CacheSpec(teacher, "0" * 16, 8, (32,), views, dtype, 42, "32-true", {})
    index = ShardIndex(42, {**spec.options(projection_sha256=None), **options})
    (shards / spec.folder_name).mkdir(parents=True)
    (shards / spec.folder_name / INDEX_NAME).write_text(index_to_json(index))


def about_teacher(facts: dict[str, str]) -> dict[str, str]:
    return {name: fact for name, fact in facts.items() if name == "teacher" or name.startswith("license")}


@pytest.mark.parametrize("former", [False, True])
@pytest.mark.parametrize("name", STORED)
@pytest.mark.parametrize("state", ["recorded", "of an earlier release", "gone"])
def test_a_cached_teacher_has_the_licence_of_the_live_one(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, state: str, former: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    stated = STORED[name]
    if name.startswith("cached_"):
        use_teacher(checkpoint, load_recipe(name.removeprefix("cached_"))["model"]["teacher"])
        live = about_teacher(run_facts(checkpoint))
        assert live["license_name"] == "dinov3-license"
    else:
        live = {"teacher": "EfficientNet-Lite0 (ImageNet-1k), Apache-2.0"}
    if state != "gone":
        record = {TEACHER_RECORD: teacher_facts(stated["teacher"])} if state == "recorded" else {}
        views, dtype = stated.get("views", 1), stated.get("dtype", "int8")
        finished_cache(Path(stated["path"]), stated["teacher"], views=views, dtype=dtype, **record)
        stated = {"path": stated["path"]}  # the cache itself has to tell
    use_targets(checkpoint, stated, former=former)
    assert about_teacher(run_facts(checkpoint)) == live


@pytest.mark.parametrize("stated", [{}, {"teacher": "0123456789abcdef"}])
def test_a_cache_that_does_not_tell_its_teacher_is_to_be_asked_about(
    checkpoint: Path, tmp_path: Path, stated: dict[str, str]
) -> None:
    use_targets(checkpoint, {"path": str(tmp_path / "data"), **stated}, former=False)
    assert about_teacher(run_facts(checkpoint)) == UNKNOWN_TEACHER
    finished_cache(tmp_path / "data", "", views=1, dtype="int8")
    assert about_teacher(run_facts(checkpoint)) == UNKNOWN_TEACHER
    convert(checkpoint, tmp_path / "model")
    card = (tmp_path / "model" / "README.md").read_text()
    assert "license: unknown" in card
    assert "| teacher | unknown: ask before you publish |" in card


def test_targets_may_be_a_path_alone(checkpoint: Path, tmp_path: Path) -> None:
    finished_cache(tmp_path / "data", "EfficientNetTeacher", views=1, dtype="int8")
    use_teacher(checkpoint, None, targets=str(tmp_path / "data"))
    assert run_facts(checkpoint)["teacher"] == "EfficientNet-Lite0 (ImageNet-1k), Apache-2.0"
