"""A run's checkpoints: written whole or not at all, found again, in whatever folder the run is now.

RUN/checkpoints/last.ckpt    every so many steps, at the end, and when the run is asked to stop
RUN/checkpoints/last-1.ckpt  the one before it, in case a disk damages the newest
RUN/checkpoints/best.ckpt    the lowest validation loss

A crash or a full disk leaves the previous file as it was (`files.py`); last-1.ckpt is a link to what was
last.ckpt, no copy. A save that fails ends the run with what to do: hours without a checkpoint may be lost.

Checkpoints with numbers that are not finite are not written (`callbacks.py`), and one that is there
nevertheless is not read: whatever continues from it stays lost.
"""

import logging
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins import CheckpointIO
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor

from veca.checkpoint import checksum_problem, read_pickle
from veca.utils.files import atomic_path

LAST = "last"
FORMER = "last-1.ckpt"

log = logging.getLogger(__name__)


class SafeCheckpointIO(CheckpointIO):
    """Reads and writes checkpoints for a Trainer; the only place that does."""

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None
    ) -> None:
        final = Path(path)
        former, step = final.with_name(FORMER), checkpoint.get("global_step", 0)
        is_last = final == last_path(final.parent)
        try:
            final.parent.mkdir(parents=True, exist_ok=True)
            # A second save of one step, or a damaged file, must not take the place of a good earlier one.
            keeps = is_last and _step_or(step, final) < step and checksum_problem(final) is None
            with atomic_path(final, former=former if keeps else None) as temporary:
                torch.save(checkpoint, temporary)
            if is_last and former.exists() and _step_or(step - 1, former) >= step:
                former.unlink()  # of a run that was begun anew: `last` would find it and not this one
        except (OSError, RuntimeError) as error:  # torch reports a failed write as a RuntimeError
            raise OSError(_save_problem(final, error)) from None

    def load_checkpoint(
        self, path: str | Path, map_location: Any = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Always without running code, whatever `weights_only` says; one with a NaN is refused."""
        if not Path(path).is_file():
            raise FileNotFoundError(
                f"ckpt_path = {path}: no such file. `last` finds a run's newest checkpoint."
            )
        checkpoint = read_pickle(Path(path))
        if problem := nonfinite(checkpoint):
            raise ValueError(
                f"ckpt_path = {path}: {problem}, and would stay so. Take an earlier checkpoint: `last` finds "
                "the newest one of a run that is whole and finite."
            )
        return checkpoint

    def remove_checkpoint(self, path: str | Path) -> None:
        Path(path).unlink(missing_ok=True)


class RunCheckpoint(ModelCheckpoint):
    """A checkpoint callback that goes on in the folder where the run is now, copied or not."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        assert self.dirpath is not None
        here = Path(self.dirpath)

        def moved(path: str) -> str:
            return str(here / Path(path).name) if path else path

        state = {**state_dict, "dirpath": self.dirpath}
        state |= {key: moved(state[key]) for key in state if key.endswith("_model_path")}
        state["best_k_models"] = {moved(path): score for path, score in state["best_k_models"].items()}
        super().load_state_dict(state)


class LastCheckpoint(RunCheckpoint):
    """last.ckpt, every so many optimizer steps and at the end of training."""

    def __init__(self, folder: Path, *, every: int) -> None:
        super().__init__(
            folder,
            filename=LAST,
            every_n_train_steps=every,
            save_on_train_epoch_end=False,
            enable_version_counter=False,  # one file, replaced
        )

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_end(trainer, pl_module)
        if trainer.global_step % self._every_n_train_steps:
            assert self.dirpath is not None
            trainer.save_checkpoint(last_path(Path(self.dirpath)))


def last_path(checkpoints: Path) -> Path:
    return checkpoints / f"{LAST}.ckpt"


def newest_intact(checkpoints: Path) -> Path | None:
    """The checkpoint of the latest step that is whole and finite; None where there is none yet."""
    damaged: list[str] = []
    steps: list[tuple[int, float, Path]] = []
    for path in sorted(checkpoints.glob("*.ckpt")):
        try:
            steps.append((read_step(path), path.stat().st_mtime, path))
        except (ValueError, OSError) as error:
            damaged.append(str(error))
    for _, _, path in sorted(steps, reverse=True):
        problem = content_problem(path)
        if problem is None:
            for message in damaged:
                log.warning("passed over a damaged checkpoint: %s", message)
            return path
        damaged.append(problem)
    if damaged:
        raise ValueError(
            f"no checkpoint in {checkpoints} is intact:\n  "
            + "\n  ".join(damaged)
            + "\nBring one back from a copy; or move these away, and the run starts from its beginning."
        )
    return None


def nonfinite(checkpoint: Mapping[str, Any]) -> str | None:
    """Which weights and optimizer state of a checkpoint are not finite, in words; reads the device once."""
    parts = {key: checkpoint.get(key) for key in ("state_dict", "optimizer_states")}
    tensors = dict(_floating(parts))
    if not tensors:
        return None
    # Of a tensor with a NaN both ends are NaN; unlike isfinite(), aminmax() makes no tensor of its size.
    ends = [torch.stack(tensor.detach().aminmax()) for tensor in tensors.values()]
    device = max((end.device for end in ends), key=lambda device: device.type != "cpu")
    fine = torch.stack([end.to(device, non_blocking=True) for end in ends]).isfinite().all(1).tolist()
    bad = [name for name, good in zip(tensors, fine, strict=True) if not good]
    return f"{len(bad)} of {len(tensors)} tensors are not finite, first {bad[0]}" if bad else None


def remove_leftovers(checkpoints: Path) -> None:
    """What saves that were killed left behind; for the one process that may write here."""
    for path in checkpoints.glob(".*.ckpt.*.tmp"):
        path.unlink(missing_ok=True)


def read_step(path: Path) -> int:
    """The optimizer step of a run's checkpoint; reads none of its tensors."""
    step = read_pickle(path, lazily=True).get("global_step")
    if not isinstance(step, int):
        raise ValueError(f"{path} is not a run's checkpoint: it has no global_step.")
    return step


def content_problem(path: Path) -> str | None:
    """Compare every part with its checksum, which torch does not do; then look for a NaN."""
    problem = checksum_problem(path)
    if problem is None and (bad := nonfinite(read_pickle(path, lazily=True))):
        problem = f"{path}: {bad}"
    return problem


def _step_or(default: int, path: Path) -> int:
    """The step of a checkpoint, where there is one that can be read."""
    try:
        return read_step(path)
    except (ValueError, OSError):
        return default


def _floating(tree: Any, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """The tensors inside dicts and lists that can hold a NaN, by their path."""
    if isinstance(tree, Tensor):
        if tree.is_floating_point() and tree.numel():
            yield name, tree
    elif isinstance(tree, Mapping | list | tuple):
        for key, part in tree.items() if isinstance(tree, Mapping) else enumerate(tree):
            yield from _floating(part, f"{name}.{key}" if name else str(key))


def _save_problem(path: Path, error: Exception) -> str:
    kept = f"The previous {path.name} is as it was." if path.exists() else "Nothing was saved before."
    try:
        free = f"{shutil.disk_usage(path.parent).free / 1e9:.2f} GB are free there."
    except OSError:
        free = ""
    return (
        f"{path} could not be saved: {str(error).splitlines()[0]}. {free} {kept} Make room, then continue "
        "with --ckpt_path last."
    )
