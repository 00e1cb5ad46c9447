"""DDP for an elastic student, and how the ranks of a machine are started and ended.

The core groups that a budget leaves out have no gradient, which plain DDP answers with a graph walk in every
step; here they stay out of DDP's buckets and the strategy averages the active ones itself. It also keeps
ranks together where one of them alone meets a fault: a checkpoint that only rank 0 fails to write, or one
that ranks read differently.

A rank that fails must be gone at once: the others wait for it in a collective, and NCCL lets them wait for
the process group's timeout. Lightning lets an exception travel to the end of the process, where giving back
the process group waits for the others in turn. So a rank reports its failure here and leaves; the launcher of
the machine (rank 0), srun or torchrun then end the others.
"""

import contextlib
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

import torch
from lightning.fabric.utilities.distributed import _set_num_threads_if_needed
from lightning.pytorch import Trainer
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy, Strategy, StrategyRegistry
from lightning.pytorch.strategies.launchers import _SubprocessScriptLauncher
from lightning.pytorch.trainer.call import _call_callback_hooks
from torch import Tensor, nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
from torch.distributed import ProcessGroup, ReduceOp, new_group
from torch.nn.parallel import DistributedDataParallel

from veca.model.cores import CoreBank
from veca.utils.process import PATIENCE, STOPPED, describe, flush, leave, say, started_ranks

STRATEGY_NAME = "veca_ddp"
TIMEOUT = timedelta(minutes=10)  # of a wait for other ranks: far more than a validation or a save takes
_LOST = re.compile("closed by peer|reset by peer|Broken pipe|remote process has terminated")


class BroadcastBudgetStrategy(DDPStrategy):
    """DDP that shares the step plan and reduces the active cores. In a recipe: `strategy: veca_ddp`."""

    def __init__(self, **options: Any) -> None:
        # Students have constant buffers only; to send them is to wait for a rank without a batch to validate.
        defaults = {"find_unused_parameters": False, "gradient_as_bucket_view": True, "timeout": TIMEOUT}
        super().__init__(**{**defaults, "broadcast_buffers": False, **options})
        self._core_parameters: list[nn.Parameter] = []
        self._cpu_group: ProcessGroup | None = None

    def _configure_launcher(self) -> None:
        if self._start_method != "popen":
            return super()._configure_launcher()
        assert self.cluster_environment is not None
        self._launcher = RankLauncher(self.cluster_environment, self.num_processes, self.num_nodes)

    def configure_ddp(self) -> None:
        if self.world_size == 1:
            return  # nothing to reduce, so no wrapper to pay for
        assert self.model is not None
        cores = core_parameters(self.model)
        self._core_parameters = list(cores.values())
        # DDP has no public way to leave parameters out; this one is what torch's own libraries use.
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(self.model, list(cores))
        super().configure_ddp()
        # No buffer of a student changes. Broadcast in every forward, they would hold ranks to one number of
        # forwards, and a validation batch may be empty. (An attribute: torch renamed the argument.)
        assert isinstance(self.model, DistributedDataParallel)
        self.model.broadcast_buffers = False
        if cores:
            flat = _flatten_dense_tensors([parameter.data for parameter in cores.values()])
            torch.distributed.broadcast(flat, src=0)
            _copy_back(flat, [parameter.data for parameter in cores.values()])

    def optimizer_step(
        self, optimizer: Any, closure: Callable[[], Any], model: Any = None, **kwargs: Any
    ) -> Any:
        """The closure runs forward and backward; cores are averaged after it, before clipping."""

        def closure_then_reduce() -> Any:
            result = closure()
            self._reduce_core_gradients()
            return result

        return super().optimizer_step(optimizer, closure_then_reduce, model, **kwargs)

    def any_rank(self, value: bool) -> bool:
        """Whether `value` holds on a rank; asked on the CPU, so that no rank waits for its device."""
        if self.world_size == 1:
            return value
        if self._cpu_group is None:
            self._cpu_group = new_group(backend="gloo", timeout=self._timeout)
        flag = torch.tensor([value], dtype=torch.uint8)
        torch.distributed.all_reduce(flag, ReduceOp.MAX, group=self._cpu_group)
        return bool(flag)

    def save_checkpoint(
        self, checkpoint: dict[str, Any], filepath: str | Path, storage_options: Any = None
    ) -> None:
        """Rank 0 writes. Where it cannot, all ranks hear why; alone it would leave the others waiting."""
        problem = None
        try:
            super().save_checkpoint(checkpoint, filepath, storage_options)
        except OSError as error:
            problem = str(error)
        problem = self.broadcast(problem)
        if problem is not None:
            raise OSError(problem)

    def load_checkpoint(
        self, checkpoint_path: str | Path, weights_only: bool | None = None
    ) -> dict[str, Any]:
        checkpoint = super().load_checkpoint(checkpoint_path, weights_only)
        step = checkpoint.get("global_step")
        if self.any_rank(self.broadcast(step) != step):
            raise ValueError(
                f"{checkpoint_path}: ranks read different steps from it; on rank {self.global_rank} it is of "
                f"step {step}. Machines see a shared folder with a delay: try again."
            )
        return checkpoint

    def on_exception(self, exception: BaseException) -> None:
        super().on_exception(exception)
        if self.world_size > 1 and _LOST.search(str(exception)):
            exception.add_note(
                f"Rank {self.global_rank} lost another rank, which has ended: the cause stands in the output "
                "of that one. If it was killed, memory may have run out."
            )

    def _reduce_core_gradients(self) -> None:
        grads = [parameter.grad for parameter in self._core_parameters if parameter.grad is not None]
        if grads:
            flat = _flatten_dense_tensors(grads)
            torch.distributed.all_reduce(flat)
            _copy_back(flat / self.world_size, grads)


def share_by(strategy: Strategy) -> Callable[[Tensor], Tensor]:
    """How a strategy sends a tensor of the main process to all ranks; others than ours are refused."""
    if not isinstance(strategy, BroadcastBudgetStrategy | SingleDeviceStrategy):
        raise ValueError(
            f"trainer.strategy must be {STRATEGY_NAME} (or auto on one device); got "
            f"{type(strategy).__name__}. Budgets change the set of active cores in every step, and only "
            f"{STRATEGY_NAME} shares them. Try --trainer.strategy {STRATEGY_NAME}."
        )

    return strategy.broadcast


def any_rank(strategy: Strategy, value: bool) -> bool:
    """Whether `value` holds on a rank. A collective: all ranks ask at the same place."""
    return strategy.any_rank(value) if isinstance(strategy, BroadcastBudgetStrategy) else value


def core_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters of all core banks inside `module`, by name."""
    return {
        name: parameter
        for prefix, bank in module.named_modules()
        if isinstance(bank, CoreBank)
        for name, parameter in bank.named_parameters(prefix=prefix)
    }


def _copy_back(flat: Tensor, tensors: list[Tensor]) -> None:
    for tensor, value in zip(tensors, _unflatten_dense_tensors(flat, tensors), strict=True):
        tensor.copy_(value)


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


StrategyRegistry.register(
    STRATEGY_NAME,
    BroadcastBudgetStrategy,
    description="DDP for elastic students: shares budgets, reduces active cores",
)
