"""Every problem of a recipe at once, before anything is built: what the parser rejects, and wrong values.

The parser stops at its first problem. Here a rejected key is noted, taken out of the command line and the
recipe files, and the rest is parsed again, until nothing is rejected.
"""

import argparse
import math
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

from veca.backbones.control import NUM_GLOBAL, control_shape
from veca.model.sizes import resolve_size
from veca.optim.settings import Optimization
from veca.train.budgets import BudgetSchedule

MAX_PROBLEMS = 50
_KEY = re.compile(r"""(?:Parser key|[Kk]ey|option) ["'](?P<key>[\w.]+)["']""")


def find_problems(
    parse: Callable[[list[str]], Any], args: list[str], *, known_keys: Sequence[str]
) -> tuple[Any, list[str]]:
    """What `parse` rejects in `args` and the files they name, and the parse of all the rest.

    `parse` raises argparse.ArgumentError. The parse is None when a key that must be there is missing.
    """
    problems: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        while len(problems) < MAX_PROBLEMS:
            try:
                return parse(args), problems
            except argparse.ArgumentError as error:
                message = str(error)
            match = _KEY.search(message)
            without = _without_key(args, match["key"], Path(folder)) if match else args
            if not problems or match:  # a key is also missing once it was taken out: not news
                problems.append(message + (_hint(match["key"], known_keys) if match else ""))
            if without == args:
                break
            args = without
    return None, problems


def recipe_problems(
    *,
    size: str,
    size_overrides: dict[str, Any] | None,
    attention: str,
    budgets: dict[int, float],
    val_budgets: list[int] | None,
    dense_weight: float,
    mse_weight: float,
    global_batch_size: int | None,
    optimization: Optimization,
) -> list[str]:
    """Every value of the model part of a recipe that cannot be right; nothing is built to find them."""
    problems = [f"model.optimization: {line}" for line in optimization.problems()]
    try:
        known = student_budgets(size, size_overrides or {}, attention)
        problems += [f"model.budgets: {line}" for line in BudgetSchedule(budgets).problems(known)]
        problems += [
            f"model.val_budgets: budget {budget} is not one of {', '.join(map(str, known))}."
            for budget in val_budgets or ()
            if budget not in known
        ]
    except ValueError as error:
        problems.append(f"model.size: {error}")
    for key, weight in (("dense_weight", dense_weight), ("mse_weight", mse_weight)):
        if not 0 <= weight < math.inf:
            problems.append(f"model.{key} = {weight}: must be a number ≥ 0.")
    if global_batch_size is not None and global_batch_size < 1:
        problems.append(f"model.global_batch_size = {global_batch_size}: must be at least 1.")
    return problems


def student_budgets(size: str, overrides: dict[str, Any], attention: str) -> tuple[int, ...]:
    """The budgets a student of this size will have."""
    if attention == "full":
        control_shape(size, overrides)
        return (NUM_GLOBAL,)
    return resolve_size(size, overrides).budgets


def _hint(key: str, known_keys: Sequence[str]) -> str:
    near = get_close_matches(key, known_keys, n=1) if key not in known_keys else []
    return f". Did you mean {near[0]}?" if near else ""


def _without_key(args: list[str], key: str, folder: Path) -> list[str]:
    """The same arguments without `key`; a recipe that holds it is replaced by a copy that does not."""
    kept: list[str] = []
    for name, value in _pairs(args):
        if name == f"--{key}":
            continue
        if name in ("--config", "-c") and value is not None:
            value = _recipe_without(Path(value), key, folder)
        kept += [name] if value is None else [name, value]
    return kept


def _pairs(args: list[str]) -> Iterator[tuple[str, str | None]]:
    """Arguments as (--name, value), with value None for a bare word."""
    words = iter(args)
    for word in words:
        name, equals, value = word.partition("=")
        if not word.startswith("-"):
            yield word, None
        else:
            yield (name, value) if equals else (word, next(words, None))


def _recipe_without(path: Path, key: str, folder: Path) -> str:
    try:
        recipe = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError):
        return str(path)
    *parents, last = key.split(".")
    place: Any = recipe
    for parent in parents:
        place = place.get(parent) if isinstance(place, dict) else None
    if not isinstance(place, dict) or last not in place:
        return str(path)
    del place[last]
    copy = folder / f"{len(list(folder.iterdir()))}.yaml"
    copy.write_text(yaml.safe_dump(recipe), encoding="utf-8")
    return str(copy)
