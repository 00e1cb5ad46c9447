"""What a recipe says about optimization, and what it comes to for a given run."""

import logging
import math
from dataclasses import dataclass

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from veca.optim.combined import Backend, make_optimizer, split_parameters

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
        shares = {"momentum": self.momentum, "beta2": self.beta2}
        shares |= {f"betas[{place}]": beta for place, beta in enumerate(self.betas)}
        found += [
            f"{key} = {share}: must be at least 0 and less than 1. Try 0.95."
            for key, share in shares.items()
            if not 0 <= share < 1
        ]
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
        warmup = self.warmup_steps
        if warmup is None:
            assert self.warmup_epochs is not None
            warmup = round(self.warmup_epochs * steps_per_epoch)
        if not 0 <= warmup < max_steps:
            raise ValueError(
                f"warmup_steps must be at least 0 and less than the steps of the run ({max_steps}); "
                f"got {warmup}. Try {max_steps // 10}."
            )
        split = split_parameters(student)
        log.info(split.describe())
        optimizer = make_optimizer(
            split,
            lr=self.lr,
            weight_decay=self.weight_decay,
            momentum=self.momentum,
            beta2=self.beta2,
            betas=self.betas,
            backend=self.backend,
            bf16_on_cpu=bf16_on_cpu,
        )

        return optimizer, LambdaLR(
            optimizer, lambda step: self.rate(step, warmup=warmup, max_steps=max_steps) / self.lr
        )

    def rate(self, step: int, *, warmup: int, max_steps: int) -> float:
        """Learning rate of `step`, counted from 0: linear warmup from the minimum, then a cosine back to it.

        With `decay_steps` the rate stays at its height until that many steps before the end. Such a run can
        be prolonged as long as its decay has not begun; a short decay from any checkpoint gives a finished
        model. Past `max_steps` the rate stays at the minimum: a run prolonged by hand does not climb again.
        """
        top = warmup if self.decay_steps is None else max(warmup, max_steps - self.decay_steps)
        if step < warmup:
            height = step / warmup
        elif step < top:
            height = 1.0
        else:
            progress = min(1.0, (step - top) / (max_steps - top))
            height = (1 + math.cos(math.pi * progress)) / 2
        return self.min_lr + (self.lr - self.min_lr) * height
