"""Any model behind one call: ours at a budget, the full-attention control, a teacher, a baseline, `hf:ID`.

networks.py   uint8 images in, `ProbeFeatures` out
models.py     the networks by name, at all their budgets
control.py    the full-attention control of a run
"""

from typing import Literal, NamedTuple

from torch import Tensor

Task = Literal["classify", "multilabel", "segment", "depth"]
DENSE_TASKS: tuple[Task, ...] = ("segment", "depth")


class ProbeFeatures(NamedTuple):
    """What a backbone says about a batch, in float32: B images, N patches of its grid, D width."""

    cls: Tensor  # (B, D)
    patches: Tensor | None  # (B, N, D), row-major; None where the model has no dense feature
    grid: tuple[int, int]  # rows, columns
    has_cls: bool = True  # False where `cls` is pooled from the patches: a dense head takes these alone
