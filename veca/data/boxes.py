"""Boxes in images, from a CSV file: image,left,top,right,bottom, in pixels of the upright image."""

import csv
import math
from pathlib import Path
from typing import NamedTuple

HEADER = ("image", "left", "top", "right", "bottom")


class Box(NamedTuple):
    """Right and bottom are the first column and row that are not in it."""

    left: float
    top: float
    right: float
    bottom: float

    def scaled(self, x: float, y: float) -> "Box":
        return Box(self.left * x, self.top * y, self.right * x, self.bottom * y)

    def __str__(self) -> str:
        return ",".join(f"{side:g}" for side in self)


def read_boxes(path: Path | str) -> dict[str, list[Box]]:
    """The boxes of each image, in the file's order; a ValueError names the first lines that are wrong."""
    boxes: dict[str, list[Box]] = {}
    problems = []
    with Path(path).open(newline="", encoding="utf-8-sig") as file:
        rows = csv.DictReader(file)
        if rows.fieldnames is None or not set(HEADER) <= set(rows.fieldnames):
            raise ValueError(f"{path}: its first line must name the columns {','.join(HEADER)}.")
        for row in rows:
            try:
                box = Box(*(float(row[side]) for side in HEADER[1:]))
            except (TypeError, ValueError):
                problems.append(f"line {rows.line_num}: its sides are no numbers")
                continue
            if not (all(map(math.isfinite, box)) and box.left < box.right and box.top < box.bottom):
                problems.append(f"line {rows.line_num}: {box} is empty; sides are left,top,right,bottom")
            boxes.setdefault(row["image"], []).append(box)
    if problems:
        more = f", and {len(problems) - 3} more" if len(problems) > 3 else ""
        raise ValueError(f"{path}: {'; '.join(problems[:3])}{more}.")
    if not boxes:
        raise ValueError(f"{path} has no boxes. Give one line per box: {','.join(HEADER)}.")
    return boxes
