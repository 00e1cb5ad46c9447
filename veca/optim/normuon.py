"""NorMuon: matrices with gradients come in, their weights and state are changed in place.

Per matrix, with U the Nesterov look-ahead of the momentum: O = polar(U), each row of which is divided by its
running root mean square; O is then scaled back to its Frobenius norm. Decoupled decay acts only where it has
the sign of the update (cautious). The step is lr · 0.2·√max(rows, cols) · O: AdamW's rates carry over.

Plain PyTorch, no device sync: matrices of one shape are stacked and share every kernel. NorMuon: arXiv
2510.05491. Polar Express: arXiv 2505.16932.

With several ranks the state is replicated and only the orthogonalisation, nearly all of the work, is divided.
The division depends on the shapes alone, so all ranks agree on it without talking. The exchange is one
all-gather of a fixed size, made by every rank in every step whatever gradients it has: a rank that skipped it
would leave the others waiting. Every rank receives the same bytes, so replicated weights stay identical.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from functools import reduce
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

State = MutableMapping[Tensor, dict[str, Any]]

# Optimal quintics for singular values in [1e-3, 1], safety 1e-2, cushion .02: one (a, b, c) per iteration.
POLAR_COEFFICIENTS = (
    (8.2373125, -23.1577474, 16.6805684),
    (4.0824420, -2.8930477, 0.5252849),
    (3.9263480, -2.8547468, 0.5318022),
    (3.2982187, -2.4245420, 0.4863201),
    (2.3200073, -1.6862170, 0.4206803),
)
POLAR_SAFETY = 1.01  # keeps the largest singular value below 1 when bf16 rounds up
POLAR_EPS = 1e-7
ROW_EPS = 1e-8
PRESENCE_MISMATCH = (
    "a matrix has a gradient on some ranks and none on others. All ranks must run the same blocks, and "
    "gradients must be reduced (DDP does both) before the optimizer step."
)


def normuon_step(
    weights: Sequence[Tensor],
    state: State,
    *,
    lr: float,
    weight_decay: float,
    momentum: float,
    beta2: float,
    bf16_on_cpu: bool = False,
) -> None:
    """One step of all `weights` that have a gradient; the others keep weight and state, bit for bit.

    With several ranks all must call this with the same weights, and a gradient is there on all or on none.
    """
    active = [weight for weight in weights if weight.grad is not None]
    _accumulate_momentum(active, state, momentum=momentum)
    directions = _directions(weights, state, momentum=momentum, bf16_on_cpu=bf16_on_cpu)
    for same in _by_shape(active):
        rows = _normalise_rows(
            torch.stack([directions[weight] for weight in same]),
            [state[weight]["second_moment"] for weight in same],
            beta2=beta2,
        )
        _apply(same, rows, lr=lr, weight_decay=weight_decay)


def polar_express(updates: Tensor, *, bf16_on_cpu: bool = False) -> Tensor:
    """Nearest semi-orthogonal matrix of each (rows, cols) in `updates`, in the dtype it was computed in."""
    matrices = updates.reshape(-1, *updates.shape[-2:])
    tall = matrices.size(-2) > matrices.size(-1)
    x = matrices.mT if tall else matrices
    x = (x / (POLAR_SAFETY * _frobenius(x) + POLAR_EPS)).to(polar_dtype(updates, bf16_on_cpu=bf16_on_cpu))
    for a, b, c in POLAR_COEFFICIENTS:
        gram = torch.bmm(x, x.mT)
        polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)  # b·A + c·A²
        x = torch.baddbmm(x, polynomial, x, beta=a)  # a·X + (b·A + c·A²)·X
    return (x.mT if tall else x).reshape(updates.shape)


def polar_dtype(matrix: Tensor, *, bf16_on_cpu: bool = False) -> torch.dtype:
    """bf16 on GPUs; on CPUs float32 unless it is said that they multiply bf16; float64 stays float64."""
    if matrix.dtype == torch.float64:
        return torch.float64
    return torch.float32 if matrix.device.type == "cpu" and not bf16_on_cpu else torch.bfloat16


def owners(shapes: Sequence[torch.Size], *, num_ranks: int) -> list[int]:
    """The rank that computes each matrix: the costliest first, each to the rank with the least to do."""
    owner, loads = [0] * len(shapes), [0] * num_ranks
    # Multiplications of one polar iteration: XXᵀ, A² and the product with X.
    costs = [min(shape) ** 2 * (2 * max(shape) + min(shape)) for shape in shapes]
    for index in sorted(range(len(shapes)), key=lambda index: -costs[index]):
        owner[index] = loads.index(min(loads))
        loads[owner[index]] += costs[index]
    return owner


def num_ranks() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def _accumulate_momentum(active: Sequence[Tensor], state: State, *, momentum: float) -> None:
    for weight in active:
        if not state[weight]:
            state[weight] = {
                "momentum": torch.zeros_like(weight),
                "second_moment": weight.new_zeros(weight.size(0), 1),
            }
    if active:
        buffers = [state[weight]["momentum"] for weight in active]
        torch._foreach_mul_(buffers, momentum)
        torch._foreach_add_(buffers, _grads(active))


def _directions(
    weights: Sequence[Tensor], state: State, *, momentum: float, bf16_on_cpu: bool
) -> dict[Tensor, Tensor]:
    """polar(U) of every active weight: each rank computes its share, then all share the results."""
    ranks = num_ranks()
    me = dist.get_rank() if ranks > 1 else 0
    owner = owners([weight.shape for weight in weights], num_ranks=ranks)
    mine = [w for w, rank in zip(weights, owner, strict=True) if rank == me and w.grad is not None]
    directions: dict[Tensor, Tensor] = {}
    for same in _by_shape(mine):
        buffers = [state[weight]["momentum"] for weight in same]
        look_ahead = torch._foreach_add(_grads(same), buffers, alpha=momentum)
        polar = polar_express(torch.stack(look_ahead), bf16_on_cpu=bf16_on_cpu)
        directions.update(zip(same, polar.unbind(), strict=True))
    if ranks == 1 or not weights:
        return directions
    dtypes = (polar_dtype(weight, bf16_on_cpu=bf16_on_cpu) for weight in weights)
    dtype = reduce(torch.promote_types, dtypes)
    return _exchange(directions, weights, owner=owner, dtype=dtype)


def _exchange(
    mine: Mapping[Tensor, Tensor], weights: Sequence[Tensor], *, owner: Sequence[int], dtype: torch.dtype
) -> dict[Tensor, Tensor]:
    """Give the results of this rank's weights, get those of all weights that have a gradient.

    A rank's message: one flag per weight (has it a gradient here?), then its results, each at a fixed place.
    """
    ends = [len(weights)] * (max(owner) + 1)  # of what each rank sends; the flags come first
    places = {}
    for weight, rank in zip(weights, owner, strict=True):
        places[weight] = slice(ends[rank], ends[rank] + weight.numel())
        ends[rank] = places[weight].stop
    message = torch.zeros(max(ends), dtype=dtype, device=weights[0].device)
    message[: len(weights)] = 1
    for index, weight in enumerate(weights):
        if weight.grad is None:
            message[index] = 0
    if mine:
        slots = [message[places[weight]].view(weight.shape) for weight in mine]
        torch._foreach_copy_(slots, list(mine.values()))
    messages = message.new_empty(dist.get_world_size(), len(message))
    dist.all_gather(list(messages.unbind()), message)
    flags = messages[:, : len(weights)]
    # Asynchronous, because reading the flags on the host would stall a GPU in every step.
    torch._assert_async((flags == flags[0]).all(), PRESENCE_MISMATCH)
    return {
        weight: messages[rank, places[weight]].view(weight.shape)
        for weight, rank in zip(weights, owner, strict=True)
        if weight.grad is not None
    }


def _normalise_rows(directions: Tensor, second_moments: list[Tensor], *, beta2: float) -> Tensor:
    """Divide each row by its running root mean square, then restore each matrix's Frobenius norm."""
    directions = directions.to(torch.promote_types(second_moments[0].dtype, torch.float32))  # (n, rows, cols)
    norm = _frobenius(directions)
    mean_square = directions.square().mean(-1, keepdim=True)  # (n, rows, 1)
    second_moment = torch.stack(second_moments).to(mean_square.dtype).lerp_(mean_square, 1 - beta2)
    torch._foreach_copy_(second_moments, second_moment.unbind())
    directions.div_(second_moment.sqrt_().add_(ROW_EPS))
    # A zero update stays zero: without the clamp its norm would divide 0 by 0.
    return directions.mul_(norm / _frobenius(directions).clamp_min(torch.finfo(norm.dtype).tiny))


def _apply(weights: list[Tensor], directions: Tensor, *, lr: float, weight_decay: float) -> None:
    """Cautious decay with the base rate, then the step with the rate adjusted to the shape."""
    stacked = torch.stack(weights)
    decayed = torch.where(stacked * directions >= 0, stacked, 0)
    adjusted_lr = lr * 0.2 * math.sqrt(max(weights[0].shape))
    steps = directions.mul_(adjusted_lr).add_(decayed, alpha=lr * weight_decay)
    torch._foreach_sub_(weights, steps.unbind())


def _by_shape(weights: Iterable[Tensor]) -> list[list[Tensor]]:
    """Weights that can be stacked, in their order."""
    groups: dict[object, list[Tensor]] = defaultdict(list)
    for weight in weights:
        groups[weight.shape, weight.dtype, weight.device].append(weight)
    return list(groups.values())


def _grads(weights: Iterable[Tensor]) -> list[Tensor]:
    return [weight.grad for weight in weights if weight.grad is not None]


def _frobenius(matrices: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(matrices, dim=(-2, -1), keepdim=True)
    return norm
