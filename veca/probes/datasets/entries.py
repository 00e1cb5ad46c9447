"""What an entry of a named dataset says: its forms on the disk, where to get it, and under which terms."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from veca.backbones.types import Task
from veca.probes.datasets.finding import first
from veca.probes.datasets.splits import Contents


class Form(NamedTuple):
    """One way a dataset lies on the disk.

    `marker` is a path that only this form has. `inside` is the folder that the owner's archive unpacks to:
    its parent, itself and all between are accepted as the dataset's path.
    """

    marker: str
    read: Callable[[Path], Contents]
    inside: str = ""

    def find(self, root: Path) -> Path | None:
        parts = self.inside.split("/") if self.inside else []
        places = [root.joinpath(*parts[start:]) for start in range(len(parts) + 1)]
        return next((place for place in places if (place / self.marker).exists()), None)


@dataclass(frozen=True)
class Entry:
    """A dataset by name. `tree` shows its files, `source` and `terms` where they come from and what may be
    done with them."""

    name: str
    task: Task
    forms: tuple[Form, ...]
    tree: str
    source: str
    terms: str

    def open(self, root: Path) -> Contents:
        """What the folder holds; whatever is missing is named with where to get it."""
        try:
            return self._read(root)
        except FileNotFoundError as error:
            raise FileNotFoundError(
                f"{self.name}: {error} Expected is {self.tree}. Get it from {self.source}."
            ) from None

    def _read(self, root: Path) -> Contents:
        for form in self.forms:
            place = form.find(root)
            if place is not None:
                return form.read(place)
        markers = " or ".join(str(Path(form.inside, form.marker)) for form in self.forms)
        there = first(sorted(path.name for path in root.iterdir())) if root.is_dir() else "no such folder"
        raise FileNotFoundError(f"{root} has no {markers}; there is: {there}.")
