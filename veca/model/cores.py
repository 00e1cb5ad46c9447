"""The core bank: an ordered set of learned tokens with learned places on the image (method §1).

The bank is stored in groups, one parameter each, and a budget activates the first groups. A group
that is not active in a step has no gradient at all (None, not zero), so optimizers leave it alone:
no decay, no momentum. One M×D tensor would get zeros instead, and inactive cores would drift.

Shapes: C active cores, M all cores, D width.
"""

import torch
from torch import Tensor, nn

NUM_CANDIDATES = 1000
REACH = 0.95  # cores start inside [-0.95, 0.95]², where atanh is well behaved


class CoreBank(nn.Module):
    """M tokens and their unconstrained coordinates, in groups."""

    def __init__(self, *, width: int, num_cores: int, core_group: int) -> None:
        super().__init__()
        self.core_group = core_group
        groups = range(num_cores // core_group)
        self.tokens = nn.ParameterList(torch.empty(1, core_group, width) for _ in groups)
        self.coordinates = nn.ParameterList(torch.empty(1, core_group, 2) for _ in groups)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        places = torch.atanh(spread_points(len(self.tokens) * self.core_group))
        for tokens, coordinates, place in zip(
            self.tokens, self.coordinates, places.split(self.core_group), strict=True
        ):
            nn.init.normal_(tokens, std=tokens.shape[-1] ** -0.5)
            with torch.no_grad():
                coordinates.copy_(place)

    # The number of groups is a Python fact, which would cost the compiler one graph per budget.
    @torch.compiler.disable  # type: ignore[untyped-decorator]  # torch does not type it
    def forward(self, budget: int) -> tuple[Tensor, Tensor]:
        """The first `budget` cores: tokens (1, C, D) and coordinates before the tanh (1, C, 2)."""
        active = budget // self.core_group
        return torch.cat(list(self.tokens[:active]), 1), torch.cat(list(self.coordinates[:active]), 1)


def spread_points(count: int) -> Tensor:
    """`count` points of the plane in farthest-point order, so that every prefix covers it: (count, 2)."""
    candidates = max(NUM_CANDIDATES, count)
    points = (2 * torch.rand(candidates, 2, dtype=torch.float64, device="cpu") - 1) * REACH
    chosen = [int(points.square().sum(1).argmin())]
    distance = (points - points[chosen[0]]).square().sum(1)
    while len(chosen) < count:
        chosen.append(int(distance.argmax()))
        distance = torch.minimum(distance, (points - points[chosen[-1]]).square().sum(1))
    return points[chosen]
