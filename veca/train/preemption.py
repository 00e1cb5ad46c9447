"""A run that is asked to stop: saves at the end of a step, asks SLURM to run it again, ends.

Time limits, preemption, `kill` and Ctrl-C speak through SIGUSR1, SIGTERM or SIGINT (`process.py` notes them).
Lightning would save inside the signal's handler, while another rank may be in the middle of a step: they then
wait for each other for ever. Here the ranks agree at the end of each optimizer step whether one was asked.
"""

import sys
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.utilities import rank_zero_only

from veca.train.ddp import any_rank
from veca.train.slurm import requeue, under_slurm
from veca.utils.process import STOPPED, stop_signals


class Stopped(SystemExit):
    """The end of a run that was asked to stop. Not an error: all it had done is saved."""


class StopWhenAsked(Checkpoint):
    """Ends the run at the first step's end after a signal, with its checkpoint at `path`.

    Where a validation belongs to that step, the run ends after it: a resumed run would leave it out. A
    checkpoint from before it is there in case the time is up earlier. A run whose last step is done
    finishes.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._step: int | None = None  # the last one that ended; None before training
        self._first = 0  # where this process began

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._step = self._first = trainer.global_step
        stop_signals.checkpoints = self.path.parent

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.global_step == self._step:  # within an accumulation
            return
        self._step = trainer.global_step
        if self._asked(trainer):
            trainer.save_checkpoint(self.path)
            if not _validates_now(trainer):
                trainer._logger_connector.update_train_step_metrics()  # Lightning would after this hook
                self._stop(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._step is not None and self._asked(trainer):  # `veca validate` has nothing to save
            trainer.save_checkpoint(self.path)
            self._stop(trainer)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        if self._step is not None and self.path.exists() and not isinstance(exception, Stopped):
            _say(f"the run ended at step {trainer.global_step}. {_how_to_continue(trainer)}")

    def _asked(self, trainer: Trainer) -> bool:
        if trainer.global_step >= trainer.estimated_stepping_batches:
            return False
        return any_rank(trainer.strategy, stop_signals.received is not None)

    def _stop(self, trainer: Trainer) -> None:
        """All ranks leave together, when SLURM has answered: the first to end could end the job."""
        answer = (False, "")
        if trainer.is_global_zero and under_slurm():
            answer = requeue()
        again, sentence = trainer.strategy.broadcast(answer)
        name = stop_signals.received.name if stop_signals.received else "a signal to another rank"
        _say(f"asked to stop by {name}: step {trainer.global_step} is saved in {self.path}.")
        _say(f"{sentence}; it continues from there." if again else f"{sentence} {_how_to_continue(trainer)}")
        if again and trainer.global_step <= self._first + 1:
            _say("it came before the first step was done: is the job's --time longer than --signal's?")
        # Others than rank 0 end well: a launcher kills rank 0 when one of its children fails.
        raise Stopped(STOPPED if trainer.is_global_zero else 0)


def _validates_now(trainer: Trainer) -> bool:
    """Whether a validation follows the step that has just ended; Lightning has no public word for it."""
    fetcher = trainer.fit_loop._data_fetcher
    assert fetcher is not None
    return trainer.fit_loop.epoch_loop._should_check_val_fx(fetcher)


def _how_to_continue(trainer: Trainer) -> str:
    return f"Continue it with the same command and --ckpt_path last (run folder {trainer.default_root_dir})."


@rank_zero_only
def _say(sentence: str) -> None:
    print(f"veca: {sentence.strip()}", file=sys.stderr, flush=True)
