"""Optimization: parameter split → one optimizer for both algorithms → learning rate per step."""

from veca.optim.combined import make_optimizer
from veca.optim.schedule import warmup_cosine, warmup_cosine_factor
from veca.optim.split import ParameterSplit, split_parameters

__all__ = ["ParameterSplit", "make_optimizer", "split_parameters", "warmup_cosine", "warmup_cosine_factor"]
