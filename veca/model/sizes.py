"""Models by name: the one table of sizes, the rules a size must obey, and what comes with weights.

Paper, table 1; method §1.
"""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

# Models in veca/weights, in float16, and the sha256 of their weights.
PACKAGED = {"nano": "a534bf8afa0f1c467cd90aabed2501520bf516260a335ebe49ff8da526ac9ebd"}

MAX_DEPTH, MAX_FIELD = 1000, 2**16  # a file that states more is damaged, and would be built for hours


@dataclass(frozen=True, kw_only=True)
class Size:
    """Everything that fixes the shape of a model; the fields of `config.json`."""

    width: int
    depth: int
    num_heads: int
    ffn_ratio: float
    num_cores: int = 64
    core_group: int = 8
    patch_size: int = 16
    in_channels: int = 3
    out_width: int | None = None

    @property
    def head_width(self) -> int:
        return self.width // self.num_heads

    @property
    def ffn_width(self) -> int:
        return int(self.width * self.ffn_ratio)

    @property
    def budgets(self) -> tuple[int, ...]:
        return tuple(range(self.core_group, self.num_cores + 1, self.core_group))

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


SIZES: dict[str, Size] = {
    "tiny": Size(width=192, depth=6, num_heads=3, ffn_ratio=2.66667),  # ours, for CPUs
    "small": Size(width=384, depth=12, num_heads=6, ffn_ratio=2.66667),
    "small_plus": Size(width=384, depth=12, num_heads=6, ffn_ratio=4.0),
    "base": Size(width=768, depth=12, num_heads=12, ffn_ratio=2.66667),
    "large": Size(width=1024, depth=24, num_heads=16, ffn_ratio=2.66667),
}


def list_models() -> list[str]:
    """The names that `veca.load_model` and `--model` take without a file or a network."""
    return sorted(PACKAGED)


def resolve_size(name: str, overrides: dict[str, Any]) -> Size:
    """The preset `name` with the fields of `overrides` replaced; every problem is reported at once."""
    if name not in SIZES:
        hint = f" {name} is a model with weights: veca.load_model({name!r})." if name in PACKAGED else ""
        raise ValueError(f"size must be one of {', '.join(SIZES)}; got {name!r}.{hint}")
    known = [field.name for field in fields(Size)]
    unknown = sorted(set(overrides) - set(known))
    if unknown:
        raise ValueError(f"unknown size field {', '.join(unknown)}. The fields are {', '.join(known)}.")
    size = replace(SIZES[name], **overrides)
    check_size(size)
    return size


def check_size(size: Size) -> None:
    """Raise one ValueError that names every contradiction in `size`."""
    problems = list(_range_problems(size)) or list(_shape_problems(size))
    if problems:
        raise ValueError("this model size cannot be built:\n" + "\n".join(f"- {line}" for line in problems))


def _range_problems(size: Size) -> Iterator[str]:
    for name, value in size.as_dict().items():
        if name == "out_width" and value is None:
            continue
        real = name == "ffn_ratio"
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not 0 < value < math.inf or not (real or isinstance(value, int)):
            yield f"{name} must be a positive {'number' if real else 'integer'}; got {value!r}."
        elif value > (most := MAX_DEPTH if name == "depth" else MAX_FIELD):
            yield f"{name} must be at most {most:,}; got {value:.6g}."


def _shape_problems(size: Size) -> Iterator[str]:
    width, heads, cores, group = size.width, size.num_heads, size.num_cores, size.core_group
    if width % heads:
        yield (
            f"width must be a multiple of num_heads; got width={width}, num_heads={heads}. "
            f"Try width={width // heads * heads or heads}, or give num_heads as well."
        )
    elif size.head_width % 4:
        yield (
            f"width/num_heads must be a multiple of 4 (two axes, channels in pairs); got {size.head_width}. "
            f"Try num_heads={max(1, width // 64)}."
        )
    if cores % group:
        yield (
            f"num_cores must be a multiple of core_group; got num_cores={cores}, core_group={group}. "
            f"Try num_cores={-(-cores // group) * group}."
        )
    if size.ffn_width < 1:
        yield f"ffn_ratio·width must be at least 1; got {width * size.ffn_ratio:g}."
