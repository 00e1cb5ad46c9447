"""Where `veca.train.run_dir` was."""

from veca.utils.moved import forward

__getattr__ = forward(__name__, "veca.train.run_dir")
