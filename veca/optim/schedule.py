"""The learning rate, a pure function of the step: linear warmup from the minimum, then cosine back to it."""

import math
from collections.abc import Callable


def warmup_cosine(step: int, *, lr: float, min_lr: float, warmup_steps: int, max_steps: int) -> float:
    """Learning rate of optimizer step `step`, counted from 0.

    `min_lr` at step 0, `lr` at `warmup_steps` (at once when that is 0), `min_lr` again at `max_steps`. Past
    `max_steps` the rate stays at the minimum, so that a run prolonged by hand does not climb again.
    """
    check_schedule(lr=lr, min_lr=min_lr, warmup_steps=warmup_steps, max_steps=max_steps)
    if step < warmup_steps:
        height = step / warmup_steps
    else:
        progress = min(1.0, (step - warmup_steps) / (max_steps - warmup_steps))
        height = (1 + math.cos(math.pi * progress)) / 2
    return min_lr + (lr - min_lr) * height


def warmup_cosine_factor(
    *, lr: float, min_lr: float, warmup_steps: int, max_steps: int
) -> Callable[[int], float]:
    """The same curve as a share of `lr`: what `LambdaLR` multiplies the rate of every group with."""
    check_schedule(lr=lr, min_lr=min_lr, warmup_steps=warmup_steps, max_steps=max_steps)

    def factor(step: int) -> float:
        rate = warmup_cosine(step, lr=lr, min_lr=min_lr, warmup_steps=warmup_steps, max_steps=max_steps)
        return rate / lr

    return factor


def check_schedule(*, lr: float, min_lr: float, warmup_steps: int, max_steps: int) -> None:
    """Raise one ValueError that names every number out of place."""
    rules = (
        (0 < lr < math.inf, f"lr must be positive and finite; got {lr}. Try 4e-4."),
        (0 <= min_lr <= lr, f"min_lr must lie between 0 and lr ({lr}); got {min_lr}. Try {lr / 8:g}."),
        (max_steps >= 1, f"max_steps must be at least 1; got {max_steps}."),
        (
            0 <= warmup_steps < max(1, max_steps),
            f"warmup_steps must be at least 0 and less than max_steps ({max_steps}); got {warmup_steps}. "
            f"Try {max(0, max_steps // 10)}.",
        ),
    )
    problems = [message for holds, message in rules if not holds]
    if problems:
        raise ValueError("\n".join(problems))
