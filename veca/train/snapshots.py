"""What a run keeps for its report: where it was made, and what its student sees.

RUN/environment.json          where and with what, one entry for each start of the run
RUN/snapshots/step-000350.npz  a few validation images as the student sees them, after each validation

A snapshot holds the images, the dense features at the full budget and the places of the cores at every layer,
as plain arrays and in well under a megabyte: images shrink to MAX_SIDE, features to their best approximation
of rank RANK, which is more than a picture of three colours can show.

Nothing here draws a random number or talks to another rank: a run with pictures is the run without them.
Neither does it end one. On a full disk the next checkpoint says what to do.

Shapes: B images, N patches, D width, K ≤ RANK, L layers, C cores.
"""

import json
import logging
import platform
import shlex
import subprocess
import sys
import zipfile
import zlib
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.trainer.states import TrainerFn
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from veca.data.views import normalise
from veca.model import Veca
from veca.train.distill import Distill
from veca.types import Batch, Features
from veca.utils.files import atomic_path, write_text_atomic

ENVIRONMENT_NAME = "environment.json"
FORMAT, VERSION = "veca-environment", 1
PACKAGES = ("veca", "torch", "lightning", "transformers", "webdataset", "numpy")
FOLDER_NAME = "snapshots"
NUM_IMAGES = 4
MAX_SIDE = 128  # pixels
RANK = 16
# What numpy, zip and our own look at the arrays find wrong with a file.
DAMAGE = (OSError, ValueError, LookupError, TypeError, EOFError, zipfile.BadZipFile, zlib.error)

Start = dict[str, Any]

log = logging.getLogger(__name__)


class Snapshot(NamedTuple):
    """One file: what the student saw when `step` optimizer steps were done."""

    step: int
    keys: list[str]
    images: NDArray[np.uint8]  # (B, height, width, 3)
    scores: NDArray[np.float32]  # (B, N, K); scores @ basis are the features of the patches
    basis: NDArray[np.float16]  # (B, K, D)
    places: NDArray[np.float32]  # (L, B, C, 2), (x, y) in [-1, 1]²; L = 0 for a student without cores
    grid: tuple[int, int]


class Snapshots(Callback):
    """Writes one after each validation of `veca fit`; a resumed run drops those past its step.

    It shows `num_images` of the first validation batch that has some, at the smallest resolution.
    """

    def __init__(self, folder: Path, *, num_images: int = NUM_IMAGES) -> None:
        self.folder = folder / FOLDER_NAME
        self.num_images = num_images
        self._seen: Batch | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if _writes(trainer):
            for path in self.folder.glob("step-*.npz"):
                if _step_of(path) > trainer.global_step:
                    path.unlink(missing_ok=True)
            for path in self.folder.glob(".step-*.tmp"):  # a run was killed while it wrote
                path.unlink(missing_ok=True)

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Batch,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        if self._seen is None and batch.keys and dataloader_idx == 0 and _writes(trainer):
            images = batch.images[: self.num_images].to("cpu", copy=True)
            self._seen = Batch(images, batch.keys[: self.num_images])

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Lightning is in eval mode here, without gradients, and sets both back after this."""
        if not self._seen or not len(self._seen.images) or trainer.sanity_checking or not _writes(trainer):
            return
        assert isinstance(pl_module, Distill)
        with trainer.precision_plugin.val_step_context():
            snapshot = _take(pl_module, self._seen, step=trainer.global_step)
        if snapshot is not None:
            try:
                write_snapshot(self.folder, snapshot)
            except OSError as error:
                log.warning("no snapshot of step %d in %s: %s", snapshot.step, self.folder, error)


def write_snapshot(folder: Path, snapshot: Snapshot) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"step-{snapshot.step:06d}.npz"
    arrays = {name: np.asarray(value) for name, value in snapshot._asdict().items()}
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]  # the stub takes them for an option
    return path


def read_snapshots(folder: Path) -> list[Snapshot]:
    """The snapshots of a run's folder by step; one that is damaged is named and left out."""
    found = []
    for path in sorted((folder / FOLDER_NAME).glob("step-*.npz"), key=_step_of):
        try:
            found.append(_read(path))
        except DAMAGE as error:
            log.warning("passed over a damaged snapshot: %s: %s", path, error)
    return found


def _take(model: Distill, batch: Batch, *, step: int) -> Snapshot | None:
    """None when the features are not finite: the run is about to stop with a message of its own."""
    student, images = model.student, normalise(batch.images.to(model.device))
    places = torch.empty(0, len(images), 0, 2)
    if isinstance(student, Veca):
        features, places, _ = student.trace(images)
    else:
        features = student(images)
    patches, places = features.patches.float().cpu(), places.float().cpu()
    if not (patches.isfinite().all() and places.isfinite().all()):
        return None
    return pack(batch, features._replace(patches=patches), places, step=step)


def pack(batch: Batch, features: Features, places: Tensor, *, step: int) -> Snapshot:
    """Images, patches and places on the CPU, made small: images by averaging over areas."""
    height, width = batch.images.shape[-2:]
    scale = min(1.0, MAX_SIDE / max(height, width))
    size = max(1, round(height * scale)), max(1, round(width * scale))
    small = F.interpolate(batch.images.float(), size=size, mode="area").round().to(torch.uint8)
    left, sizes, right = torch.linalg.svd(features.patches.float(), full_matrices=False)
    scores = (left * sizes[:, None])[..., :RANK]
    return Snapshot(
        step=step,
        keys=batch.keys,
        images=small.permute(0, 2, 3, 1).contiguous().numpy(),
        scores=scores.contiguous().numpy(),
        basis=right[:, :RANK].half().contiguous().numpy(),
        places=places.float().numpy(),
        grid=features.grid,
    )


def _read(path: Path) -> Snapshot:
    with path.open("rb") as file, np.load(file, allow_pickle=False) as content:
        arrays = {name: content[name] for name in Snapshot._fields}
    rows, cols = (int(number) for number in arrays["grid"])
    keys = [str(key) for key in arrays["keys"]]
    arrays |= {"step": int(arrays["step"]), "keys": keys, "grid": (rows, cols)}
    for name, kind in (("scores", np.float32), ("basis", np.float16), ("places", np.float32)):
        arrays[name] = arrays[name].astype(kind)
        if not np.isfinite(arrays[name]).all():
            raise ValueError(f"its {name} are not finite.")
    snapshot = Snapshot(**arrays)
    (count, rank, _), layers = snapshot.basis.shape, snapshot.places
    fits = (
        len(keys) == count == len(snapshot.images)
        and snapshot.images.dtype == np.uint8
        and snapshot.images.shape[3:] == (3,)
        and snapshot.scores.shape == (count, rows * cols, rank)
        and (layers.ndim, layers.shape[1], layers.shape[-1]) == (4, count, 2)
    )
    if not fits:
        raise ValueError(f"its arrays do not fit each other: {count} images, {rows} × {cols} patches.")
    return snapshot


def _step_of(path: Path) -> int:
    number = path.stem.removeprefix("step-")
    return int(number) if number.isdecimal() else -1


def _writes(trainer: Trainer) -> bool:
    training = trainer.state.fn == TrainerFn.FITTING
    return training and trainer.is_global_zero and not trainer.fast_dev_run  # type: ignore[attr-defined]


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
