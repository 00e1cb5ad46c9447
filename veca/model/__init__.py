"""The model. Imports torch and the Hub's mixin; knows nothing of data, losses or Lightning."""

from veca.model.sizes import SIZES, Size
from veca.model.veca import Trace, Veca, create_model

__all__ = ["SIZES", "Size", "Trace", "Veca", "create_model"]
