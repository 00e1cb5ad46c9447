"""Throughput of one rank and of two, each with one thread and the same batch: what sharing the work costs.

On a CPU ranks talk through gloo over loopback and share the memory's bandwidth; on GPUs the arithmetic is
that of `veca bench plan`, which says what two of them exchange in a step.
"""

import json
import os
import subprocess
import sys

from veca.bench.goals import said
from veca.bench.loop import (
    BUDGETS,
    RESOLUTION,
    fit_lightning,
    make_batches,
    make_model,
    one_thread,
)
from veca.flops.model import polar_flops_per_rank, student_flops
from veca.model import Veca
from veca.optim.split import split_parameters
from veca.utils.lightning_compat import quiet_lightning
from veca.utils.timing import Timing, compare

RANKS = (1, 2)
# What a Trainer leaves in the environment of its process; another one would take itself for that rank.
LAUNCH_VARIABLES = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "NODE_RANK", "LOCAL_RANK", "RANK")


def scale(*, num_steps: int = 40, repeats: int = 3) -> dict[str, float]:
    """Compare the images/s of two ranks with those of one.

    Args:
        num_steps: Optimizer steps that are timed.
        repeats: Turns of each number of ranks.
    """
    seconds: dict[int, list[float]] = {ranks: [] for ranks in RANKS}
    for _ in range(repeats):
        for ranks in RANKS:
            seconds[ranks].append(_run(ranks, num_steps))
    timings = {str(ranks): Timing(tuple(values)) for ranks, values in seconds.items()}
    # Two ranks see two batches in a step; 2.00 would be free of any cost.
    speed_up = compare(timings, {"two_ranks_over_one": ("1", "2")}, scale=2)
    return said("scale", speed_up | _shares())


def _shares() -> dict[str, float]:
    """What `veca bench plan` would say of the run that is timed here."""
    student = make_model().student
    assert isinstance(student, Veca)
    parameters = sum(parameter.numel() for parameter in student.parameters())
    shapes = [parameter.shape for _, parameter in split_parameters(student).matrices]
    middle = sorted(BUDGETS)[len(BUDGETS) // 2]
    forward = student_flops(student.to("meta"), resolution=RESOLUTION, budget=middle)
    return {
        "gradient_mb_per_step": 4 * parameters / 1e6,
        "forward_gflops_per_image": forward / 1e9,
        "normuon_gflops_one_rank": polar_flops_per_rank(shapes, num_ranks=1) / 1e9,
        "normuon_gflops_each_of_two": polar_flops_per_rank(shapes, num_ranks=2) / 1e9,
    }


def _run(ranks: int, num_steps: int) -> float:
    """Seconds of wall-clock, as rank 0 sees them; in a process of its own, which starts the other."""
    command = [sys.executable, "-m", "veca.bench.scale", str(ranks), str(num_steps)]
    environment = {key: value for key, value in os.environ.items() if key not in LAUNCH_VARIABLES}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    seconds: float = json.loads(done.stdout.strip().splitlines()[-1])
    return seconds


def _fit(ranks: int, num_steps: int) -> None:
    with one_thread(), quiet_lightning():
        seconds = fit_lightning(make_model(), make_batches(num=4), num_steps=num_steps, devices=ranks)
    if int(os.environ.get("LOCAL_RANK", 0)) == 0:
        print(json.dumps(seconds.wall))


if __name__ == "__main__":
    _fit(int(sys.argv[1]), int(sys.argv[2]))
