"""The learning rate, a pure function of the step: linear warmup from the minimum, then cosine back to it.

With `decay_steps` the rate stays at its height until that many steps before the end. Such a run can be
prolonged as long as its decay has not begun, and a short decay from any checkpoint gives a finished model.
"""

import math
from collections.abc import Callable
from functools import partial


def warmup_cosine(
    step: int, *, lr: float, min_lr: float, warmup_steps: int, max_steps: int, decay_steps: int | None = None
) -> float:
    """Learning rate of optimizer step `step`, counted from 0.

    `min_lr` at step 0, `lr` at `warmup_steps` (at once when that is 0), `min_lr` again at `max_steps`. Past
    `max_steps` the rate stays at the minimum, so that a run prolonged by hand does not climb again.
    """
    check_schedule(
        lr=lr, min_lr=min_lr, warmup_steps=warmup_steps, max_steps=max_steps, decay_steps=decay_steps
    )
    top = warmup_steps if decay_steps is None else max(warmup_steps, max_steps - decay_steps)
    if step < warmup_steps:
        height = step / warmup_steps
    elif step < top:
        height = 1.0
    else:
        progress = min(1.0, (step - top) / (max_steps - top))
        height = (1 + math.cos(math.pi * progress)) / 2
    return min_lr + (lr - min_lr) * height


def warmup_cosine_factor(
    *, lr: float, min_lr: float, warmup_steps: int, max_steps: int, decay_steps: int | None = None
) -> Callable[[int], float]:
    """The same curve as a share of `lr`: what `LambdaLR` multiplies the rate of every group with."""
    curve = partial(
        warmup_cosine,
        lr=lr,
        min_lr=min_lr,
        warmup_steps=warmup_steps,
        max_steps=max_steps,
        decay_steps=decay_steps,
    )
    curve(0)  # bad numbers are told here, not in the first step
    return lambda step: curve(step) / lr


def check_schedule(
    *, lr: float, min_lr: float, warmup_steps: int, max_steps: int, decay_steps: int | None = None
) -> None:
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
        (
            decay_steps is None or decay_steps >= 1,
            f"decay_steps must be at least 1, or null for a cosine over the whole run; got {decay_steps}.",
        ),
    )
    problems = [message for holds, message in rules if not holds]
    if problems:
        raise ValueError("\n".join(problems))
