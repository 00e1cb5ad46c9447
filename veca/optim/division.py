"""The orthogonalisation divided over ranks: who computes which matrix, and how all get every result.

The division depends on the shapes alone, so all ranks agree on it without talking. The exchange is one
all-gather of a fixed size, made by every rank in every step whatever gradients it has: a rank that skipped it
would leave the others waiting. Every rank receives the same bytes, so replicated weights stay identical.
"""

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

PRESENCE_MISMATCH = (
    "a matrix has a gradient on some ranks and none on others. All ranks must run the same blocks, and "
    "gradients must be reduced (DDP does both) before the optimizer step."
)


def num_ranks() -> int:
    return dist.get_world_size() if _is_distributed() else 1


def my_rank() -> int:
    return dist.get_rank() if _is_distributed() else 0


def owners(shapes: Sequence[torch.Size], *, num_ranks: int) -> list[int]:
    """The rank that computes each matrix: the costliest first, each to the rank with the least to do."""
    owner, loads = [0] * len(shapes), [0] * num_ranks
    costs = [_cost(*shape) for shape in shapes]
    for index in sorted(range(len(shapes)), key=lambda index: -costs[index]):
        owner[index] = loads.index(min(loads))
        loads[owner[index]] += costs[index]
    return owner


def exchange(
    mine: Mapping[Tensor, Tensor], weights: Sequence[Tensor], *, owner: Sequence[int], dtype: torch.dtype
) -> dict[Tensor, Tensor]:
    """Give the results of this rank's weights, get those of all weights that have a gradient.

    A rank's message: one flag per weight (has it a gradient here?), then its results, each at a fixed place.
    """
    starts, length = _places(weights, owner)
    message = torch.zeros(length, dtype=dtype, device=weights[0].device)
    message[: len(weights)] = 1
    for index, weight in enumerate(weights):
        if weight.grad is None:
            message[index] = 0
    places = {
        weight: slice(start, start + weight.numel()) for weight, start in zip(weights, starts, strict=True)
    }
    if mine:
        slots = [message[places[weight]].view(weight.shape) for weight in mine]
        torch._foreach_copy_(slots, list(mine.values()))
    messages = message.new_empty(dist.get_world_size(), length)
    dist.all_gather(list(messages.unbind()), message)
    flags = messages[:, : len(weights)]
    # Asynchronous, because reading the flags on the host would stall a GPU in every step.
    torch._assert_async((flags == flags[0]).all(), PRESENCE_MISMATCH)
    return {
        weight: messages[rank, places[weight]].view(weight.shape)
        for weight, rank in zip(weights, owner, strict=True)
        if weight.grad is not None
    }


def _places(weights: Sequence[Tensor], owner: Sequence[int]) -> tuple[list[int], int]:
    """Where each weight's result starts in its owner's message, and the length of the longest message."""
    ends = [len(weights)] * (max(owner) + 1)  # the flags come first
    starts = []
    for weight, rank in zip(weights, owner, strict=True):
        starts.append(ends[rank])
        ends[rank] += weight.numel()
    return starts, max(ends)


def _cost(rows: int, cols: int) -> int:
    """Multiplications of one polar iteration: XXᵀ, A² and the product with X."""
    short, long = min(rows, cols), max(rows, cols)
    return short * short * (2 * long + short)


def _is_distributed() -> bool:
    return dist.is_available() and dist.is_initialized()
