"""`veca export`: a model at one budget as a file that runs without this package.

The file is written, read back and compared with the model, and only then given its name. A budget decides
how many cores there are, hence the shapes of everything: a file holds one budget, and two budgets are two
files.

Shapes: B batch, C active cores, N patches, D width.
"""

import contextlib
import copy
import io
import json
import logging
import warnings
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from veca.checkpoint import load_model
from veca.data.views import MEAN, STD
from veca.model import Veca
from veca.utils.files import atomic_path, check_writable
from veca.utils.imports import require_extra

SUFFIXES = {"onnx": ".onnx", "torch": ".pt2"}
INPUT = "images"
OUTPUTS = ("cls", "patches", "cores")
_SIZES = {
    INPUT: ("batch", None, "height", "width"),
    "cls": ("batch", None),
    "patches": ("batch", "patches", None),
    "cores": ("batch", None, None),
}
GRIDS = ((14, 14), (16, 24), (32, 32))  # in patches: 224×224, 256×384 and 512×512 pixels
BATCHES = (1, 3)
MAX_ERROR = 1e-4  # absolute, float32
MAX_HALF_ERROR = 2e-2  # of the outputs' norm: half precision has three decimal digits, and layers add up

Network = Callable[[Tensor], tuple[Tensor, ...]]


def export(
    model: str,
    out: Path,
    *,
    format: Literal["onnx", "torch"] = "onnx",
    budget: int | None = None,
    half: bool = False,
) -> None:
    """Export a model at one budget; batch, height and width stay free.

    Args:
        model: Folder with model.safetensors, a run's .ckpt, the authors' .pt, or a Hub id.
        out: File to write, FILE.onnx or FILE.pt2. It appears when the comparison has passed.
        format: onnx for onnxruntime and others, torch for torch.export.load.
        budget: Active cores; by default all. A file holds one budget.
        half: Compute in float16; images and features stay float32.
    """
    suffix = SUFFIXES[format]
    if out.is_dir() or out.suffix != suffix:
        raise ValueError(
            f"out must be a file that ends in {suffix}; got {out}. Try {out.with_suffix(suffix)}."
        )
    if format == "onnx":
        require_extra("export", "onnx", "onnxscript", "onnxruntime")
    check_writable(out.parent)
    network = AtBudget(load_model(model), budget, half=half)
    network(torch.zeros(1, network.model.size.in_channels, 16, 16))
    program = trace_graph(network)
    out.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(out) as path:
        if format == "onnx":
            write_onnx(program, network, path)
            exported = open_onnx(path)
        else:
            with path.open("wb") as file:  # by name it would insist on .pt2 for the temporary too
                torch.export.save(program, file)
            exported = open_program(path)
        # Against float32 arithmetic on the weights as they were rounded: the file's errors, and no others.
        error = compare(exported, AtBudget(network.model.float(), budget), half=half)
    sizes = ", ".join(f"{16 * rows}×{16 * cols}" for rows, cols in GRIDS)
    print(
        f"{out}: {out.stat().st_size / 1e6:.1f} MB, budget {network.budget}. Equal to the model at {sizes}, "
        f"batches of {' and '.join(map(str, BATCHES))}: largest {'relative' if half else 'absolute'} error "
        f"{error:.1e}."
    )


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


def open_onnx(path: Path) -> Network:
    """An ONNX file as a function, run by onnxruntime on the CPU."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
    return lambda images: tuple(map(torch.from_numpy, session.run(list(OUTPUTS), {INPUT: images.numpy()})))


def open_program(path: Path) -> Network:
    """A torch.export file as a function."""
    with path.open("rb") as file:
        return torch.export.load(file).module()


@torch.no_grad()
def compare(exported: Network, model: AtBudget, *, half: bool) -> float:
    """The largest error over all sizes and batches; ValueError when it is too large."""
    limit = MAX_HALF_ERROR if half else MAX_ERROR
    worst, size = 0.0, model.model.size
    generator = torch.Generator().manual_seed(0)
    for (rows, cols), batch in product(GRIDS, BATCHES):
        shape = (batch, size.in_channels, rows * size.patch_size, cols * size.patch_size)
        images = torch.randn(shape, generator=generator)
        for name, found, wanted in zip(OUTPUTS, exported(images), model(images), strict=True):
            assert found.shape == wanted.shape, f"{found.shape} for {wanted.shape}"
            off = found - wanted
            error = float(off.norm() / wanted.norm()) if half else float(off.abs().max())
            if not error <= limit:  # also when it is not a number
                raise ValueError(
                    f"the exported file differs from the model: {name} at {tuple(images.shape)} is off by "
                    f"{error:.2e}, more than {limit:.0e}. Nothing was kept. Try --format torch, or other "
                    "versions of torch and onnx."
                )
            worst = max(worst, error)
    return worst


def write_onnx(program: ExportedProgram, network: AtBudget, path: Path) -> None:
    """Write the graph as one file, weights included, that says what it wants: named sizes, normalisation."""
    import onnx

    logger = logging.getLogger("torch.onnx")
    level = logger.level
    # The exporter tells of packages it does not need here and of its own deprecations.
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            written = torch.onnx.export(
                program, (), input_names=[INPUT], output_names=list(OUTPUTS), dynamo=True, verbose=False
            )
    finally:
        logger.setLevel(level)
    assert written is not None
    model = written.model_proto
    for value in (*model.graph.input, *model.graph.output):
        for name, size in zip(_SIZES[value.name], value.type.tensor_type.shape.dim, strict=True):
            if name is not None:
                size.dim_param = name
    for node in (model.graph, *model.graph.node):
        del node.metadata_props[:]  # stack traces: file names of the machine it was made on
    notes = {
        "budget": network.budget,
        "patch_size": network.model.size.patch_size,
        "mean": MEAN,
        "std": STD,
        "pixels": "(RGB / 255 - mean) / std",
    }
    onnx.helper.set_model_props(model, {name: json.dumps(note) for name, note in notes.items()})
    onnx.save_model(model, path)
