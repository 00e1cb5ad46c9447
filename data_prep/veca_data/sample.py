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
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from numpy.typing import NDArray
from PIL import Image

from veca.utils.files import atomic_path, check_writable, write_text_atomic
from veca_data.pool import advance, num_workers, run_tasks
from veca_data.scenes import CLASSES, render_scene

FORMAT = "veca-sample"
VERSION = 2  # rises when the same settings give other files
VAL_SHARE = 0.2
FINISHED_NAME = "sample.json"
STARTED_NAME = "sample.started.json"

_SUFFIXES = {"images": ".jpg", "semantic": ".png", "instances": ".png", "depth": ".png"}
_CHUNK = 8  # scenes that a worker takes at a time


class SceneFiles(NamedTuple):
    """One scene to make, and where its files go."""

    out: Path
    number: int
    split: str
    label: str

    def path(self, kind: str) -> Path:
        return self.out / kind / self.split / self.label / f"{self.number:06d}{_SUFFIXES[kind]}"


def make_sample(
    out: Path, *, count: int = 2000, size: int = 256, seed: int = 0, workers: int | None = None
) -> None:
    """Make `count` labelled scenes of `size` × `size` pixels in the folder `out`, or finish making them.

    `workers` defaults to the cores this process may use.
    """
    _check_arguments(count=count, size=size, seed=seed, workers=workers)
    settings: dict[str, Any] = {"format": FORMAT, "version": VERSION, "count": count}
    settings |= {"size": size, "seed": seed, "val_share": VAL_SHARE}
    _claim(out, settings)
    scenes = [
        scene for scene in _plan(out, count) if not all(scene.path(kind).exists() for kind in _SUFFIXES)
    ]
    if not scenes and (out / FINISHED_NAME).exists():
        return
    for folder in {scene.path(kind).parent for scene in scenes for kind in _SUFFIXES}:
        folder.mkdir(parents=True, exist_ok=True)
    for _ in run_tasks(
        partial(_make_scenes, size, seed),
        [scenes[start : start + _CHUNK] for start in range(0, len(scenes), _CHUNK)],
        workers=num_workers(workers),
        total_bytes=len(scenes) * 3 * size**2,  # of pixels
        label="sample",
    ):
        pass
    ids = {name: number for number, name in enumerate(["background", *CLASSES])}
    _write_json(out / "classes.json", ids)
    _write_json(out / FINISHED_NAME, settings)
    (out / STARTED_NAME).unlink(missing_ok=True)


def _check_arguments(*, count: int, size: int, seed: int, workers: int | None) -> None:
    problems = []
    if count < 1:
        problems.append(f"count must be at least 1; got {count}. Try 2000.")
    if not 32 <= size <= 1024:
        problems.append(f"size must be from 32 to 1024 pixels; got {size}. Try 256.")
    if seed < 0:
        problems.append(f"seed must not be negative; got {seed}. Try 0.")
    if workers is not None and workers < 1:
        problems.append(f"workers must be at least 1; got {workers}. Leave it out to use all cores.")
    if problems:
        raise ValueError("\n".join(problems))


def _claim(out: Path, settings: dict[str, Any]) -> None:
    """Make the folder ours, or refuse one that holds something else; drop the half files of a killed run."""
    check_writable(out)
    found = [path for path in (out / FINISHED_NAME, out / STARTED_NAME) if path.exists()]
    if found:
        _check_same(found[0], settings)
    elif out.is_dir() and any(out.iterdir()):
        raise ValueError(f"{out} is not empty and holds no sample. Choose an empty or a new folder.")
    else:
        out.mkdir(parents=True, exist_ok=True)
        _write_json(out / STARTED_NAME, settings)
    for leftover in out.rglob(".*.tmp"):
        leftover.unlink()


def _check_same(path: Path, here: dict[str, Any]) -> None:
    way_out = "Choose another folder, or delete this one."
    try:
        there = dict(json.loads(path.read_text(encoding="utf-8")).items())
    except (ValueError, AttributeError) as error:
        raise ValueError(f"{path} is damaged ({error}). {way_out}") from None
    others = [
        f"{key}={there.get(key)!r} there, {here[key]!r} now" for key in here if there.get(key) != here[key]
    ]
    if others:
        raise ValueError(f"{path.parent} was made with other settings: {'; '.join(others)}. {way_out}")


def _plan(out: Path, count: int) -> list[SceneFiles]:
    """All scenes: classes take turns, and each class gives val the same share of its scenes, within one."""
    names = list(CLASSES)
    by_class = sorted(range(count), key=lambda number: (number % len(names), number))
    num_val = round(count * VAL_SHARE)
    scenes = []
    for place, number in enumerate(by_class):
        # Integer steps of num_val / count: exactly num_val of all places, evenly spread.
        is_val = (place + 1) * num_val // count > place * num_val // count
        scenes.append(SceneFiles(out, number, "val" if is_val else "train", names[number % len(names)]))
    return sorted(scenes, key=lambda scene: scene.number)


def _make_scenes(size: int, seed: int, scenes: list[SceneFiles]) -> None:
    for files in scenes:
        scene = render_scene(seed=seed, index=files.number, label=files.label, size=size)
        with atomic_path(files.path("images")) as temporary:
            Image.fromarray(scene.image).save(temporary, format="JPEG", quality=92)
        maps: dict[str, NDArray[Any]] = {
            "semantic": scene.semantic,
            "instances": scene.instance,
            "depth": scene.depth,
        }
        for kind, pixels in maps.items():
            with atomic_path(files.path(kind)) as temporary:
                # Level 3: files a quarter larger than at the default 6, written twice as fast.
                Image.fromarray(pixels).save(temporary, format="PNG", compress_level=3)
        advance(3 * size**2)


def _write_json(path: Path, body: dict[str, Any]) -> None:
    write_text_atomic(path, json.dumps(body, indent=1) + "\n")
