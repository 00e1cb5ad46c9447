"""Class folders: SPLIT/CLASS/NAME.jpg, with images at any depth below their class."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from veca.data.folders import list_files
from veca.probes.datasets.finding import first, labelled, say_ignored
from veca.probes.datasets.splits import Contents


@dataclass(frozen=True)
class ClassFolders:
    """A reader: one folder per split, one folder per class in it.

    Args:
        splits: split → its folder.
        numeric: classes are called 0, 1, 2, … and stand in that order, not in that of the alphabet.
    """

    splits: Mapping[str, str]
    numeric: bool = False

    def __call__(self, root: Path) -> Contents:
        names = {split: _class_names(root / folder) for split, folder in self.splits.items()}
        classes = self._common(root, names)
        splits = {
            split: labelled(root, _rows(root, folder, classes), split=split, classes=classes)
            for split, folder in self.splits.items()
        }
        return Contents(classes, {**splits})

    def _common(self, root: Path, names: dict[str, set[str]]) -> list[str]:
        """Class names in label order; all splits must have the same."""
        everywhere, anywhere = set.intersection(*names.values()), set.union(*names.values())
        if everywhere != anywhere or not anywhere:
            only = "; ".join(
                f"only in {split}: {first(sorted(found - everywhere))}" for split, found in names.items()
            )
            raise ValueError(
                f"{root}: all splits must have the same class folders, at least one; {only}. "
                "Rename, add or remove folders."
            )
        if self.numeric and anywhere != {str(number) for number in range(len(anywhere))}:
            raise ValueError(f"{root}: class folders must be called 0 to {len(anywhere) - 1}.")
        return sorted(anywhere, key=int if self.numeric else None)


def _class_names(folder: Path) -> set[str]:
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder}.")
    return {path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")}


def _rows(root: Path, folder: str, classes: list[str]) -> Iterator[tuple[str, int]]:
    others = sum(not path.is_dir() for path in (root / folder).iterdir())
    for label, name in enumerate(classes):
        images, strays = list_files(root / folder / name)
        others += strays
        yield from ((f"{folder}/{name}/{image}", label) for image in images)
    say_ignored(root / folder, others, "files are no images of a class folder and are ignored")
