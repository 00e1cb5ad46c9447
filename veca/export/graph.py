"""The forward pass at one budget as one graph, with free batch, height and width.

A budget decides how many cores there are, hence the shapes of everything. So a file holds one budget, and
two budgets are two files.

Shapes: B batch, C active cores, N patches, D width.
"""

import copy

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from veca.model import Veca

INPUT = "images"
OUTPUTS = ("cls", "patches", "cores")


class AtBudget(nn.Module):
    """Normalised images (B, 3, H, W) → cls (B, D), patches (B, N, D), cores (B, C, D), all float32.

    Half precision is inside only: whoever calls the file feeds it the same arrays.
    """

    def __init__(self, model: Veca, budget: int | None, *, half: bool = False) -> None:
        super().__init__()
        self.model = copy.deepcopy(model).to(torch.float16 if half else torch.float32).eval()
        self.budget = model.size.num_cores if budget is None else budget
        self.half_precision = half

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        features = self.model(images.half() if self.half_precision else images, budget=self.budget)
        return features.cls.float(), features.patches.float(), features.cores.float()


def trace_graph(network: AtBudget) -> ExportedProgram:
    """The graph of `network`; its sizes are symbols, so one trace serves every image."""
    patch = network.model.size.patch_size
    # Two sides that differ, and no 1: the tracer takes equal or unit sizes for facts.
    example = torch.zeros(2, network.model.size.in_channels, 4 * patch, 6 * patch)
    free = {INPUT: {0: Dim("batch"), 2: patch * Dim("rows"), 3: patch * Dim("cols")}}
    with torch.no_grad():
        return torch.export.export(network, (example,), dynamic_shapes=free)
