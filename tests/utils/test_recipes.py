"""Recipes by path and by name, and what one takes over from another."""

from pathlib import Path

import pytest
import yaml

from veca.utils.recipes import find_recipe, load_recipe, merge, recipes_folder, spell_out_recipes

RECIPES = Path(__file__).parents[2] / "recipes"


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_an_existing_path_comes_before_a_packaged_name(empty_folder: Path) -> None:
    assert find_recipe("demo") == find_recipe("demo.yaml") == RECIPES / "demo.yaml"
    (empty_folder / "demo").mkdir()  # what `make demo` leaves is no recipe
    assert find_recipe("demo") == RECIPES / "demo.yaml"
    (empty_folder / "demo.yaml").write_text("a: 1")
    assert load_recipe("demo.yaml") == {"a": 1}
    assert find_recipe("demo") == RECIPES / "demo.yaml"


def test_an_unknown_name_is_answered_with_close_ones() -> None:
    with pytest.raises(
        FileNotFoundError, match=r"recipe pretrain_smal: must be an existing file.*pretrain_small,"
    ):
        find_recipe("pretrain_smal")
    with pytest.raises(FileNotFoundError, match=r"Try pretrain_base"):
        find_recipe("recipes/pretrain_base.yaml")  # a path of a checkout, typed elsewhere
    with pytest.raises(FileNotFoundError, match=r"cpu_tiny.*demo.*pretrain_small"):
        find_recipe("xyz")


def test_mappings_are_merged_and_all_else_is_replaced() -> None:
    base = {"a": {"b": 1, "c": 2}, "budgets": {8: 1, 64: 4}, "list": [1, 2]}
    overlay = {"a": {"c": 3}, "budgets": {64: 1}, "list": [3], "new": None}
    assert merge(base, overlay) == {"a": {"b": 1, "c": 3}, "budgets": {64: 1}, "list": [3], "new": None}
    saved = {"budgets": {"8": 1.0, "64": 4.0}}  # as a run's config.yaml has it
    assert merge(saved, {"budgets": {"64": 1}}) == {"budgets": {"64": 1}}
    assert base["a"] == {"b": 1, "c": 2}
    teacher = {"class_path": "One", "init_args": {"x": 1, "y": 2}}
    assert merge({"t": teacher}, {"t": {"init_args": {"y": 3}}})["t"]["init_args"] == {"x": 1, "y": 3}
    assert merge({"t": teacher}, {"t": {"class_path": "Two"}})["t"] == {"class_path": "Two"}


def test_a_recipe_of_the_user_extends_a_packaged_one_and_one_beside_it(empty_folder: Path) -> None:
    (empty_folder / "mine").mkdir()
    (empty_folder / "mine" / "base.yaml").write_text("extends: pretrain_base\nmodel: {seed: 1}\n")
    (empty_folder / "mine" / "run.yaml").write_text("extends: base.yaml\ndata: {seed: 2}\n")
    found = load_recipe("mine/run.yaml")
    assert "extends" not in found
    assert (found["model"]["seed"], found["data"]["seed"], found["model"]["size"]) == (1, 2, "base")


def test_mistakes_in_what_is_extended_are_named(empty_folder: Path) -> None:
    for name, text in {
        "one.yaml": "extends: two.yaml",
        "two.yaml": "extends: one.yaml",
        "list.yaml": "extends: [one.yaml]",
        "lost.yaml": "extends: nowhere",
        "broken.yaml": "a: [",
    }.items():
        (empty_folder / name).write_text(text)
    with pytest.raises(ValueError, match=r"one.yaml → .*two.yaml → .*one.yaml"):
        load_recipe("one.yaml")
    with pytest.raises(ValueError, match=r"list.yaml: extends must be one recipe's path or name"):
        load_recipe("list.yaml")
    with pytest.raises(FileNotFoundError, match=r"recipe nowhere"):
        load_recipe("lost.yaml")
    with pytest.raises(ValueError, match=r"broken.yaml: must be YAML"):
        load_recipe("broken.yaml")


def test_only_what_extends_is_written_out(empty_folder: Path) -> None:
    words = ["fit", "--config", "demo", "--config=cached_pretrain_base", "--data.seed", "1", "--config"]
    spelled, problems = spell_out_recipes(words, empty_folder)
    (written,) = empty_folder.iterdir()
    demo = str(RECIPES / "demo.yaml")
    assert spelled == ["fit", "--config", demo, "--config", str(written), *words[4:]]
    assert not problems
    assert yaml.safe_load(written.read_text()) == load_recipe("cached_pretrain_base")


def test_a_missing_recipe_is_a_problem_among_others(empty_folder: Path) -> None:
    spelled, (problem,) = spell_out_recipes(["fit", "--config", "nowhere", "--data.seed", "1"], empty_folder)
    assert spelled == ["fit", "--data.seed", "1"]
    assert problem.startswith("recipe nowhere: must be")


def test_an_overlay_states_only_what_differs() -> None:
    assert recipes_folder() == RECIPES
    for path in RECIPES.glob("*.yaml"):
        recipe = yaml.safe_load(path.read_text(encoding="utf-8"))
        if "extends" in recipe:
            assert len(path.read_text().splitlines()) < 20, path
    cached, live = load_recipe("cached_pretrain_large"), load_recipe("pretrain_large")
    assert cached["model"]["teacher"] is None
    assert cached["data"]["targets"] == {
        "path": "data/objects365",
        "teacher": live["model"]["teacher"]["init_args"]["name_or_path"],
        "views": 8,
    }
    assert cached["model"]["optimization"] == live["model"]["optimization"]
    assert cached["data"]["resolutions"]["batch_size"] == live["data"]["resolutions"]["batch_size"] == 64


def test_a_recipe_of_thousands_of_levels_is_a_problem_among_others(tmp_path: Path) -> None:
    path = tmp_path / "deep.yaml"
    path.write_text("a: " + "[" * 4000)
    assert spell_out_recipes(["--config", str(path), "--x", "1"], tmp_path) == (
        ["--x", "1"],
        [f"recipe {path}: must be YAML of a few levels; this one has thousands."],
    )
