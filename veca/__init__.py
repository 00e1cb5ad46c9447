"""Elastic vision backbones: attention linear in image size, compute chosen at inference."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from veca.utils.imports import find_former_places

if TYPE_CHECKING:
    from veca.checkpoint import load_model
    from veca.data.views import preprocess
    from veca.model import Veca, create_model
    from veca.model.sizes import list_models
    from veca.types import Features

__version__ = "0.1.0"
__all__ = ["Features", "Veca", "create_model", "list_models", "load_model", "preprocess"]

_HOMES = {
    "Features": "veca.types",
    "Veca": "veca.model",
    "create_model": "veca.model",
    "list_models": "veca.model.sizes",
    "load_model": "veca.checkpoint",
    "preprocess": "veca.data.views",
}


def __getattr__(name: str) -> Any:
    """Import on first use: the offline stage and `--help` need none of torch's seconds."""
    if name not in _HOMES:
        raise AttributeError(f"module 'veca' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


find_former_places()
