"""Elastic vision backbones: attention linear in image size, compute chosen at inference."""

from veca.checkpoint import load_model
from veca.model import Veca, create_model
from veca.types import Features

__version__ = "0.1.0"
__all__ = ["Features", "Veca", "create_model", "load_model"]
