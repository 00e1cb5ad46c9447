"""One rank of a two-rank run, started by test_division.py: `rank_worker.py RANK WORLD_SIZE FOLDER`."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from conftest import random_split, set_grads

from veca.optim.combined import make_optimizer

INACTIVE = {1: (0, 4), 2: (0, 1, 2, 3)}  # step → parameters without a gradient on any rank; step 2: no matrix


def train(num_steps: int = 5) -> dict[str, torch.Tensor]:
    """Weights after a few steps with the same gradients on all ranks."""
    split = random_split()
    optimizer = make_optimizer(split, lr=1e-2, weight_decay=0.1, backend="veca")
    for step in range(num_steps):
        set_grads(split, step, without=INACTIVE.get(step, ()))
        optimizer.step()
    named = [("matrix", split.matrices), ("rest", split.rest)]
    return {f"{kind}{name}": parameter.detach() for kind, part in named for name, parameter in part}


def disagree(rank: int) -> str:
    """What a step says when a gradient is missing on rank 1 alone."""
    split = random_split()
    optimizer = make_optimizer(split, lr=1e-2, weight_decay=0.1, backend="veca")
    set_grads(split, 0, without=(2,) if rank == 1 else ())
    try:
        optimizer.step()
    except RuntimeError as error:
        return str(error)
    return "no error"


def main(rank: int, world_size: int, folder: Path) -> None:
    torch.set_num_threads(1)
    alone = train()  # before there is a process group: one rank
    store = f"file://{folder / 'rendezvous'}"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world_size)
    result = {"alone": alone, "weights": train(), "disagreement": disagree(rank)}
    torch.save(result, folder / f"rank{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
