"""`veca fit` as a user types it: every recipe, and the mistakes people make in one."""

import json
import sys
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors import safe_open

from tests.runs import write_recipe
from veca.cli.fit import VecaCLI
from veca.cli.main import main
from veca.train import run_dir
from veca.train.run_dir import read_metrics
from veca.utils.recipes import load_recipe

RECIPES = sorted((Path(__file__).parents[2] / "recipes").glob("*.yaml"))
SIZES = ("small", "small_plus", "base", "large")
TEACHERS = {"small": "vits16", "small_plus": "vits16plus", "base": "vitb16", "large": "vitl16"}
OFFLINE = ["--model.teacher", "veca.teachers.OfflineTeacher"]


@pytest.fixture(autouse=True)
def _own_command_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "argv", ["veca"])
    monkeypatch.chdir(tmp_path)


def read(name: str) -> dict[str, Any]:
    return load_recipe(name)


@pytest.mark.parametrize("size", SIZES)
def test_the_recipes_hold_the_numbers_of_the_method(size: str) -> None:
    batch = 64 if size == "large" else 128
    weights = {8: 1, 16: 1, 24: 2, 32: 2, 40: 3, 48: 3, 56: 4, 64: 4}
    one, two = read(f"pretrain_{size}"), read(f"multires_{size}")
    for recipe in (one, two):
        model = recipe["model"]
        assert model["size"] == size
        assert model["budgets"] == weights
        assert model["global_batch_size"] == 768
        name = model["teacher"]["init_args"]["name_or_path"]
        assert name == f"facebook/dinov3-{TEACHERS[size]}-pretrain-lvd1689m"
        assert recipe["trainer"]["precision"] == "bf16-mixed"
        assert recipe["data"]["resolutions"]["batch_size"] == batch
        assert recipe["seed_everything"] == recipe["data"]["seed"] == model["seed"] == 42
        assert (model["dense_weight"], model["mse_weight"]) == (1.0, 1.0)
        optimization = model["optimization"]
        assert (optimization["momentum"], optimization["beta2"]) == (0.95, 0.95)
        assert optimization["betas"] == [0.9, 0.999]
    first, second = one["model"]["optimization"], two["model"]["optimization"]
    assert (first["lr"], first["min_lr"], first["weight_decay"]) == (4e-4, 5e-5, 0.015)
    assert (second["lr"], second["min_lr"], second["weight_decay"]) == (8e-5, 3e-5, 0.01)
    assert (one["trainer"]["max_epochs"], first["warmup_epochs"]) == (135, 25)
    assert (two["trainer"]["max_steps"], second["warmup_steps"]) == (50_000, 7000)
    assert one["data"]["resolutions"]["teacher_micro_batch"] == batch
    stage2 = two["data"]["resolutions"]
    assert stage2["teacher_micro_batch"] == {256: 128, 384: 64, 512: 32, 768: 8}
    assert stage2["seed"] == 424242
    assert [phase["start_step"] for phase in stage2["phases"]] == [0, 7000]
    assert stage2["phases"][0]["probabilities"] == {256: 0.35, 384: 0.35, 512: 0.30}
    assert stage2["phases"][1]["probabilities"] == {256: 0.15, 384: 0.25, 512: 0.30, 768: 0.30}
    assert two["data"]["val_batches"] == {256: 100, 384: 100, 512: 100, 768: 50}
    assert two["model"]["val_budgets"] == list(weights)
    assert one["model"]["val_budgets"] == [64]
    assert two["model"]["init_from"] == f"runs/pretrain_{size}/checkpoints/best.ckpt"


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_runs_at_toy_size(recipe: Path, tiny_shards: Path) -> None:
    resolutions = sorted(
        {
            size
            for phase in read(recipe.stem)["data"]["resolutions"]["phases"]
            for size in phase["probabilities"]
        }
    )
    small = {"width": 32, "depth": 2, "num_heads": 1}
    options = {
        "--trainer.fast_dev_run": "true",
        "--trainer.accelerator": "cpu",
        "--trainer.devices": "1",
        "--trainer.precision": "32-true",
        "--trainer.enable_progress_bar": "false",
        "--trainer.enable_model_summary": "false",
        "--model.size": "tiny",
        "--model.size_overrides": str(small),
        "--model.init_from": "null",
        "--model.global_batch_size": "1",
        "--data.sources": str(tiny_shards),
        "--data.targets": "null",
        "--data.num_workers": "0",
        "--data.resolutions.batch_size": str(dict.fromkeys(resolutions, 1)),
        "--data.resolutions.teacher_micro_batch": "1",
    }
    for key in ("warmup_steps", "warmup_epochs"):
        if read(recipe.stem)["model"]["optimization"].get(key):
            options[f"--model.optimization.{key}"] = "0"
    words = [word for pair in options.items() for word in pair]
    main(["fit", "--config", recipe.stem, *OFFLINE, *words])


