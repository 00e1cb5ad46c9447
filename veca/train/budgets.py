"""Which budget (and resolution) an optimizer step uses, and how every rank comes to know it (method §3).

The draws are functions of (seed, step). The main process makes them and shares them with the other ranks
in blocks, well ahead of need: prefetching loaders ask for steps that training has not reached, and no
step waits for a broadcast.

`BroadcastBudgetStrategy` is DDP for an elastic student. The core groups that a budget leaves out have no
gradient, which plain DDP answers with a graph walk in every step; here they stay out of DDP's buckets and
the strategy averages the active ones itself. It also keeps ranks together where one of them alone meets a
fault: a checkpoint that only rank 0 fails to write, or one that ranks read differently.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy, Strategy, StrategyRegistry
from torch import Tensor, nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
from torch.distributed import ProcessGroup, ReduceOp, new_group
from torch.nn.parallel import DistributedDataParallel

from veca.model.cores import CoreBank
from veca.train.launcher import RankLauncher

BLOCK = 1024  # steps per shared block; far more than any loader prefetches
STRATEGY_NAME = "veca_ddp"
TIMEOUT = timedelta(minutes=10)  # of a wait for other ranks: far more than a validation or a save takes
_LOST = re.compile("closed by peer|reset by peer|Broken pipe|remote process has terminated")


@dataclass(frozen=True)
class BudgetSchedule:
    """The budgets of a run.

    Args:
        weights: How often each budget is drawn, relative to the others.
        seed: Seed of the draws.
    """

    weights: dict[int, float]
    seed: int = 42

    def problems(self, budgets: tuple[int, ...]) -> list[str]:
        """Every broken rule, for a student with these budgets."""
        listed = ", ".join(map(str, budgets))
        found = [
            f"weights: budget {budget} is not one of {listed}."
            for budget in self.weights
            if budget not in budgets
        ]
        found += [
            f"weights[{budget}] = {weight}: must be a number ≥ 0."
            for budget, weight in self.weights.items()
            if not 0 <= weight < float("inf")
        ]
        if not found and not sum(self.weights.values()) > 0:
            found.append(f"weights = {self.weights}: at least one must be above 0.")
        return found

    @property
    def drawn(self) -> list[int]:
        """The budgets that a run can meet."""
        return [budget for budget, weight in self.weights.items() if weight > 0]

    def budget(self, step: int) -> int:
        """The budget of an optimizer step."""
        weights = np.array(list(self.weights.values()), dtype=np.float64)
        # Philox is a function of (key, counter): the draw of a step needs no draw before it.
        uniform = np.random.Generator(np.random.Philox(key=self.seed, counter=step)).random()
        place = int(np.searchsorted(np.cumsum(weights) / weights.sum(), uniform, side="right"))
        return list(self.weights)[min(place, len(weights) - 1)]


class StepPlan:
    """Budget and resolution of every step, drawn on the main process, the same on all ranks.

    `share` sends the main process's tensor to all ranks. It is a collective, so it is called at points that
    all ranks pass alike: when the loader starts and when a step enters a new block.
    """

    def __init__(
        self,
        *,
        budget: Callable[[int], int],
        resolution: Callable[[int], int],
        share: Callable[[Tensor], Tensor],
    ) -> None:
        self._draws = (budget, resolution)
        self._share = share
        self._blocks: dict[int, list[list[int]]] = {}

    def reach(self, step: int) -> None:
        """Share the block of `step` and the one after it; forget the ones before."""
        first = step // BLOCK
        for number in (first, first + 1):
            if number not in self._blocks:
                steps = range(number * BLOCK, (number + 1) * BLOCK)
                drawn = torch.tensor([[draw(step) for step in steps] for draw in self._draws])
                self._blocks[number] = self._share(drawn).tolist()
        self._blocks = {number: rows for number, rows in self._blocks.items() if number >= first}

    def budget(self, step: int) -> int:
        return self._look_up(step)[0]

    def resolution(self, step: int) -> int:
        return self._look_up(step)[1]

    def _look_up(self, step: int) -> tuple[int, int]:
        if step // BLOCK not in self._blocks:
            self.reach(step)
        budgets, resolutions = self._blocks[step // BLOCK]
        return budgets[step % BLOCK], resolutions[step % BLOCK]


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

    def share(values: Tensor) -> Tensor:
        shared: Tensor = strategy.broadcast(values, src=0)
        return shared

    return share


def any_rank(strategy: Strategy, value: bool) -> bool:
    """Whether `value` holds on a rank. A collective: all ranks ask at the same place."""
    return strategy.any_rank(value) if isinstance(strategy, BroadcastBudgetStrategy) else value


def core_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters of all core banks inside `module`, by name."""
    return {
        f"{prefix}.{name}" if prefix else name: parameter
        for prefix, bank in module.named_modules()
        if isinstance(bank, CoreBank)
        for name, parameter in bank.named_parameters()
    }


def _copy_back(flat: Tensor, tensors: list[Tensor]) -> None:
    for tensor, value in zip(tensors, _unflatten_dense_tensors(flat, tensors), strict=True):
        tensor.copy_(value)


StrategyRegistry.register(
    STRATEGY_NAME,
    BroadcastBudgetStrategy,
    description="DDP for elastic students: shares budgets, reduces active cores",
)
