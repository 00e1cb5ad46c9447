"""The full-attention control at the size of the miniature, and students as a probe or a loss opens them.

The control takes its size by name, and no name has this size; a run's checkpoint tells the size of a Veca but
not of a control. Both are settled here, for the miniature alone: the size is entered into the table of the
one process that needs it, and a student is handed to the probes as a teacher,
`teacher:veca.mini.control.Control:RUN.ckpt`.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from veca.checkpoint import SIZE_KEY, STUDENT_PREFIX, read_pickle, run_model
from veca.model import Veca
from veca.model.sizes import SIZES, Size
from veca.probes.models import random_model
from veca.student import TransformersStudent
from veca.teacher.base import IMAGENET, Encoding, Teacher
from veca.types import Features

SIZE_NAME = "mini"
OVERRIDES = {"width": 128, "depth": 4, "num_heads": 2}  # those of recipes/mini_nested.yaml
TARGET_WIDTH = 1280  # of EfficientNet-Lite0
RANDOM = "random:"
Student = Veca | TransformersStudent


def mini_size() -> Size:
    return replace(SIZES["tiny"], **OVERRIDES)


def command(argv: list[str] | None = None) -> None:
    """The `veca` command, where `--model.size mini` is known."""
    from veca.cli import main

    SIZES[SIZE_NAME] = mini_size()
    main(argv)


def open_student(source: str | Path) -> Student:
    """The student of a run's checkpoint, Veca or control, or `random:SEED`; in eval mode."""
    if str(source).startswith(RANDOM):
        size = replace(mini_size(), out_width=TARGET_WIDTH)
        return random_model(size, seed=int(str(source).removeprefix(RANDOM)))
    content = read_pickle(Path(source))
    if SIZE_KEY in content:
        return run_model(content, source=str(source)).eval()
    tensors = {
        name.removeprefix(STUDENT_PREFIX): tensor
        for name, tensor in content["state_dict"].items()
        if name.startswith(STUDENT_PREFIX)
    }
    control = new_control()
    control.load_state_dict(tensors)
    return control.eval()


def new_control() -> TransformersStudent:
    """A control with fresh weights; the table of sizes is left as it was."""
    known = SIZE_NAME in SIZES
    SIZES.setdefault(SIZE_NAME, mini_size())
    try:
        with torch.random.fork_rng(devices=[]):
            return TransformersStudent(SIZE_NAME, out_width=TARGET_WIDTH)
    finally:
        if not known:
            del SIZES[SIZE_NAME]


class Control(Teacher):
    """A student for the probes: its global feature and its patches.

    Args:
        source: A run's checkpoint or random:SEED, with @BUDGET behind it where it is not the full one.
    """

    def __init__(self, source: str) -> None:
        path, _, budget = source.partition("@")
        student = open_student(path)
        self._budget = int(budget) if budget else student.budgets[-1]
        super().__init__(student, width=student.size.out_width or student.size.width, normalisation=IMAGENET)

    def input_size(self, height: int, width: int) -> tuple[int, int]:
        return height, width

    def encode(self, pixels: Tensor) -> Encoding:
        features: Features = self.model(pixels, budget=self._budget)
        maps = features.patches.transpose(1, 2).unflatten(2, features.grid)  # (B, D, rows, cols)
        return Encoding(self._global(features), maps)

    def _global(self, features: Features) -> Tensor:
        return features.cls

    def _identity(self) -> dict[str, Any]:
        return {"student": type(self).__name__, "budget": self._budget}


class MeanPatch(Control):
    """The same with the mean over the patches as the global feature."""

    def _global(self, features: Features) -> Tensor:
        return features.patches.mean(dim=1)
