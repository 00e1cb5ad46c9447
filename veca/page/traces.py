"""One picture at one budget and resolution: what the model gives, what its cores do, and what it costs.

Shapes: N patches, C active cores, L layers, D width.
"""

import time
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFilter
from torch import Tensor

from veca.data.decode import pixels_from_pil
from veca.data.views import centre_crop, normalise
from veca.flops import student_flops
from veca.model import Size, Veca
from veca.utils.precision import FLOAT32, InferencePrecision, computing_in

MAX_TRACES = 16  # remembered per visitor
DEMO_IMAGES = Path("demo/sample/images/val")
_NUM_DEMO = 3
_SIDE = 512  # of the landscape
_SHAPES = (
    ("ellipse", (372, 60, 448, 136), "#ffee96"),
    ("polygon", (0, 300, 120, 190, 260, 300, 390, 170, 512, 290, 512, 512, 0, 512), "#62708c"),
    ("ellipse", (-220, 280, 380, 720), "#568c46"),
    ("ellipse", (200, 300, 760, 760), "#6ea550"),
    ("rectangle", (300, 300, 400, 380), "#cd8260"),
    ("polygon", (288, 302, 350, 246, 412, 302), "#78342c"),
    ("rectangle", (340, 335, 364, 380), "#462c22"),
    ("rectangle", (312, 318, 332, 340), "#f0e4a0"),
    *(("rectangle", (x - 6, 390, x + 6, 460), "#5c3e28") for x in (90, 160, 456)),
    *(("ellipse", (x - 32, 310, x + 32, 405), "#286230") for x in (90, 160, 456)),
)


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
    traces: dict[tuple[int, int], CoreTrace] = field(default_factory=dict)  # by resolution and budget

    def view(self, resolution: int) -> Image.Image:
        """The square the model sees."""
        array = centre_crop(pixels_from_pil(self.image), resolution=resolution)
        return Image.fromarray(np.ascontiguousarray(array.transpose(1, 2, 0)))

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
        features, places, contributions = model.trace(images, budget=budget)  # also warms up what is timed
        start = time.perf_counter()
        model(images, budget=budget).cls.cpu()  # waits for a GPU to be done
    milliseconds = 1000 * (time.perf_counter() - start)
    return CoreTrace(
        patches=features.patches[0].float().cpu(),
        places=places[:, 0].float().cpu(),
        contributions=contributions[:, 0].float().cpu(),
        grid=features.grid,
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


def sample_images() -> dict[str, Image.Image | Path]:
    """Names and pictures to start with; those of the demo, where it was run, are read when asked for."""
    demo = sorted(DEMO_IMAGES.glob("*/*"))
    chosen = demo[:: max(1, len(demo) // _NUM_DEMO)]
    return {"landscape": landscape(), **{f"demo: {path.parent.name}": path for path in chosen}}


def landscape() -> Image.Image:
    """Sky, sun, hills, a house and trees."""
    share = np.linspace(0, 1, _SIDE)[:, None, None]
    sky = (1 - share) * np.array((96, 158, 220)) + share * np.array((246, 214, 170))
    picture = Image.fromarray(np.broadcast_to(sky, (_SIDE, _SIDE, 3)).round().astype(np.uint8))
    draw = ImageDraw.Draw(picture)
    for shape, corners, colour in _SHAPES:
        getattr(draw, shape)(corners, fill=colour)
    # Soft edges and a little grain: flat colours are nothing a model has ever seen.
    pixels = np.asarray(picture.filter(ImageFilter.GaussianBlur(1.2)), dtype=np.float32)
    grain = np.random.default_rng(1).normal(0, 5, (_SIDE, _SIDE, 1))
    return Image.fromarray((pixels + grain).clip(0, 255).astype(np.uint8))
