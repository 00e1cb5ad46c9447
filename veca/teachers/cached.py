"""The former way to write `data.targets` in a recipe, which `veca fit` still reads."""

from typing import Any, Literal

from torch import Tensor

from veca.teachers.base import Encoding, Teacher


class CachedTargets(Teacher):
    """No teacher: `veca fit` takes its arguments as those of `data.targets`.

    Args:
        path: The folder of the shards or of the cache.
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
        raise ValueError(
            f"CachedTargets({path}) is no teacher: stored targets come with the data. Train from them by "
            "data.targets; elsewhere name the teacher that made them."
        )

    def input_size(self, height: int, width: int) -> tuple[int, int]:
        raise NotImplementedError

    def encode(self, pixels: Tensor) -> Encoding:
        raise NotImplementedError

    def _identity(self) -> dict[str, Any]:
        raise NotImplementedError
