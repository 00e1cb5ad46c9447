"""`veca data sample`: a small labelled image set, made on any machine without a download.

Procedural scenes (see scenes.py) become a folder that the probes' readers know::

    OUT/images/{train,val}/CLASS/NAME.jpg      CLASS is the class of the largest object
    OUT/semantic/{train,val}/CLASS/NAME.png    8-bit class ids of classes.json, 0 background
    OUT/instances/{train,val}/CLASS/NAME.png   8-bit, 0 background, 1 the largest object
    OUT/depth/{train,val}/CLASS/NAME.png       16-bit, millimetres along the optical axis
    OUT/classes.json                           class name → id
    OUT/sample.json                            the settings; written last, so its presence says complete

A scene depends only on the settings and its number, and each file appears whole or not at all: any number of
workers gives the same bytes, and an interrupted run goes on where it stopped.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from numpy.typing import NDArray
from PIL import Image

from veca.utils.files import atomic_path, check_writable, write_text_atomic
from veca_data.pool import advance, default_workers, run_tasks
from veca_data.scenes import render_scene
from veca_data.solids import CLASSES

FORMAT = "veca-sample"
VERSION = 2  # rises when the same settings give other files
FINISHED_NAME = "sample.json"
STARTED_NAME = "sample.started.json"

_SUFFIXES = {"images": ".jpg", "semantic": ".png", "instances": ".png", "depth": ".png"}
_CHUNK = 8  # scenes that a worker takes at a time


@dataclass(frozen=True)
class Settings:
    """What decides the content of every file."""

    count: int
    size: int
    seed: int
    val_share: float

    def to_json(self) -> str:
        return json.dumps({"format": FORMAT, "version": VERSION, **asdict(self)}, indent=1) + "\n"


class Job(NamedTuple):
    """One scene to make."""

    out: Path
    settings: Settings
    number: int
    split: str
    label: str

    def path(self, kind: str) -> Path:
        return self.out / kind / self.split / self.label / f"{self.number:06d}{_SUFFIXES[kind]}"


def make_sample(
    out: Path,
    *,
    count: int = 2000,
    size: int = 256,
    seed: int = 0,
    workers: int | None = None,
    val_share: float = 0.2,
) -> None:
    """Make `count` labelled scenes of `size` × `size` pixels in the folder `out`, or finish making them.

    `workers` defaults to the cores this process may use; `val_share` of each class goes to the val split.
    """
    settings = Settings(count=count, size=size, seed=seed, val_share=val_share)
    workers = default_workers() if workers is None else workers
    _check_arguments(settings, workers)
    _claim(out, settings)
    jobs = [job for job in _plan(out, settings) if not all(job.path(kind).exists() for kind in _SUFFIXES)]
    if not jobs and (out / FINISHED_NAME).exists():
        return
    for folder in {job.path(kind).parent for job in jobs for kind in _SUFFIXES}:
        folder.mkdir(parents=True, exist_ok=True)
    chunks = [jobs[start : start + _CHUNK] for start in range(0, len(jobs), _CHUNK)]
    num_bytes = len(jobs) * 3 * size**2  # of pixels, which the progress counts
    for _ in run_tasks(_make_scenes, chunks, workers=workers, total_bytes=num_bytes, label="sample"):
        pass
    ids = {name: number for number, name in enumerate(["background", *CLASSES])}
    write_text_atomic(out / "classes.json", json.dumps(ids, indent=1) + "\n")
    write_text_atomic(out / FINISHED_NAME, settings.to_json())
    (out / STARTED_NAME).unlink(missing_ok=True)


def _check_arguments(settings: Settings, workers: int) -> None:
    problems = []
    if settings.count < 1:
        problems.append(f"count must be at least 1; got {settings.count}. Try 2000.")
    if not 32 <= settings.size <= 1024:
        problems.append(f"size must be from 32 to 1024 pixels; got {settings.size}. Try 256.")
    if settings.seed < 0:
        problems.append(f"seed must not be negative; got {settings.seed}. Try 0.")
    if not 0 <= settings.val_share < 1:
        problems.append(f"val_share must be at least 0 and below 1; got {settings.val_share}. Try 0.2.")
    if workers < 1:
        problems.append(f"workers must be at least 1; got {workers}. Leave it out to use all cores.")
    if problems:
        raise ValueError("\n".join(problems))


def _claim(out: Path, settings: Settings) -> None:
    """Make the folder ours, or refuse one that holds something else; drop the half files of a killed run."""
    check_writable(out)
    found = [path for path in (out / FINISHED_NAME, out / STARTED_NAME) if path.exists()]
    if found:
        _check_same(found[0], settings)
    elif out.is_dir() and any(out.iterdir()):
        raise ValueError(f"{out} is not empty and holds no sample. Choose an empty or a new folder.")
    else:
        out.mkdir(parents=True, exist_ok=True)
        write_text_atomic(out / STARTED_NAME, settings.to_json())
    for leftover in out.rglob(".*.tmp"):
        leftover.unlink()


def _check_same(path: Path, settings: Settings) -> None:
    way_out = "Choose another folder, or delete this one."
    try:
        there = dict(json.loads(path.read_text(encoding="utf-8")).items())
    except (ValueError, AttributeError) as error:
        raise ValueError(f"{path} is damaged ({error}). {way_out}") from None
    here = json.loads(settings.to_json())
    others = [
        f"{key}={there.get(key)!r} there, {here[key]!r} now" for key in here if there.get(key) != here[key]
    ]
    if others:
        raise ValueError(f"{path.parent} was made with other settings: {'; '.join(others)}. {way_out}")


def _plan(out: Path, settings: Settings) -> list[Job]:
    """All scenes: classes take turns, and each class gives val the same share of its scenes, within one."""
    names = list(CLASSES)
    by_class = sorted(range(settings.count), key=lambda number: (number % len(names), number))
    num_val = round(settings.count * settings.val_share)
    jobs = []
    for place, number in enumerate(by_class):
        # Integer steps of num_val / count: exactly num_val of all places, evenly spread.
        is_val = (place + 1) * num_val // settings.count > place * num_val // settings.count
        jobs.append(Job(out, settings, number, "val" if is_val else "train", names[number % len(names)]))
    return sorted(jobs, key=lambda job: job.number)


def _make_scenes(jobs: list[Job]) -> None:
    for job in jobs:
        size = job.settings.size
        scene = render_scene(seed=job.settings.seed, index=job.number, label=job.label, size=size)
        with atomic_path(job.path("images")) as temporary:
            Image.fromarray(scene.image).save(temporary, format="JPEG", quality=92)
        maps: dict[str, NDArray[Any]] = {
            "semantic": scene.semantic,
            "instances": scene.instance,
            "depth": scene.depth,
        }
        for kind, pixels in maps.items():
            with atomic_path(job.path(kind)) as temporary:
                # Level 3: files a quarter larger than at the default 6, written twice as fast.
                Image.fromarray(pixels).save(temporary, format="PNG", compress_level=3)
        advance(3 * size**2)
