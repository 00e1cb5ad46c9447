"""Runs of `veca fit` in processes of their own, to be signalled and killed.

The processes are forked from one that has imported torch and Lightning already: a run starts in a fraction
of a second, and ranks are told of each other as a launcher would.
"""

import contextlib
import multiprocessing
import os
import random
import signal
import socket
import sys
import time
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
import yaml

from veca.train.run_dir import read_metrics

LIMIT = 60.0  # seconds in which a run has to end when a part of it was killed


def write_recipe(
    folder: Path,
    shards: Path,
    *,
    max_steps: int,
    num_workers: int = 0,
    batch_size: int = 2,
    checkpoint_every: int = 5,
    model: dict[str, Any] | None = None,
    **trainer: Any,
) -> Path:
    """A recipe with quick steps that validates and saves now and then."""
    recipe = {
        "trainer": {
            "accelerator": "cpu",
            "devices": 1,
            "strategy": "veca_ddp",
            "max_steps": max_steps,
            "max_epochs": -1,
            "accumulate_grad_batches": 2,
            "check_val_every_n_epoch": None,
            "val_check_interval": 14,
            "log_every_n_steps": 1,
            "num_sanity_val_steps": 1,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            **trainer,
        },
        "model": {
            "teacher": {"class_path": "veca.teachers.OfflineTeacher"},
            "size": "tiny",
            "size_overrides": {"width": 32, "depth": 2, "num_heads": 2, "num_cores": 16},
            "budgets": {8: 1, 16: 1},
            "optimization": {"lr": 1e-3, "min_lr": 1e-4, "weight_decay": 0.01, "warmup_steps": 0},
            **(model or {}),
        },
        "data": {
            "sources": str(shards),
            "num_workers": num_workers,
            "resolutions": {
                "phases": [{"start_step": 0, "probabilities": {32: 1.0}}],
                "batch_size": batch_size,
            },
        },
        "checkpoint_every": checkpoint_every,
    }
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe), encoding="utf-8")
    return path


class Run:
    """One `veca fit` with one or more ranks, each a process; RUN/log-RANK.txt holds what it says."""

    def __init__(self, recipe: Path, folder: Path, *options: str, ranks: int = 1) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        words = ["fit", "--config", str(recipe), "--trainer.default_root_dir", str(folder)]
        words += ["--trainer.devices", str(ranks), "--ckpt_path", "last", *options]
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["veca.cli.fit", "veca.teachers"])
        port = str(_free_port())
        self.ranks: list[BaseProcess] = [
            context.Process(
                target=_fit,
                args=(words, _rank_environment(rank, ranks, port) if ranks > 1 else {}, folder),
                daemon=False,
            )
            for rank in range(ranks)
        ]
        for process in self.ranks:
            process.start()

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, *error: object) -> None:
        for process in self.ranks:
            process.kill()
            process.join()

    def wait(self, limit: float = LIMIT) -> list[int | None]:
        """The exit statuses of the ranks; None for one that did not end in time."""
        until = time.monotonic() + limit
        for process in self.ranks:
            process.join(max(0.0, until - time.monotonic()))
        return [process.exitcode for process in self.ranks]

    def wait_for_step(self, step: int, limit: float = LIMIT) -> None:
        until = time.monotonic() + limit
        while self.step() < step:
            assert time.monotonic() < until, f"step {step} was not reached: {self.log()}"
            if all(process.exitcode is not None for process in self.ranks):
                return
            time.sleep(0.01)

    def step(self) -> int:
        path = self.folder / "metrics.csv"
        return max((step for step, _, _ in read_metrics(path)), default=-1) if path.exists() else -1

    def workers(self) -> list[int]:
        """The loader workers of all ranks."""
        return [child for process in self.ranks if process.pid for child in _children(process.pid)]

    def kill(self, kind: str, chance: random.Random) -> bool:
        """kill -9 the main rank, another one or a loader worker; False where there is none."""
        pids = {
            "main": [self.ranks[0].pid],
            "rank": [process.pid for process in self.ranks[1:]],
            "worker": self.workers(),
        }[kind]
        if not pids:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(chance.choice(pids) or 0, signal.SIGKILL)
        return True

    def log(self) -> str:
        return "\n".join(path.read_text() for path in sorted(self.folder.glob("log-*.txt")))


def outcome(folder: Path) -> dict[str, Any]:
    """What a run has come to: weights, optimizer, and the losses of each validation."""
    content = torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)
    rows = read_metrics(folder / "metrics.csv")
    return {
        "step": content["global_step"],
        "weights": content["state_dict"],
        "optimizers": content["optimizer_states"],
        "losses": [row for row in rows if row[1] in ("train/loss", "val/loss")],
    }


def same(one: Any, two: Any) -> bool:
    """Equal bit for bit, through dicts and lists."""
    if isinstance(one, torch.Tensor):
        return isinstance(two, torch.Tensor) and torch.equal(one, two)
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(same(one[key], two[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(two) and all(map(same, one, two))
    return bool(one == two)


def _fit(words: list[str], environment: dict[str, str], folder: Path) -> None:
    with (folder / f"log-{environment.get('RANK', '0')}.txt").open("a") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    os.environ.update(environment)
    multiprocessing.set_start_method("fork", force=True)  # loader workers start as they do elsewhere
    torch.set_num_threads(1)
    sys.argv = ["veca"]
    from veca.cli.main import main

    main(words)


def _rank_environment(rank: int, ranks: int, port: str) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "GROUP_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "TORCHELASTIC_RUN_ID": "tests",
    }


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _children(pid: int) -> Iterator[int]:
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            yield from map(int, (task / "children").read_text().split())
