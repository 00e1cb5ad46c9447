"""Names that are not where they are looked for: packages to install, and modules of ours that have moved."""

import sys
import warnings
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, spec_from_loader
from types import ModuleType
from typing import Any

MOVED = {"veca.run": "veca.train.run_dir", "veca.teacher": "veca.teachers"}  # until version 0.3


def require_extra(extra: str, *packages: str) -> None:
    """Raise a ValueError with the command that installs `extra` when one of its packages is missing."""
    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        raise ValueError(f"this needs {', '.join(missing)}. Install with: pip install 'veca[{extra}]'")


class FormerPlaces(MetaPathFinder, Loader):
    """Finds modules of MOVED, whose names come from the new place with a warning that tells it."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        return spec_from_loader(name, self) if name in MOVED else None

    def exec_module(self, module: ModuleType) -> None:
        old, new = module.__name__, MOVED[module.__name__]

        def find(name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(f"module {old!r} has no attribute {name!r}")
            value = getattr(import_module(new), name)
            if name != "CachedTargets":  # its own warning names data.targets
                says = f"{old}.{name} is now {new}.{name}; the old name goes with version 0.3."
                warnings.warn(says, FutureWarning, stacklevel=2)
            return value

        module.__dict__["__getattr__"] = find


def find_former_places() -> None:
    if not any(isinstance(finder, FormerPlaces) for finder in sys.meta_path):
        sys.meta_path.insert(0, FormerPlaces())
