"""A teacher that is not there: its targets were computed once and are read with the data.

No network is loaded. Batches come with the targets of their views (see `veca/data/cached_views.py`); this
class carries what a student needs beside them: the width, and the patch projection to start from.
"""

from pathlib import Path
from typing import Any, Literal

from safetensors.torch import load_file
from torch import Tensor, nn

from veca.data.cached import find_cache
from veca.data.download import is_url
from veca.teachers.base import IMAGENET, Encoding, Teacher
from veca.types import Targets


class CachedTargets(Teacher):
    """The targets of a cache, made by `veca data cache`.

    What is given beside the path must be true of the cache, and chooses among several; what is left out may
    be anything.

    Args:
        path: The folder of the shards, whose cache is then found beside them, or the cache's own folder.
        teacher: Name or fingerprint of the teacher.
        views: Stored views per training image.
        dtype: How targets are stored.
    """

    def __init__(
        self,
        path: str,
        *,
        teacher: str | None = None,
        views: int | None = None,
        dtype: Literal["fp16", "bf16", "int8"] | None = None,
    ) -> None:
        if is_url(path):
            raise ValueError(
                f"path = {path}: cached targets are read from a disk. Copy the folder, and give its path "
                "here; the images may stay where they are."
            )
        cache = find_cache(Path(path), teacher=teacher, views=views, dtype=dtype)
        super().__init__(nn.Identity(), width=cache.spec.width, normalisation=IMAGENET, compile_teacher=False)
        self.cache = cache

    def forward(self, images: Tensor) -> Targets:
        raise RuntimeError(
            "cached targets exist for stored views only, and come with the batch. This batch has none: was "
            "it made by a ShardDataModule?"
        )

    def fingerprint(self) -> str:
        """That of the teacher which made the cache."""
        return self.cache.spec.weights

    def patch_projection(self) -> tuple[Tensor, Tensor] | None:
        path = self.cache.projection_path
        if path is None:
            return None
        tensors = load_file(path)
        return tensors["weight"], tensors["bias"]

    def input_size(self, height: int, width: int) -> tuple[int, int]:
        return height, width

    def encode(self, pixels: Tensor) -> Encoding:
        raise NotImplementedError("there is no network here")

    def _identity(self) -> dict[str, Any]:
        return {"targets": self.cache.spec.fingerprint}
