"""`veca export`: write a model at one budget, read the file back, compare, and only then give it its name."""

from pathlib import Path
from typing import Literal

import torch

from veca.checkpoint import load_model
from veca.export.check import BATCHES, GRIDS, compare, open_program
from veca.export.graph import AtBudget, trace_graph
from veca.utils.extras import require_extra
from veca.utils.files import atomic_path

SUFFIXES = {"onnx": ".onnx", "torch": ".pt2"}


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
    _check_out(out, format)
    if format == "onnx":
        require_extra("export", "onnx", "onnxscript", "onnxruntime")
    network = AtBudget(load_model(model), budget, half=half)
    network(torch.zeros(1, network.model.size.in_channels, 16, 16))
    program = trace_graph(network)
    out.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(out) as path:
        if format == "onnx":
            from veca.export.check import open_onnx
            from veca.export.onnx_file import write_onnx

            write_onnx(program, network, path)
            exported = open_onnx(path)
        else:
            with path.open("wb") as file:  # by name it would insist on .pt2 for the temporary too
                torch.export.save(program, file)
            exported = open_program(path)
        # Against float32 arithmetic on the weights as they were rounded: the file's errors, and no others.
        error = compare(exported, AtBudget(network.model.float(), budget), half=half)
    sizes = ", ".join(f"{16 * rows}×{16 * cols}" for rows, cols in GRIDS)
    kind = "relative" if half else "absolute"
    print(
        f"{out}: {out.stat().st_size / 1e6:.1f} MB, budget {network.budget}. Equal to the model at {sizes}, "
        f"batches of {' and '.join(map(str, BATCHES))}: largest {kind} error {error:.1e}."
    )


def _check_out(out: Path, format: str) -> None:
    suffix = SUFFIXES[format]
    if out.is_dir() or out.suffix != suffix:
        raise ValueError(
            f"out must be a file that ends in {suffix}; got {out}. Try {out.with_suffix(suffix)}."
        )
