"""What a run keeps for its report: snapshots of validation images, and the environment of each start."""

import errno
import json
import logging
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.runs import Run, outcome, same, write_recipe
from tests.training import make_data
from veca import load_model
from veca.cli.main import main
from veca.data.views import normalise
from veca.train.snapshots import (
    MAX_SIDE,
    RANK,
    Snapshot,
    facts,
    gather,
    git_state,
    pack,
    read_environment,
    read_snapshots,
    write_snapshot,
)
from veca.types import Batch, Features

STEPS = 14  # a validation after each seventh


@pytest.fixture(autouse=True)
def _own_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["veca"])


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory, tiny_shards: Path) -> Path:
    return write_recipe(tmp_path_factory.mktemp("recipe"), tiny_shards, max_steps=STEPS)


def fit(recipe: Path, folder: Path, *options: str) -> Path:
    words = ["--trainer.default_root_dir", str(folder), "--ckpt_path", "last", *options]
    main(["fit", "--config", str(recipe), *words])
    return folder


@pytest.fixture(scope="module")
def whole(recipe: Path) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["veca"])
        return fit(recipe, recipe.parent / "whole")


def equal(one: Snapshot, two: Snapshot) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))


def test_every_validation_leaves_one(whole: Path, tiny_shards: Path) -> None:
    names = sorted(path.name for path in (whole / "snapshots").iterdir())
    assert names == ["step-000007.npz", "step-000014.npz"]  # none of the sanity check
    first, last = read_snapshots(whole)
    data = make_data(tiny_shards, batch_size=2)
    data.setup("fit")
    batch = next(iter(data.val_dataloader()[0]))
    for snapshot in (first, last):
        assert snapshot.keys == batch.keys
        assert np.array_equal(snapshot.images, batch.images.permute(0, 2, 3, 1).numpy())
    assert not np.array_equal(first.scores, last.scores)
    student = load_model(whole / "checkpoints" / "last.ckpt")
    features, places, _ = student.trace(normalise(batch.images))
    assert last.grid == features.grid
    np.testing.assert_allclose(last.places, places.numpy(), rtol=1e-5, atol=1e-6)
    seen = last.scores @ last.basis.astype(np.float32)  # four patches have no more than rank four
    np.testing.assert_allclose(seen, features.patches.numpy(), rtol=1e-2, atol=5e-3)


def test_a_run_with_snapshots_is_the_run_without(recipe: Path, whole: Path, tmp_path: Path) -> None:
    without = fit(recipe, tmp_path / "run", "--num_snapshot_images", "0")
    assert not (without / "snapshots").exists()
    assert same(outcome(without), outcome(whole))


def test_a_resumed_run_has_the_snapshots_and_both_environments(
    recipe: Path, whole: Path, tmp_path: Path
) -> None:
    def crash(folder: Path, snapshot: Snapshot) -> Path:
        if snapshot.step == STEPS:
            raise RuntimeError("power cut")
        return write_snapshot(folder, snapshot)

    run = tmp_path / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("veca.train.snapshots.write_snapshot", crash)
        with pytest.raises(RuntimeError, match="power cut"):
            fit(recipe, run)
    shutil.copy(run / "snapshots/step-000007.npz", run / "snapshots/step-000012.npz")  # of a longer past
    (run / "snapshots/.step-000012.npz.1.tmp").touch()
    fit(recipe, run)
    assert sorted(path.name for path in (run / "snapshots").iterdir()) == [
        "step-000007.npz",
        "step-000014.npz",
    ]
    assert same(outcome(run), outcome(whole))
    assert all(map(equal, read_snapshots(run), read_snapshots(whole)))
    starts = read_environment(run / "environment.json")
    assert [start["step"] for start in starts] == [0, 10]
    assert starts[0]["command"] == "veca"
    assert starts[0]["packages"]["torch"] == torch.__version__
    assert (starts[1]["world_size"], starts[1]["num_nodes"]) == (1, 1)
    assert starts[0]["started"] <= starts[1]["started"]


