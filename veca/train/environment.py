"""Where and with what a run was made: RUN/environment.json, one entry for each start of it.

The report shows it per stage, beside the same facts about its own making.
"""

import json
import logging
import platform
import shlex
import subprocess
import sys
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

from veca.utils.files import write_text_atomic

ENVIRONMENT_NAME = "environment.json"
FORMAT, VERSION = "veca-environment", 1
PACKAGES = ("veca", "torch", "lightning", "transformers", "webdataset", "numpy")

Start = dict[str, Any]

log = logging.getLogger(__name__)


class RecordEnvironment(Callback):
    """Adds an entry when training starts; a run that starts at its beginning begins the file too."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / ENVIRONMENT_NAME

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.is_global_zero or trainer.fast_dev_run:  # type: ignore[attr-defined]
            return
        start = {
            "started": datetime.now().astimezone().isoformat(timespec="seconds"),
            "step": trainer.global_step,
            "command": shlex.join(sys.argv),
            **gather(),
            "device": _device_name(trainer.strategy.root_device),
            "precision": str(trainer.precision),
            "num_nodes": trainer.num_nodes,
            "world_size": trainer.world_size,
        }
        try:
            earlier = read_environment(self.path) if trainer.global_step else []
            body = {"format": FORMAT, "version": VERSION, "starts": [*earlier, start]}
            write_text_atomic(self.path, json.dumps(body, indent=1, ensure_ascii=False) + "\n")
        except (OSError, ValueError) as error:  # no reason to end a run
            log.warning("the environment of this start is not recorded: %s", error)


def gather() -> Start:
    """What is true of this process wherever it runs: versions, and the state of the code."""
    facts: Start = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: found for name in PACKAGES if (found := _version(name))},
    }
    root, here = Path(__file__).resolve().parents[2], git_state(Path.cwd())
    code = git_state(root) if (root / ".git").exists() else None  # an installed package has no commit
    git = {"veca": code} if code else {}
    if here and here != code:
        git["current folder"] = here
    return {**facts, "git": git} if git else facts


def read_environment(path: Path) -> list[Start]:
    """The starts of a run; none where there is no file, ValueError when it is damaged."""
    if not path.is_file():
        return []
    try:
        starts = json.loads(path.read_text(encoding="utf-8"))["starts"]
        return [dict(start) for start in starts]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} is damaged: {error!r}. Bring it back from a copy, or move it away."
        ) from None


def facts(start: Start) -> dict[str, str]:
    """An entry as name → text, to be shown."""
    shown: dict[str, str] = {}
    for name, value in start.items():
        if name == "packages" and isinstance(value, dict):
            shown |= {package: str(found) for package, found in value.items()}
        elif name == "git" and isinstance(value, dict):
            shown |= {f"git, {place}": _sentence(state) for place, state in value.items()}
        else:
            shown[name.replace("_", " ")] = str(value)
    return shown


def git_state(folder: Path) -> Start | None:
    """The checkout that a folder lies in: its place, commit and number of changed files; None without one."""
    try:
        root, commit, changes = (
            subprocess.run(
                ["git", "--no-optional-locks", "-C", str(folder), *words],
                capture_output=True,
                text=True,
                timeout=10,
                check=True,
            ).stdout.strip()
            for words in (("rev-parse", "--show-toplevel"), ("rev-parse", "HEAD"), ("status", "--porcelain"))
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return {"folder": root, "commit": commit, "num_changed": len(changes.splitlines())}


def _sentence(state: Any) -> str:
    if not isinstance(state, dict) or "commit" not in state:
        return str(state)
    changed = state.get("num_changed")
    return f"{str(state['commit'])[:12]}, {f'{changed} files changed since' if changed else 'unchanged'}"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)}, CUDA {torch.version.cuda}"
    return f"cpu, {torch.get_num_threads()} threads" if device.type == "cpu" else device.type