def test_a_recipe_that_extends_another_is_shown_whole(
    tiny_shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = toy_recipe(tmp_path, tiny_shards)
    mine = tmp_path / "mine.yaml"
    mine.write_text(f"extends: {base.name}\nmodel: {{dense_weight: 0.5, budgets: {{16: 1}}}}\n")
    options = ["--trainer.max_steps", "1", "--trainer.val_check_interval", "1"]
    main(["fit", "--config", str(mine), *options])
    saved = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text(encoding="utf-8"))
    assert "extends" not in saved
    assert (saved["model"]["dense_weight"], saved["model"]["budgets"]) == (0.5, {"16": 1.0})
    assert saved["data"]["sources"] == str(tiny_shards)

    mine.write_text(f"extends: {base.name}\nmodel: {{sise: tiny}}\n")
    with pytest.raises(SystemExit):
        main(["fit", "--config", str(mine)])
    assert "Did you mean model.size?" in capsys.readouterr().err


def toy_recipe(folder: Path, shards: Path, **model: Any) -> Path:
    return write_recipe(
        folder,
        shards,
        max_steps=6,
        batch_size=4,
        checkpoint_every=2,
        model=model,
        accumulate_grad_batches=1,
        val_check_interval=3,
        num_sanity_val_steps=2,
        default_root_dir=str(folder / "run"),
    )


def test_a_run_leaves_its_folder_and_resumes_into_it(tiny_shards: Path, tmp_path: Path) -> None:
    recipe, run = toy_recipe(tmp_path, tiny_shards), tmp_path / "run"
    main(["fit", "--config", str(recipe)])
    assert (run / "config.yaml").is_file()
    assert {path.name for path in (run / "checkpoints").iterdir()} == {
        "last.ckpt",
        "last-1.ckpt",
        "best.ckpt",
    }
    assert list(run.glob("events.*"))
    losses = {step: value for step, name, value in read_metrics(run / "metrics.csv") if name == "train/loss"}
    assert sorted(losses) == list(range(6))
    main(["check", str(run)])

    main(["fit", "--config", str(recipe), "--trainer.max_steps", "4", "--trainer.default_root_dir", "b"])
    last = "b/checkpoints/last.ckpt"
    main(["fit", "--config", str(recipe), "--trainer.default_root_dir", "b", "--ckpt_path", last])
    rows = [row for row in read_metrics(Path("b/metrics.csv")) if row[1] == "train/loss"]
    assert [step for step, _, _ in rows] == list(range(6))  # no step twice, none lost


