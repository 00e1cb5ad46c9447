"""The output folder of `veca features`: numbered parts that are finished or absent, never half.

npy           cls-000000.npy (n, D), patches-000000.npy (n, rows, cols, D), and last names-000000.json,
              which says that the part is finished
safetensors   features-000000.safetensors with the tensors `cls` and `patches`, the names in its metadata
features.json what made them: a folder holds the features of one model at one setting
rejects.jsonl images that could not be read, with the reason

The images of a part have one size, so that its dense features are one array.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import save_file

from veca.utils.files import atomic_path, write_text_atomic

Array = NDArray[np.float32]
Format = Literal["npy", "safetensors"]

SETTINGS_NAME = "features.json"
REJECTS_NAME = "rejects.jsonl"
_PATTERNS = ("names-*.json", "features-*.safetensors")


class Part(NamedTuple):
    """Features of images of one size; row i is `names[i]`."""

    names: list[str]
    cls: Array  # (n, D)
    patches: Array | None  # (n, rows, cols, D)


def read_features(folder: Path | str) -> tuple[list[str], Array]:
    """All names and all global features (n, D) of a folder."""
    parts = list(read_parts(folder))
    if not parts:
        raise FileNotFoundError(f"no features in {folder}. Make them with `veca features`.")
    return [name for part in parts for name in part.names], np.concatenate([part.cls for part in parts])


def read_parts(folder: Path | str) -> Iterator[Part]:
    """The finished parts of a folder; dense features of .npy parts stay on the disk until used."""
    for path in _finished(Path(folder)):
        if path.suffix == ".json":
            number = path.stem.rpartition("-")[2]
            dense = path.with_name(f"patches-{number}.npy")
            yield Part(
                _names(path),
                np.load(path.with_name(f"cls-{number}.npy"), allow_pickle=False),
                np.load(dense, mmap_mode="r", allow_pickle=False) if dense.is_file() else None,
            )
        else:
            with safe_open(path, framework="np") as file:
                patches = file.get_tensor("patches") if "patches" in file.keys() else None  # noqa: SIM118  # no mapping
                yield Part(_names(path), file.get_tensor("cls"), patches)


class PartWriter:
    """Adds parts to a folder that holds features of the same settings, or nothing yet."""

    def __init__(self, folder: Path, *, format: Format, settings: dict[str, Any]) -> None:
        self.folder, self.format = folder, format
        folder.mkdir(parents=True, exist_ok=True)
        _check_settings(folder / SETTINGS_NAME, {**settings, "format": format})
        finished = list(_finished(folder))
        self.done = {name for path in finished for name in _names(path)}
        self._next = 1 + max((int(path.stem.rpartition("-")[2]) for path in finished), default=-1)

    def write(self, part: Part) -> None:
        number = f"{self._next:06d}"
        arrays = {"cls": part.cls} | ({} if part.patches is None else {"patches": part.patches})
        if self.format == "safetensors":
            with atomic_path(self.folder / f"features-{number}.safetensors") as path:
                save_file(arrays, path, metadata={"names": json.dumps(part.names)})
        else:
            for name, array in arrays.items():
                with atomic_path(self.folder / f"{name}-{number}.npy") as path, path.open("wb") as file:
                    np.save(file, array, allow_pickle=False)
            names = json.dumps(part.names, ensure_ascii=False, indent=0)
            write_text_atomic(self.folder / f"names-{number}.json", names + "\n")
        self.done.update(part.names)
        self._next += 1

    def write_rejects(self, rejects: dict[str, str]) -> None:
        lines = [json.dumps({"name": name, "reason": reason}) for name, reason in rejects.items()]
        write_text_atomic(self.folder / REJECTS_NAME, "".join(f"{line}\n" for line in lines))


def _finished(folder: Path) -> Iterator[Path]:
    for pattern in _PATTERNS:
        yield from sorted(folder.glob(pattern))


def _names(path: Path) -> list[str]:
    if path.suffix == ".json":
        names: list[str] = json.loads(path.read_text(encoding="utf-8"))
    else:
        with safe_open(path, framework="np") as file:
            names = json.loads(file.metadata()["names"])
    return names


def _check_settings(path: Path, settings: dict[str, Any]) -> None:
    """Write the settings, or refuse a folder that was made with others."""
    if not path.is_file():
        write_text_atomic(path, json.dumps(settings, indent=1) + "\n")
        return
    found = json.loads(path.read_text(encoding="utf-8"))
    other = [
        f"{key} {found.get(key)!r}, not {value!r}"
        for key, value in settings.items()
        if found.get(key) != value
    ]
    if other:
        raise ValueError(
            f"{path.parent} holds features made with {'; '.join(other)}. Choose another folder, or remove it."
        )
