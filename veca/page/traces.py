"""One picture at one budget and resolution: what the model gives, what its cores do, and what it costs.

Shapes: N patches, C active cores, L layers, D width.
"""

import time
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from veca.data.decode import pixels_from_pil
from veca.data.views import centre_crop, normalise
from veca.flops import student_flops
from veca.model import Size, Veca
from veca.utils.precision import FLOAT32, InferencePrecision, computing_in

MAX_TRACES = 16  # remembered per visitor


class CoreTrace(NamedTuple):
    """What one forward pass showed."""

    patches: Tensor  # (N, D)
    places: Tensor  # (L, C, 2)
    contributions: Tensor  # (L, C, N)
    grid: tuple[int, int]
    milliseconds: float


class Cost(NamedTuple):
    flops: int
    interactions: int  # query–key pairs of one layer
    full_interactions: int  # the same with full attention


@dataclass
class Visit:
    """What one visitor looks at. It lives in memory and goes with the visitor."""

    image: Image.Image
    views: dict[int, Image.Image] = field(default_factory=dict)  # by resolution
    traces: dict[tuple[int, int], CoreTrace] = field(default_factory=dict)  # by resolution and budget

    def view(self, resolution: int) -> Image.Image:
        """The square the model sees."""
        if resolution not in self.views:
            array = centre_crop(pixels_from_pil(self.image), resolution=resolution)
            self.views[resolution] = Image.fromarray(np.ascontiguousarray(array.transpose(1, 2, 0)))
        return self.views[resolution]

    def trace(
        self, model: Veca, *, resolution: int, budget: int, precision: InferencePrecision = FLOAT32
    ) -> CoreTrace:
        """Traced once, remembered for the next touch of the page."""
        key = (resolution, budget)
        if key not in self.traces:
            while len(self.traces) >= MAX_TRACES:
                del self.traces[next(iter(self.traces))]
            self.traces[key] = trace_view(model, self.view(resolution), budget=budget, precision=precision)
        return self.traces[key]


@torch.inference_mode()
def trace_view(
    model: Veca, view: Image.Image, *, budget: int, precision: InferencePrecision = FLOAT32
) -> CoreTrace:
    """Run the model on a square picture."""
    parameter = model.patch_embed.weight
    pixels = torch.from_numpy(np.array(view)).permute(2, 0, 1)[None]
    images = normalise(pixels.to(parameter.device), dtype=parameter.dtype)
    with computing_in(precision, parameter.device):
        trace = model.trace(images, budget=budget)  # also warms up what is timed next
        start = time.perf_counter()
        model(images, budget=budget).cls.cpu()  # waits for a GPU to be done
    milliseconds = 1000 * (time.perf_counter() - start)
    return CoreTrace(
        patches=trace.features.patches[0].float().cpu(),
        places=trace.places[:, 0].float().cpu(),
        contributions=trace.contributions[:, 0].float().cpu(),
        grid=trace.features.grid,
        milliseconds=milliseconds,
    )


@cache
def cost(size: Size, *, resolution: int, budget: int) -> Cost:
    """What one image costs, counted and not measured."""
    with torch.device("meta"):
        model = Veca(**size.as_dict()).eval()
    patches = (resolution // size.patch_size) ** 2
    flops = student_flops(model, resolution=resolution, budget=budget)
    return Cost(flops, 2 * patches * budget + budget**2, patches**2)