def test_a_run_from_the_beginning_begins_its_records(recipe: Path, tmp_path: Path) -> None:
    run = fit(recipe, tmp_path / "run", "--trainer.max_steps", "7")
    shutil.rmtree(run / "checkpoints")
    fit(recipe, run, "--trainer.max_steps", "2")
    assert read_snapshots(run) == []
    assert [start["step"] for start in read_environment(run / "environment.json")] == [0]


def test_two_ranks_write_one(recipe: Path, tmp_path: Path) -> None:
    with Run(recipe, tmp_path / "run", "--trainer.max_steps", "7", ranks=2) as run:
        assert run.wait() == [0, 0], run.log()
    assert [path.name for path in (run.folder / "snapshots").iterdir()] == ["step-000007.npz"]
    (start,) = read_environment(run.folder / "environment.json")
    assert start["world_size"] == 2


def test_a_student_without_cores_in_bf16(tiny_shards: Path, tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, tiny_shards, max_steps=1, val_check_interval=2, precision="bf16-mixed")
    full = ["--model.attention", "full", "--model.size_overrides", "null", "--model.budgets", "{5: 1}"]
    (snapshot,) = read_snapshots(fit(recipe, tmp_path / "run", *full))
    assert snapshot.places.shape == (0, 2, 0, 2)
    assert snapshot.scores.shape[:2] == (2, 4)
    assert snapshot.scores.any()


def test_the_smallest_resolution_in_bf16(tiny_shards: Path, tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, tiny_shards, max_steps=1, val_check_interval=2, precision="bf16-mixed")
    phases = "[{start_step: 0, probabilities: {48: 0.5, 32: 0.5}}]"
    options = ["--data.resolutions.phases", phases, "--data.resolutions.batch_size", "6"]
    (snapshot,) = read_snapshots(fit(recipe, tmp_path / "run", *options))
    assert snapshot.images.shape == (4, 32, 32, 3)
    assert snapshot.places.shape == (2, 4, 16, 2)


@pytest.mark.parametrize("words", [["fit", "--trainer.fast_dev_run", "true"], ["validate"]])
def test_other_verbs_and_rehearsals_leave_none(words: list[str], recipe: Path, tmp_path: Path) -> None:
    verb, *options = words
    main([verb, "--config", str(recipe), "--trainer.default_root_dir", str(tmp_path / "run"), *options])
    assert not (tmp_path / "run" / "snapshots").exists()
    assert not (tmp_path / "run" / "environment.json").exists()


