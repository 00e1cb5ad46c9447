"""Where `veca.teachers` was."""

from veca.utils.moved import forward

__getattr__ = forward(__name__, "veca.teachers")
