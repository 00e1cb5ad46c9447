"""An exported file against the model it came from, at three image sizes and two batch sizes."""

from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from veca.export.graph import INPUT, OUTPUTS, AtBudget

Network = Callable[[Tensor], tuple[Tensor, ...]]

GRIDS = ((14, 14), (16, 24), (32, 32))  # in patches: 224×224, 256×384 and 512×512 pixels
BATCHES = (1, 3)
MAX_ERROR = 1e-4  # absolute, float32
MAX_HALF_ERROR = 2e-2  # of the outputs' norm: half precision has three decimal digits, and layers add up


def open_onnx(path: Path) -> Network:
    """An ONNX file as a function, run by onnxruntime on the CPU."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])

    def run(images: Tensor) -> tuple[Tensor, ...]:
        return tuple(torch.from_numpy(array) for array in session.run(list(OUTPUTS), {INPUT: images.numpy()}))

    return run


def open_program(path: Path) -> Network:
    """A torch.export file as a function."""
    with path.open("rb") as file:
        module = torch.export.load(file).module()

    def run(images: Tensor) -> tuple[Tensor, ...]:
        outputs: tuple[Tensor, ...] = module(images)
        return outputs

    return run


@torch.no_grad()
def compare(exported: Network, model: AtBudget, *, half: bool) -> float:
    """The largest error over all sizes and batches; ValueError when it is too large."""
    limit = MAX_HALF_ERROR if half else MAX_ERROR
    worst = 0.0
    for images in _inputs(model):
        for name, found, wanted in zip(OUTPUTS, exported(images), model(images), strict=True):
            error = _error(found, wanted, relative=half)
            if not error <= limit:  # also when it is not a number
                raise ValueError(
                    f"the exported file differs from the model: {name} at {tuple(images.shape)} is off by "
                    f"{error:.2e}, more than {limit:.0e}. Nothing was kept. Try --format torch, or other "
                    "versions of torch and onnx."
                )
            worst = max(worst, error)
    return worst


def _inputs(model: AtBudget) -> Iterator[Tensor]:
    size = model.model.size
    generator = torch.Generator().manual_seed(0)
    for rows, cols in GRIDS:
        for batch in BATCHES:
            shape = (batch, size.in_channels, rows * size.patch_size, cols * size.patch_size)
            yield torch.randn(shape, generator=generator)


def _error(found: Tensor, wanted: Tensor, *, relative: bool) -> float:
    assert found.shape == wanted.shape, f"{found.shape} for {wanted.shape}"
    difference = found - wanted
    return float(difference.norm() / wanted.norm()) if relative else float(difference.abs().max())
