"""What the student sees of a few validation images, after each validation: RUN/snapshots/step-000350.npz.

The files are for the report. Each holds the images, the dense features at the full budget and the places of
the cores at every layer, as plain arrays and in well under a megabyte: images shrink to MAX_SIDE, features to
their best approximation of rank RANK, which is more than a picture of three colours can show.

Nothing here draws a random number or talks to another rank: a run with pictures is the run without them.
Neither does it end one. On a full disk the next checkpoint says what to do.

Shapes: B images, N patches, D width, K ≤ RANK, L layers, C cores.
"""

import logging
import zipfile
import zlib
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
from veca.utils.files import atomic_path

FOLDER_NAME = "snapshots"
NUM_IMAGES = 4
MAX_SIDE = 128  # pixels
RANK = 16
# What numpy, zip and our own look at the arrays find wrong with a file.
DAMAGE = (OSError, ValueError, LookupError, TypeError, EOFError, zipfile.BadZipFile, zlib.error)

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

    Args:
        folder: The run's.
        num_images: How many images of the first validation batch that has some, at the smallest resolution.
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
        if self._seen is None or not len(self._seen.images) or trainer.sanity_checking:
            return
        if not _writes(trainer):
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
    """Images, patches and places on the CPU, made small."""
    left, sizes, right = torch.linalg.svd(features.patches.float(), full_matrices=False)
    scores = (left * sizes[:, None])[..., :RANK]
    return Snapshot(
        step=step,
        keys=batch.keys,
        images=_shrink(batch.images).permute(0, 2, 3, 1).contiguous().numpy(),
        scores=scores.contiguous().numpy(),
        basis=right[:, :RANK].half().contiguous().numpy(),
        places=places.float().numpy(),
        grid=features.grid,
    )


def _shrink(images: Tensor) -> Tensor:
    """uint8 (B, 3, H, W) with no side above MAX_SIDE, by averaging over areas."""
    height, width = images.shape[-2:]
    scale = min(1.0, MAX_SIDE / max(height, width))
    size = max(1, round(height * scale)), max(1, round(width * scale))
    return F.interpolate(images.float(), size=size, mode="area").round().to(torch.uint8)


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
