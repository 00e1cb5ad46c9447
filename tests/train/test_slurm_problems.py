"""What SLURM gave against what the Trainer is told, from environments as srun sets them."""

import socket
import sys
from pathlib import Path

import pytest
from lightning.fabric.utilities import device_parser

from tests.runs import write_recipe
from veca.cli.main import main
from veca.train import slurm
from veca.train.slurm import (
    cluster_problems,
    device_problems,
    is_main_process,
    num_devices,
    port_problems,
    under_slurm,
)

TWO_NODES = {
    "SLURM_JOB_ID": "1234567",
    "SLURM_JOB_NAME": "veca-fit",
    "SLURM_NTASKS": "4",
    "SLURM_NTASKS_PER_NODE": "2",
    "SLURM_NNODES": "2",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "3",
}


@pytest.mark.parametrize(
    ("change", "devices", "nodes", "words"),
    [
        ({}, 2, 2, []),
        ({}, "2", 2, []),
        ({}, 2, 1, ["trainer.num_nodes = 1", "Set --trainer.num_nodes 2"]),
        ({}, 8, 2, ["trainer.devices = 8", "2 tasks per node", "--trainer.devices 2", "--ntasks-per-node=8"]),
        ({}, "auto", 1, ["(1 here)", "--trainer.num_nodes 2"]),
        ({"SLURM_STEP_ID": None}, 2, 2, ["not started with srun"]),
        ({"SLURM_NTASKS_PER_NODE": None}, 2, 2, ["--ntasks-per-node"]),
        ({"SLURM_NTASKS": None}, 3, 5, []),  # not a task of a job
        ({"SLURM_JOB_NAME": "bash"}, 3, 5, []),  # a shell on a node
    ],
)
def test_what_slurm_gave_is_compared(
    change: dict[str, str | None], devices: object, nodes: int, words: list[str]
) -> None:
    env = {name: value for name, value in {**TWO_NODES, **change}.items() if value is not None}
    problems = cluster_problems(accelerator="cpu", devices=devices, num_nodes=nodes, env=env)
    assert bool(problems) == bool(words)
    for word in words:
        assert word in "\n".join(problems)


def test_the_main_process_is_known_before_ranks_know_each_other() -> None:
    assert is_main_process({})
    assert not is_main_process(TWO_NODES)
    assert is_main_process({**TWO_NODES, "SLURM_PROCID": "0"})
    assert not is_main_process({"RANK": "2", "LOCAL_RANK": "0"})
    assert not is_main_process({"NODE_RANK": "1", "LOCAL_RANK": "0"})
    assert not is_main_process({"LOCAL_RANK": "1"})
    assert not under_slurm({**TWO_NODES, "TORCHELASTIC_RUN_ID": "x"})


def test_a_port_in_use_is_found_by_the_process_that_will_listen() -> None:
    with socket.socket() as busy:
        busy.bind(("", 0))
        busy.listen()
        port = str(busy.getsockname()[1])
        (problem,) = port_problems(world_size=2, env={"MASTER_PORT": port})
        assert f"port {port}" in problem
        assert "MASTER_PORT" in problem
        assert port_problems(world_size=1, env={"MASTER_PORT": port}) == []
        assert port_problems(world_size=2, env={"MASTER_PORT": port, "LOCAL_RANK": "1"}) == []
    assert port_problems(world_size=2, env={"MASTER_PORT": port}) == []
    assert port_problems(world_size=2, env={}) == []  # Lightning picks a free one


@pytest.mark.parametrize(("devices", "count"), [("auto", 1), (3, 3), ("2", 2)])
def test_devices_are_counted_as_lightning_does(devices: object, count: int) -> None:
    assert num_devices(accelerator="cpu", devices=devices) == count


@pytest.mark.parametrize("devices", [-3, "-1", 0, "0", "banana", "1.5", [0, 1]])
def test_devices_that_no_trainer_takes(devices: object) -> None:
    (problem,) = device_problems(accelerator="cpu", devices=devices)
    assert (
        problem == f"trainer.devices = {devices}: must be auto, or a number of processes from 1 on. Try auto."
    )


@pytest.mark.parametrize("accelerator", ["gpu", "cuda", "mps", "tpu"])
def test_an_accelerator_that_is_not_there(accelerator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in (slurm.CUDAAccelerator, slurm.MPSAccelerator):
        monkeypatch.setattr(kind, "is_available", lambda: False)
    (problem,) = device_problems(accelerator=accelerator, devices="auto")
    assert problem.startswith(f"trainer.accelerator = {accelerator}: ")
    assert "auto." in problem


@pytest.mark.parametrize("devices", ["auto", -1, "2", [0, 1]])
def test_devices_of_a_machine_with_two_gpus(devices: object, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("is_available", True), ("auto_device_count", 2)):
        monkeypatch.setattr(slurm.CUDAAccelerator, name, lambda value=value: value)
    monkeypatch.setattr(device_parser, "_get_all_available_gpus", lambda **options: [0, 1])
    assert device_problems(accelerator="gpu", devices=devices) == []
    (problem,) = device_problems(accelerator="gpu", devices=3)
    assert "a number from 1 to 2" in problem


def test_all_of_it_is_reported_before_anything_is_built(
    tiny_shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in TWO_NODES.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "argv", ["veca"])
    recipe = write_recipe(tmp_path, tiny_shards, max_steps=2)
    with pytest.raises(SystemExit) as stop:
        main(["fit", "--config", str(recipe), "--trainer.devices", "30"])
    assert stop.value.code == 2
    said = capsys.readouterr().err
    for words in ("SLURM gave 2 nodes", "--ntasks-per-node=30", "50 samples", "batch_size 2 × 30 ranks"):
        assert words in said
