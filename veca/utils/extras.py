"""Optional packages: what a verb needs beyond the core, and how to get it."""

from importlib.util import find_spec


def require_extra(extra: str, *packages: str) -> None:
    """Raise a ValueError with the command that installs `extra` when one of its packages is missing."""
    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        raise ValueError(f"this needs {', '.join(missing)}. Install with: pip install 'veca[{extra}]'")
