"""Tiny caches for tests: toy shards, a toy teacher, and the folder of its targets."""

from pathlib import Path
from typing import Any

from veca.teachers import OfflineTeacher, Teacher
from veca_data.cache import Devices, NamedTeacher, make_cache

RESOLUTIONS = (32, 48)
ON_CPU = Devices(accelerator="cpu", devices="1")


def write_cache(shards: Path, *, teacher: Teacher | None = None, **changes: Any) -> Path:
    """Cache the targets of a random teacher beside `shards`; returns the folder of the cache."""
    options: dict[str, Any] = {"resolutions": RESOLUTIONS, "views": 3, "dtype": "fp16", "workers": 0}
    named = NamedTeacher("OfflineTeacher", teacher or OfflineTeacher())
    summary = make_cache(shards, named, devices=ON_CPU, **{**options, **changes})
    assert summary is not None
    return summary.out