def test_a_run_without_a_terminal_tells_where_it_is(
    tiny_shards: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """In lines, every so many seconds (here none), without Lightning's table and advice."""
    monkeypatch.setattr(run_dir, "LOG_EVERY", 0.0)
    options = ["--trainer.enable_progress_bar", "true", "--trainer.enable_model_summary", "true"]
    main(["fit", "--config", str(toy_recipe(tmp_path, tiny_shards)), *options])
    printed = capsys.readouterr()
    lines = printed.err.splitlines()
    for step in range(7):
        assert [line for line in lines if line.startswith(f"training, step {step} of 6")], lines
    assert [line for line in lines if "loss" in line and "images/s" in line and line.endswith("left 0:00:00")]
    assert [line for line in lines if line.startswith("validation, batch 1")]
    assert "the student has" in printed.err + caplog.text
    for noise in ("FLOPs", "💡", "distributed_backend", "weights_only", "TPU"):
        assert noise not in printed.out + printed.err + caplog.text


def test_a_callback_of_the_recipe_takes_effect(tiny_shards: Path, tmp_path: Path) -> None:
    recipe = toy_recipe(tmp_path, tiny_shards)
    content = yaml.safe_load(recipe.read_text(encoding="utf-8"))
    changes = {"max_steps": -1, "max_epochs": 3, "val_check_interval": None, "check_val_every_n_epoch": 3}
    content["trainer"] |= {
        **changes,
        "callbacks": [{"class_path": "veca.train.run_dir.ValidateAfterFirstEpoch"}],
    }
    recipe.write_text(yaml.safe_dump(content), encoding="utf-8")
    main(["fit", "--config", str(recipe)])
    rows = read_metrics(tmp_path / "run" / "metrics.csv")
    last_step = max(step for step, name, _ in rows if name == "train/loss")
    validated = sorted({step for step, name, _ in rows if name == "val/loss"})
    assert len(validated) == 2  # after the first epoch, and after the third
    assert validated[0] < last_step / 2 < validated[1]


def test_validate_prints_the_grid(
    tiny_shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "run" / "config.yaml"
    config.parent.mkdir()
    config.write_text("# of the fit\n")
    main(["validate", "--config", str(toy_recipe(tmp_path, tiny_shards))])
    printed = capsys.readouterr().out
    assert "val/r32/b8/loss_dense" in printed
    assert "val/r32/constant/loss" in printed
    assert config.read_text() == "# of the fit\n"  # what goes on from it needs the keys of fit


def test_predict_writes_features(tiny_shards: Path, tmp_path: Path) -> None:
    recipe = toy_recipe(tmp_path, tiny_shards)
    main(["predict", "--config", str(recipe)])
    keys, rows = [], 0
    for path in sorted((tmp_path / "run" / "features").glob("*.safetensors")):
        with safe_open(path, "pt") as content:
            keys += json.loads(content.metadata()["keys"])
            rows += len(content.get_tensor("cls"))
            assert content.get_tensor("patches").shape[1:] == (4, 96)
    assert rows == len(set(keys)) == 9


def test_all_mistakes_are_reported_at_once_with_hints(
    tiny_shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = toy_recipe(
        tmp_path, tiny_shards, sise="tiny", budgets={12: 1, 8: -2}, dense_weight="heavy", compile_student=3
    )
    with pytest.raises(SystemExit) as stop:
        main(["fit", "--config", str(recipe), "--data.max_bad_share", "2"])
    assert stop.value.code == 2
    message = capsys.readouterr().err
    for words in (
        "model.sise",
        "Did you mean model.size?",
        "budget 12 is not one of 8, 16",
        "weights[8] = -2.0",
        "model.dense_weight = heavy: must be a number.",
        "model.compile_student = 3: must be true or false or null.",
        "max_bad_share",
    ):
        assert words in message, message
    assert not (tmp_path / "run").exists()


MISTAKES = {  # words → the start and the end of what is said of them
    "--checkpoint_every 0": ("checkpoint_every = 0: must be at least 1", "saves none."),
    "--trainer.devices banana": ("trainer.devices = banana: must be auto, or a number", "Try auto."),
    "--trainer.val_check_interval -1": (
        "trainer.val_check_interval = -1: must be at least 1",
        "validation off.",
    ),
    "--trainer.max_steps -5": ("trainer.max_steps = -5: must be at least 1", "max_epochs."),
    "--trainer.max_epochs -7": ("trainer.max_epochs = -7: must be at least 1", "max_steps."),
    "--trainer.num_nodes 0": ("trainer.num_nodes = 0: must be at least 1", "alone."),
    "--trainer.log_every_n_steps 0": ("trainer.log_every_n_steps = 0: must be at least 1", "takes 50."),
    "--trainer.check_val_every_n_epoch 0": ("trainer.check_val_every_n_epoch = 0: must be", "all epochs."),
    "--trainer.accumulate_grad_batches 0": ("trainer.accumulate_grad_batches = 0: must be", "every batch."),
    "--trainer.limit_val_batches 1.5": ("trainer.limit_val_batches = 1.5: must be a number of", "null all."),
    "--trainer.strategy ddp": ("trainer.strategy = ddp: must be veca_ddp", "veca_ddp."),
    "--trainer.precision 7": ("trainer.precision = 7: must be 64, 32, 16", "auto, null."),
    "--seed_everything -1": ("seed_everything = -1: must be from 0", "Try 42."),
    "--model.seed -1": ("model.seed = -1: must not be negative", "Try 42."),
    "--model.global_batch_size 4096": ("data.sources = ", "or add data."),
    "--model.sise tiny": ("model.sise: there is no such key", "Did you mean model.size?"),
    "--trainer.devics 2": ("trainer.devics: there is no such key", "Did you mean trainer.devices?"),
    "--ckpt_path nowhere.ckpt": ("ckpt_path = nowhere.ckpt: there is no nowhere.ckpt", "newest checkpoint."),
    "--config nowhere.yaml": ("recipe nowhere.yaml: must be an existing file", "."),
}


@pytest.fixture(scope="module")
def said(tiny_shards: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What `veca fit` says of all mistakes at once, before a Trainer, teacher or folder is made."""
    folder = tmp_path_factory.mktemp("mistakes")
    words = ["fit", "--config", str(toy_recipe(folder, tiny_shards)), *" ".join(MISTAKES).split()]
    with pytest.MonkeyPatch.context() as patch, redirect_stderr(StringIO()) as printed:
        patch.setattr(sys, "argv", ["veca"])
        patch.setattr(VecaCLI, "instantiate_classes", None)
        with pytest.raises(SystemExit) as ended:
            main(words)
    assert ended.value.code == 2
    assert not (folder / "run").exists()
    return printed.getvalue().splitlines()


@pytest.mark.parametrize("words", MISTAKES)
def test_a_mistake_is_one_line_that_says_key_value_rule_and_way_out(words: str, said: list[str]) -> None:
    start, end = MISTAKES[words]
    assert [line for line in said if line.startswith(f"- {start}") and line.endswith(end)], said
    assert len(said) == len(MISTAKES) + 1


def test_a_malicious_checkpoint_is_refused_by_fit(tiny_shards: Path, tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[object, ...]:
            return (Path.touch, (tmp_path / "executed",))

    torch.save({"state_dict": Bomb()}, tmp_path / "evil.ckpt")
    with pytest.raises((SystemExit, Exception)):
        main(
            [
                "fit",
                "--config",
                str(toy_recipe(tmp_path, tiny_shards)),
                "--ckpt_path",
                str(tmp_path / "evil.ckpt"),
            ]
        )
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("group", ["trainer", "model.optimization", "data"])
def test_a_group_without_keys_is_named(
    group: str, tiny_shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = toy_recipe(tmp_path, tiny_shards)
    recipe = yaml.safe_load(path.read_text(encoding="utf-8"))
    *outer, name = group.split(".")
    (recipe[outer[0]] if outer else recipe)[name] = None
    path.write_text(yaml.safe_dump(recipe), encoding="utf-8")
    with pytest.raises(SystemExit) as ended:
        main(["fit", "--config", str(path)])
    assert ended.value.code == 2
    assert name in capsys.readouterr().err
