"""What a recipe says about optimization, and what it comes to for a given run."""

import logging
import math
from dataclasses import asdict, dataclass
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from veca.optim.combined import Backend, make_optimizer
from veca.optim.schedule import warmup_cosine_factor
from veca.optim.split import split_parameters

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Optimization:
    """Both optimizers and their learning rate.

    Args:
        lr: learning rate of both optimizers after warmup.
        min_lr: where warmup starts and the cosine ends.
        weight_decay: decay of both.
        warmup_steps: length of the linear warmup in optimizer steps; give this or warmup_epochs.
        warmup_epochs: the same in epochs.
        decay_steps: length of the decay at the end, the rate staying at lr before it; null for a cosine
            from the warmup's end on. A run whose decay has not begun can be prolonged (trainer.max_steps).
        momentum: NorMuon's momentum.
        beta2: memory of NorMuon's row second moment.
        betas: AdamW's memories.
        backend: `dion`, `veca` (ours), or `auto`: dion where it can be imported.
    """

    lr: float
    min_lr: float
    weight_decay: float
    warmup_steps: int | None = None
    warmup_epochs: float | None = None
    decay_steps: int | None = None
    momentum: float = 0.95
    beta2: float = 0.95
    betas: tuple[float, float] = (0.9, 0.999)
    backend: Backend = "auto"

    def problems(self) -> list[str]:
        """Every value that cannot be right."""
        found = []
        if not 0 < self.lr < math.inf:
            found.append(f"lr = {self.lr}: must be above 0.")
        elif not 0 <= self.min_lr <= self.lr:
            found.append(f"min_lr = {self.min_lr}: must lie between 0 and lr = {self.lr}.")
        if not 0 <= self.weight_decay < math.inf:
            found.append(f"weight_decay = {self.weight_decay}: must be a number ≥ 0.")
        if self.decay_steps is not None and self.decay_steps < 1:
            found.append(f"decay_steps = {self.decay_steps}: must be at least 1, or null.")
        if (self.warmup_steps is None) == (self.warmup_epochs is None):
            found.append(
                "give one of warmup_steps and warmup_epochs; "
                f"got {self.warmup_steps} and {self.warmup_epochs}."
            )
        return found

    def make(
        self, student: nn.Module, *, max_steps: int, steps_per_epoch: float, bf16_on_cpu: bool = False
    ) -> tuple[Optimizer, LambdaLR]:
        """The optimizer and its per-step schedule for a run of `max_steps`."""
        if self.warmup_steps is not None:
            warmup = self.warmup_steps
        else:
            assert self.warmup_epochs is not None
            warmup = round(self.warmup_epochs * steps_per_epoch)
        keys = ("lr", "weight_decay", "momentum", "beta2", "betas", "backend")
        options: dict[str, Any] = {key: asdict(self)[key] for key in keys}
        split = split_parameters(student)
        log.info(split.describe())
        optimizer = make_optimizer(split, bf16_on_cpu=bf16_on_cpu, **options)
        factor = warmup_cosine_factor(
            lr=self.lr,
            min_lr=self.min_lr,
            warmup_steps=warmup,
            max_steps=max_steps,
            decay_steps=self.decay_steps,
        )
        return optimizer, LambdaLR(optimizer, factor)
