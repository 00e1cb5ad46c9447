"""Starting the ranks of a machine, and ending all of them when one fails.

A rank that fails must be gone at once: the others wait for it in a collective, and NCCL lets them wait for
the process group's timeout. Lightning lets an exception travel to the end of the process, where giving back
the process group waits for the others in turn. So a rank reports its failure here and leaves; the launcher of
the machine (rank 0), srun or torchrun then end the others.
"""

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from lightning.fabric.utilities.distributed import _set_num_threads_if_needed
from lightning.pytorch import Trainer
from lightning.pytorch.strategies.launchers import _SubprocessScriptLauncher
from lightning.pytorch.trainer.call import _call_callback_hooks

from veca.utils.process import PATIENCE, STOPPED, describe, flush, leave, say, started_ranks


class RankLauncher(_SubprocessScriptLauncher):
    """Lightning's launcher; an exception on a rank ends the job with that rank's message and status 1."""

    def launch(
        self, function: Callable[..., Any], *args: Any, trainer: Trainer | None = None, **kwargs: Any
    ) -> Any:
        self.cluster_environment.validate_settings(num_devices=self.num_processes, num_nodes=self.num_nodes)
        if not self.cluster_environment.creates_processes_externally:
            self._call_children_scripts()
            started_ranks[:] = self.procs
            threading.Thread(target=self._follow_children, daemon=True).start()
        _set_num_threads_if_needed(num_processes=self.num_processes)
        try:
            return function(*args, **kwargs)
        except Exception as error:
            if trainer is None or trainer.world_size == 1:
                raise
            _fail(trainer, error)

    def _follow_children(self) -> None:
        """End this rank when one that it started has failed, unless it ends by itself, as with gloo."""
        while not (failed := [rank for rank in self.procs if rank.poll()]):
            if all(rank.returncode == 0 for rank in self.procs):
                return
            time.sleep(0.2)
        time.sleep(PATIENCE)
        number, status = self.procs.index(failed[0]) + 1, failed[0].returncode
        say(f"rank {number} of this machine ended with status {status}, so all ranks end.")
        leave(_status(rank.poll() for rank in self.procs))


def _fail(trainer: Trainer, error: Exception) -> NoReturn:
    """Report the failure of this rank and leave. The report comes first: what follows it may get stuck."""
    rank, limit = trainer.global_rank, threading.Timer(PATIENCE, leave, [1])
    limit.daemon = True
    limit.start()
    trainer.strategy.on_exception(error)
    flush()
    print(f"veca: error: rank {rank}: {describe(error)}", file=sys.stderr, flush=True)
    with contextlib.suppress(Exception):
        _call_callback_hooks(trainer, "on_exception", error)
    for logger in trainer.loggers:
        with contextlib.suppress(Exception):
            logger.finalize("failed")
    flush()
    leave(_status(rank.poll() for rank in started_ranks))


def _status(ranks: Iterable[int | None]) -> int:
    """That of this rank, given those of the ranks it started: one of them may have been asked to stop."""
    return STOPPED if STOPPED in ranks else 1
