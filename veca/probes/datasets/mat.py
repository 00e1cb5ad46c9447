"""MATLAB files, in which some owners ship their labels. They are data, not code: nothing in them runs.

scipy reads the usual ones and h5py those of version 7.3; both come with `pip install "veca[probes]"` and
are imported only here.
"""

from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any


def read_mat(path: Path) -> dict[str, Any]:
    """The variables of a .mat file; structures have their fields as attributes."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no {path}.")
    variables: dict[str, Any] = _module("scipy.io", path).loadmat(
        path, squeeze_me=True, struct_as_record=False
    )
    return variables


def open_hdf5(path: Path) -> Any:
    """A .mat file of version 7.3 as h5py sees it: axes in reverse order."""
    return _module("h5py", path).File(path, "r")


def _module(name: str, path: Path) -> ModuleType:
    try:
        return import_module(name)
    except ImportError:
        raise ValueError(
            f"{path} is a MATLAB file, which {name.partition('.')[0]} reads; it is not installed. "
            'Run `pip install "veca[probes]"`.'
        ) from None
