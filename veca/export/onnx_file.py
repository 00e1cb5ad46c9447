"""A traced graph as an ONNX file that says what it wants: named sizes, normalisation in the metadata."""

import contextlib
import io
import json
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path

import onnx
import torch
from torch.export import ExportedProgram

from veca.data.views import MEAN, STD
from veca.export.graph import INPUT, OUTPUTS, AtBudget

_SIZES = {
    INPUT: ("batch", None, "height", "width"),
    "cls": ("batch", None),
    "patches": ("batch", "patches", None),
    "cores": ("batch", None, None),
}


def write_onnx(program: ExportedProgram, network: AtBudget, path: Path) -> None:
    """Write the graph to `path` as one file, weights included."""
    with _quiet():
        written = torch.onnx.export(
            program, (), input_names=[INPUT], output_names=list(OUTPUTS), dynamo=True, verbose=False
        )
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


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The exporter tells of packages it does not need here and of its own deprecations."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
