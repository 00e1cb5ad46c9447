"""Where `veca.teachers` was."""

from veca.teachers.cached import CachedTargets as CachedTargets  # its own warning names data.targets
from veca.utils.moved import forward

__getattr__ = forward(__name__, "veca.teachers")
