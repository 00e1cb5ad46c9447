"""What the datasets of the probes hand on: items with their targets, in splits."""

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from veca.backbones.types import Task

IGNORED = 255  # a label or mask value that counts neither for training nor for the score


class Item(NamedTuple):
    """One example as it lies on the disk.

    `target` is, by task: a label (int); 0, 1 or IGNORED per class (C,) uint8; class ids (H, W) uint8 or
    uint16 with IGNORED where there is none; metres (H, W) float32, 0 where nothing was measured.
    """

    name: str
    image: bytes  # the encoded file
    target: int | NDArray[np.generic]


class Split(Protocol):
    """The examples of one split; nothing is read before it is asked for."""

    def __len__(self) -> int: ...

    def __getitem__(self, place: int) -> Item: ...


class Dataset(NamedTuple):
    """A labelled dataset with the splits it has: `train`, and `val` or `test` or both."""

    name: str
    task: Task
    classes: list[str]  # empty for depth
    splits: dict[str, Split]
    max_depth: float | None = None  # metres; farther measurements do not count
