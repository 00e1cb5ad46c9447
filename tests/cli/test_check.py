"""Whatever veca writes is known by its path, found sound as it is, and its damage named."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.data.caches import write_cache
from tests.data.shards import write_dataset
from tests.test_fuzz import Bomb
from veca import create_model
from veca.cli.main import main
from veca.train.checkpointing import SafeCheckpointIO

Said = Callable[[Path], tuple[int, list[str]]]


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Said:
    """The status of `veca check PATH`, and the lines that it prints."""

    def run(path: Path) -> tuple[int, list[str]]:
        try:
            main(["check", str(path)])
            status: Any = 0
        except SystemExit as stop:
            status = stop.code
        printed = capsys.readouterr()
        return status, (printed.err if status == 2 else printed.out).splitlines()

    return run


def flip_a_bit(path: Path, share: float = 0.5) -> None:
    data = bytearray(path.read_bytes())
    data[int(share * len(data))] ^= 1
    path.write_bytes(data)


def write_run(folder: Path) -> Path:
    for step in (5, 10):
        content = {"global_step": step, "state_dict": {"weight": torch.rand(5000)}, "optimizer_states": []}
        SafeCheckpointIO().save_checkpoint(content, folder / "checkpoints" / "last.ckpt")
    (folder / "config.yaml").write_text("model: {}\ndata: {}\ntrainer: {}\n")
    (folder / "metrics.csv").write_text("step,name,value\n0,train/loss,0.5\n1,train/lo")
    return folder


def write_model(folder: Path) -> Path:
    create_model("tiny", width=32, depth=1, num_heads=1, num_cores=8).save_pretrained(folder)
    return folder


def test_a_run_is_sound_and_names_its_newest_good_checkpoint(said: Said, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    last, former = run / "checkpoints/last.ckpt", run / "checkpoints/last-1.ckpt"
    assert said(run) == (0, [f"{last}: the newest good checkpoint, of step 10", f"{run}: sound"])
    flip_a_bit(last)
    status, lines = said(run)
    assert status == 1
    assert lines[0] == f"{former}: the newest good checkpoint, of step 5"
    assert lines[1].startswith(f"{last} is damaged: the checksum of its part")
    assert lines[2:] == [f"{run}: 1 problem"]
    shutil.rmtree(run / "checkpoints")
    assert said(run) == (0, [f"{run / 'checkpoints'}: no checkpoint yet", f"{run}: sound"])


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("config.yaml", None, "no such file"),
        ("config.yaml", "model: [", "while parsing"),
        ("config.yaml", "[" * 5000, "RecursionError"),
        ("config.yaml", "model: {}", "lacks data, trainer"),
        ("metrics.csv", "\0\1\2,", "is damaged: not one of its 1 rows"),
        ("environment.json", "{", "Expecting property name"),
    ],
)
def test_every_file_of_a_run_is_read(
    name: str, content: str | None, words: str, said: Said, tmp_path: Path
) -> None:
    run = write_run(tmp_path / "run")
    (run / name).unlink(missing_ok=True)
    if content is not None:
        (run / name).write_text(content)
    status, lines = said(run)
    assert status == 1
    assert str(run / name) in lines[1]
    assert words in lines[1]
    assert lines[2:] == [f"{run}: 1 problem"]


def test_checkpoints_alone_and_one_alone(said: Said, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run") / "checkpoints"
    assert said(folder)[0] == said(folder / "last.ckpt")[0] == 0
    content = torch.load(folder / "last.ckpt", weights_only=True)
    content["state_dict"]["weight"][3] = torch.nan
    torch.save(content, folder / "last.ckpt")
    torch.save({"global_step": 3, "state_dict": Bomb(tmp_path / "executed")}, folder / "best.ckpt")
    (folder / "last-1.ckpt").write_bytes(b"")
    status, lines = said(folder)
    assert status == 1
    for line, word in zip(lines, ("could run code", "last-1.ckpt is not an intact", "1 of 1"), strict=False):
        assert word in line
    assert lines[3:] == [f"{folder}: 3 problems"]
    status, lines = said(folder / "last.ckpt")
    assert (status, lines[1:]) == (1, [f"{folder / 'last.ckpt'}: 1 problem"])
    assert not (tmp_path / "executed").exists()


def test_a_model(said: Said, tmp_path: Path) -> None:
    model = write_model(tmp_path / "model")
    assert said(model) == (0, [f"{model}: sound"])
    whole = (model / "model.safetensors").read_bytes()
    flip_a_bit(model / "model.safetensors", 0.99)
    status, lines = said(model)
    assert (status, len(lines)) == (1, 2)
    assert "checksum" in lines[0]
    (model / "model.safetensors").write_bytes(whole)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "depth": 2}))
    status, lines = said(model)
    assert (status, len(lines)) == (1, 2)
    assert "does not fit a model of this size" in lines[0]
    (model / "config.json").unlink()
    assert said(model)[1][-1] == f"{model}: 1 problem"


def test_shards_and_their_cache(said: Said, tmp_path: Path) -> None:
    shards = write_dataset(tmp_path / "shards", [3], [2])
    cache = write_cache(shards, views=2)
    assert said(shards) == (0, [f"{shards}: sound"])
    assert said(cache) == (0, [f"{cache}: sound"])
    for folder in (cache, shards):
        flip_a_bit(folder / "train-000000.tar")
        status, lines = said(folder)
        assert status == 1
        assert f"{folder}: train-000000.tar: sha256 differs from the index" in lines
        (folder / "index.json").write_text("{")
        assert said(folder)[0] == 1


def test_a_folder_of_artefacts_is_checked_part_by_part(said: Said, tmp_path: Path) -> None:
    write_run(tmp_path / "pretrain")
    write_run(tmp_path / "multires")
    write_model(tmp_path / "model")
    (tmp_path / "notes.txt").write_text("")
    assert said(tmp_path)[0] == 0
    flip_a_bit(tmp_path / "pretrain/checkpoints/last.ckpt")
    flip_a_bit(tmp_path / "model/model.safetensors", 0.99)
    status, lines = said(tmp_path)
    assert (status, lines[-1]) == (1, f"{tmp_path}: 2 problems")


@pytest.mark.parametrize("name", ["none", "empty", "photo.jpg"])
def test_a_wrong_path_is_a_mistake(name: str, said: Said, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "photo.jpg").write_bytes(b"")
    status, lines = said(tmp_path / name)
    assert status == 2
    assert lines[0].startswith(f"veca: error: path = {tmp_path / name}: must be the folder of a run")
