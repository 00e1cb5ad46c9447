"""Former places of public names: they keep working until 0.3, with a warning that gives the new place."""

import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any


def forward(old: str, new: str) -> Callable[[str], Any]:
    """A `__getattr__` for the module `old`, whose names are now in the module `new`."""

    def find(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {old!r} has no attribute {name!r}")
        value = getattr(import_module(new), name)
        warnings.warn(
            f"{old}.{name} is now {new}.{name}; the old name goes with version 0.3.",
            FutureWarning,
            stacklevel=2,
        )
        return value

    return find