def test_a_full_disk_does_not_end_the_run(
    recipe: Path,
    whole: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def full(file: Any, **arrays: Any) -> None:
        file.write(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(np, "savez_compressed", full)
    with caplog.at_level(logging.WARNING, "veca.train.snapshots"):
        run = fit(recipe, tmp_path / "run")
    assert list((run / "snapshots").iterdir()) == []
    assert "no snapshot of step 7" in caplog.text
    assert "No space left" in caplog.text
    assert same(outcome(run), outcome(whole))


def make_snapshot(*, width: int, side: int, depth: int, count: int = 4, cores: int = 64) -> Snapshot:
    """Of noise, which no compression makes smaller."""
    chance = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (count, 3, side, side), generator=chance, dtype=torch.uint8)
    grid = (side // 16, side // 16)
    patches = torch.randn(count, grid[0] * grid[1], width, generator=chance)
    features = Features(patches[:, 0], patches, patches[:, :0], grid)
    places = torch.rand(depth, count, cores, 2, generator=chance) * 2 - 1
    return pack(Batch(images, [f"{n}" for n in range(count)]), features, places, step=350)


@pytest.mark.parametrize(("width", "side"), [(1024, 256), (1024, 512), (4096, 256)])
def test_a_snapshot_of_the_largest_models_stays_below_a_megabyte(
    width: int, side: int, tmp_path: Path
) -> None:
    snapshot = make_snapshot(width=width, side=side, depth=24)
    assert snapshot.images.shape == (4, MAX_SIDE, MAX_SIDE, 3)
    path = write_snapshot(tmp_path / "snapshots", snapshot)
    assert path.name == "step-000350.npz"
    assert path.stat().st_size < 1_000_000
    assert equal(read_snapshots(tmp_path)[0], snapshot)


def test_what_is_kept_of_the_features_is_the_best_of_its_rank() -> None:
    left, right = torch.randn(1, 64, 5), torch.randn(1, 5, 96)
    noise = 1e-3 * torch.randn(1, 64, 96)
    features = Features(torch.zeros(1, 96), left @ right + noise, torch.zeros(1, 0, 96), (8, 8))
    batch = Batch(torch.zeros(1, 3, 128, 128, dtype=torch.uint8), ["a"])
    snapshot = pack(batch, features, torch.zeros(0, 1, 0, 2), step=0)
    assert snapshot.basis.shape == (1, RANK, 96)
    kept = torch.from_numpy(snapshot.scores @ snapshot.basis.astype(np.float32))
    assert (kept - left @ right).abs().max() < 0.02


def test_a_damaged_snapshot_is_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[object, ...]:
            return (Path.touch, (tmp_path / "executed",))

    good = make_snapshot(width=32, side=32, depth=2, cores=8)
    whole = write_snapshot(tmp_path / "snapshots", good)
    folder = whole.parent
    (folder / "step-000001.npz").write_bytes(whole.read_bytes()[:200])
    (folder / "step-000002.npz").write_bytes(b"")
    write_snapshot(folder, good._replace(step=3, grid=(5, 5)))
    write_snapshot(folder, good._replace(step=5, scores=good.scores * np.float32(np.nan)))
    turned = bytearray(whole.read_bytes())
    turned[5000] ^= 0xFF
    (folder / "step-000006.npz").write_bytes(turned)
    with (folder / "step-000007.npz").open("wb") as file:
        np.save(file, good.places)
    arrays = {name: np.asarray(value) for name, value in good._asdict().items()}
    np.savez(folder / "step-000004.npz", **{**arrays, "keys": np.array([Bomb()], dtype=object)})
    with caplog.at_level(logging.WARNING, "veca.train.snapshots"):
        (found,) = read_snapshots(tmp_path)
    assert equal(found, good)
    assert caplog.text.count("passed over a damaged snapshot") == 7
    assert not (tmp_path / "executed").exists()


def test_git_tells_commit_and_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "bin" / "git"
    script.parent.mkdir()
    script.write_text(
        '#!/bin/sh\ncase "$*" in\n*show-toplevel*) echo "$3";;\n*HEAD*) echo 0123456789abcdef;;\n'
        "*) printf ' M a\\n?? b\\n';;\nesac\n"
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(script.parent), prepend=":")
    monkeypatch.chdir(tmp_path)
    state = {"folder": str(tmp_path), "commit": "0123456789abcdef", "num_changed": 2}
    assert git_state(tmp_path) == state
    assert gather()["git"]["current folder"] == state
    assert facts(gather())["git, current folder"] == "0123456789ab, 2 files changed since"
    script.write_text("#!/bin/sh\nexit 128\n")
    assert git_state(tmp_path) is None
    assert "git" not in gather()


def test_a_damaged_environment_is_kept_and_does_not_end_the_run(
    recipe: Path, whole: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    (run / "environment.json").write_text('{"starts": [')
    with caplog.at_level(logging.WARNING, "veca.train.snapshots"):
        fit(recipe, run, "--trainer.max_steps", "15")
    assert "environment.json is damaged" in caplog.text
    assert (run / "environment.json").read_text() == '{"starts": ['


def test_the_environment_is_plain_json(whole: Path) -> None:
    body = json.loads((whole / "environment.json").read_text(encoding="utf-8"))
    assert body["format"] == "veca-environment"
    (start,) = body["starts"]
    assert {"started", "command", "python", "platform", "packages", "device", "precision"} <= set(start)
