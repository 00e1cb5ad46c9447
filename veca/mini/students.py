"""Students of the miniature's runs, as the losses open them, and with the mean patch as global feature."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from veca.backbones.control import TransformersStudent, load_control
from veca.backbones.models import random_model
from veca.checkpoint import load_model
from veca.model import Veca
from veca.model.sizes import resolve_size
from veca.teachers.base import IMAGENET, Encoding, Teacher
from veca.types import Features

OVERRIDES = {"width": 128, "depth": 4, "num_heads": 2}  # those of recipes/mini_nested.yaml
TARGET_WIDTH = 320  # of EfficientNet-Lite0
RANDOM = "random:"
Student = Veca | TransformersStudent


def open_student(source: str | Path) -> Student:
    """The student of a run's checkpoint, Veca or control, or `random:SEED`; in eval mode."""
    if str(source).startswith(RANDOM):
        size = replace(resolve_size("tiny", OVERRIDES), out_width=TARGET_WIDTH)
        return random_model(size, seed=int(str(source).removeprefix(RANDOM)))
    return (load_control(source) or load_model(source)).eval()


class MeanPatch(Teacher):
    """A student whose global feature is the mean over its patches, for `veca probe --model teacher:…`.

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
        return Encoding(features.patches.mean(dim=1), maps, has_cls=False)

    def _identity(self) -> dict[str, Any]:
        return {"student": type(self).__name__, "budget": self._budget}
