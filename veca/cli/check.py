"""`veca check PATH`: whether a run, a model, shards, a cache or a checkpoint is whole.

In: a path of any of them, known by what is in it. Out: a line per problem, and one that sums them up. What is
wrong with each kind is for its own readers to say, with all that they refuse; nothing in a file is executed.
"""

import json
from collections.abc import Callable
from pathlib import Path

import yaml

from veca.checkpoint import load_model
from veca.data.index import INDEX_NAME
from veca.model.hub import CONFIG_NAME, WEIGHTS_NAME
from veca.train.checkpointing import content_problem, read_step
from veca.train.run_dir import METRICS_NAME, read_metrics
from veca.utils.process import KIND, message

RECIPE_NAME = "config.yaml"


def check(path: Path) -> None:
    """Check a run, model, dataset, cache or checkpoint, and name every problem; with one, the status is 1.

    Args:
        path: folder of a run, of its checkpoints, of a saved model, of shards or of cached targets, or a
            folder of such folders; or a file, .ckpt or .pt.
    """
    count = 0
    for part, find_problems in _parts(path):
        for line in find_problems(part):
            print(line if str(part) in line else f"{part}: {line}")
            count += 1
    print(f"{path}: {f'{count:,} problem' + 's' * (count > 1) if count else 'sound'}")
    if count:
        raise SystemExit(1)


def _parts(path: Path) -> list[tuple[Path, Callable[[Path], list[str]]]]:
    """What there is to check, and how: the path itself, or else the folders in it."""
    if find_problems := _kind(path):
        return [(path, find_problems)]
    inner = sorted(path.iterdir()) if path.is_dir() else []
    parts = [(folder, kind) for folder in inner if folder.is_dir() and (kind := _kind(folder))]
    if not parts:
        raise ValueError(
            f"path = {path}: must be the folder of a run ({RECIPE_NAME}), of a model ({WEIGHTS_NAME}), or of "
            f"shards or cached targets ({INDEX_NAME}), or a .ckpt or .pt file, and "
            f"{'is none of them' if path.exists() else 'does not exist'}. Check the path."
        )
    return parts


def _kind(path: Path) -> Callable[[Path], list[str]] | None:
    if path.is_file():
        return {".ckpt": _checkpoint_problems, ".pt": _model_problems}.get(path.suffix)
    for names, find_problems in _KINDS:
        if any((path / name).exists() for name in names):
            return find_problems
    return _checkpoints_problems if any(path.glob("*.ckpt")) else None


def _dataset_problems(folder: Path) -> list[str]:
    from veca_data.check import check as check_dataset  # only here: the data stage loads much of its own

    problems: list[str] = []
    problems += _refusal(lambda path: problems.extend(check_dataset(path)), folder)
    return problems


def _model_problems(path: Path) -> list[str]:
    """Checksum, whole and finite tensors, and that they fit the sizes of the config."""
    return _refusal(load_model, path)


def _run_problems(folder: Path) -> list[str]:
    problems: list[str] = []
    readers: tuple[tuple[str, Callable[[Path], object]], ...] = (
        (RECIPE_NAME, _read_recipe),
        (METRICS_NAME, read_metrics),
        ("environment.json", lambda path: json.loads(path.read_text(encoding="utf-8"))),
    )
    for name, read in readers:
        if name == RECIPE_NAME or (folder / name).exists():  # a run may log elsewhere
            problems += _refusal(read, folder / name)
    return problems + _checkpoints_problems(folder / "checkpoints")


def _read_recipe(path: Path) -> None:
    recipe = yaml.safe_load(path.read_text(encoding="utf-8"))
    missing = [key for key in ("model", "data", "trainer") if key not in (recipe or {})]
    if missing:
        raise ValueError(f"{path} lacks {', '.join(missing)}: it is no run's recipe.")


def _checkpoints_problems(folder: Path) -> list[str]:
    """Those of every checkpoint; names the one that a run would go on from."""
    problems: list[str] = []
    good: list[tuple[int, float, Path]] = []
    for path in sorted(folder.glob("*.ckpt")):
        found = _checkpoint_problems(path)
        problems += found
        if not found:
            good.append((read_step(path), path.stat().st_mtime, path))
    if good:
        step, _, newest = max(good)
        print(f"{newest}: the newest good checkpoint, of step {step:,}")
    elif not problems:
        print(f"{folder}: no checkpoint yet")
    return problems


def _checkpoint_problems(path: Path) -> list[str]:
    def read(path: Path) -> None:
        read_step(path)
        if problem := content_problem(path):
            raise ValueError(problem)

    return _refusal(read, path)


def _refusal(read: Callable[[Path], object], path: Path) -> list[str]:
    """What a reader says of a path it does not take, in one line."""
    try:
        read(path)
    except Exception as error:  # damage shows in any way there is, and the rest is still to be checked
        text = message(error) if isinstance(error, KIND) else repr(error)
        text = " ".join(text.split())
        return [text if str(path) in text else f"{path}: {text}"]
    return []


_KINDS = (
    ((INDEX_NAME,), _dataset_problems),
    ((WEIGHTS_NAME, CONFIG_NAME), _model_problems),
    ((RECIPE_NAME, METRICS_NAME, "checkpoints"), _run_problems),
)
