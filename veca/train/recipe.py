"""Every problem of a recipe at once, before anything is built: what the parser rejects, and wrong values.

The parser stops at its first problem. Here a rejected key is noted, taken out of the command line and the
recipe files, and the rest is parsed again, until nothing is rejected.
"""

import argparse
import math
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

from veca.backbones.control import NUM_GLOBAL, control_shape
from veca.model.sizes import resolve_size
from veca.optim.settings import Optimization
from veca.train.budgets import BudgetSchedule
from veca.train.ddp import STRATEGY_NAME

MAX_PROBLEMS = 50
MAX_SEED = 2**32 - 1
_KEY = re.compile(r"""(?:Parser key|[Kk]ey|option) ["'](?P<key>[\w.]+)["']""")
_NOT_ACCEPTED = re.compile("not accept|not expected|unrecognized", re.IGNORECASE)
_PART = re.compile(r"Option '(?P<part>\w+)' is not accepted")
_VALUE = re.compile(r"(?:Got|Given) value: (?P<value>.*)")
_EXPECTED = re.compile(r"Expected an? (?P<kind>.+?)(?:\. Got value|$)", re.MULTILINE)
_KINDS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "text",
    "NoneType": "null",
}
_COUNTS = {  # keys of the trainer whose values are counts → what they may be besides, and how to have that
    "max_steps": (-1, "-1 leaves it to max_epochs"),
    "max_epochs": (-1, "-1 leaves it to max_steps"),
    "num_nodes": (None, "1 is this machine alone"),
    "log_every_n_steps": (None, "null takes 50"),
    "accumulate_grad_batches": (None, "1 makes a step of every batch"),
    "check_val_every_n_epoch": (None, "null counts val_check_interval through all epochs"),
}
_LIMITS = ("limit_train_batches", "limit_val_batches", "limit_test_batches", "limit_predict_batches")


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
            keys = [match["key"]] if match else _unknown_keys(message, args)
            if not problems or keys:  # a key is also missing once it was taken out: not news
                told = [_sentence(message, key, known_keys) for key in keys]
                problems += told or [" ".join(message.split())]
            before = args
            for key in keys:
                args = _without_key(args, key, Path(folder))
            if args == before:
                break
    return None, problems


def refuse(problems: Sequence[str]) -> None:
    """Raise one ValueError that tells them all, where there are any."""
    if problems:
        raise ValueError("the recipe cannot be used:\n" + "\n".join(f"- {line}" for line in problems))


def trainer_problems(
    trainer: Mapping[str, Any], *, checkpoint_every: int, seed_everything: int | bool
) -> list[str]:
    """Every value beside model and data that parses and cannot be right."""
    problems = []
    for key, (other, way_out) in _COUNTS.items():
        value = trainer[key]
        if value not in (None, other) and value < 1:
            problems.append(f"trainer.{key} = {value}: must be at least 1; {way_out}.")
    if trainer["max_steps"] == -1 == trainer["max_epochs"] and not trainer["fast_dev_run"]:
        problems.append(
            "trainer.max_steps = trainer.max_epochs = -1: one must bound the run. Try max_epochs 100."
        )
    interval = trainer["val_check_interval"]
    if isinstance(interval, int | float) and not _is_part(interval, least=1):
        problems.append(
            f"trainer.val_check_interval = {interval}: must be at least 1 step, or a part of an epoch like "
            "0.5; limit_val_batches 0 turns validation off."
        )
    for key in _LIMITS:
        if trainer[key] is not None and not _is_part(trainer[key], least=0):
            problems.append(
                f"trainer.{key} = {trainer[key]}: must be a number of batches, or a part of them like 0.5; "
                "0 is none of them, null all."
            )
    strategy = trainer["strategy"]
    if isinstance(strategy, str) and strategy not in ("auto", STRATEGY_NAME):
        problems.append(
            f"trainer.strategy = {strategy}: must be {STRATEGY_NAME}, which alone shares the budgets. "
            f"Set --trainer.strategy {STRATEGY_NAME}."
        )
    if checkpoint_every < 1:
        problems.append(
            f"checkpoint_every = {checkpoint_every}: must be at least 1 optimizer step; "
            "trainer.enable_checkpointing false saves none."
        )
    if not 0 <= seed_everything <= MAX_SEED:
        problems.append(f"seed_everything = {seed_everything}: must be from 0 to {MAX_SEED}. Try 42.")
    return problems


def _is_part(value: float, *, least: int) -> bool:
    """Whether a value is a count from `least` on, or a part of a whole, as Lightning tells them apart."""
    return value >= least if isinstance(value, int) else 0 <= value <= 1 and (value > 0 or least == 0)


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
    seed: int,
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
    if seed < 0:
        problems.append(f"model.seed = {seed}: must not be negative. Try 42.")
    return problems


def student_budgets(size: str, overrides: dict[str, Any], attention: str) -> tuple[int, ...]:
    """The budgets a student of this size will have."""
    if attention == "full":
        control_shape(size, overrides)
        return (NUM_GLOBAL,)
    return resolve_size(size, overrides).budgets


def _sentence(message: str, key: str, known_keys: Sequence[str]) -> str:
    """What the parser says of a key in many lines: key, value and rule in one."""
    if _NOT_ACCEPTED.search(message):
        if key in known_keys and (part := _PART.search(message)):
            return f"{key}: has no {part['part']}. Leave it out."
        near = get_close_matches(key, known_keys, n=1)
        return f"{key}: there is no such key. " + (f"Did you mean {near[0]}?" if near else "Leave it out.")
    if "File does not exist" in message:
        return f"{key} = {message.split()[-1]}: there is no such file. Check the path."
    value, kinds = _VALUE.search(message), _EXPECTED.findall(message)
    if not value or not kinds:
        return " ".join(_KEY.sub(rf"{key}", message).split())
    names = dict.fromkeys(name for kind in kinds for name in _plain(kind).split(", "))
    return f"{key} = {value['value']}: must be {' or '.join(names) if len(names) < 3 else ', '.join(names)}."


def _plain(kind: str) -> str:
    """A Python type as people read it: `Literal['a', 'b']` → `a, b`."""
    kind = re.sub(r"<class '([\w.]+)'>", lambda found: _KINDS.get(found[1], found[1]), kind)
    return re.sub(r"(?:typing\.)?Literal\[([^\]]*)\]", r"\1", kind).replace("'", "").replace("typing.", "")


def _unknown_keys(message: str, args: list[str]) -> list[str]:
    """The keys of a command line that the parser lists as unrecognized, several at once."""
    words = {word.partition("=")[0] for word in message.split()} if _NOT_ACCEPTED.search(message) else set()
    return [name.removeprefix("--") for name, _ in _pairs(args) if name.startswith("--") and name in words]


def _without_key(args: list[str], key: str, folder: Path) -> list[str]:
    """The same arguments without `key`; a recipe that holds it is replaced by a copy that does not."""
    kept: list[str] = []
    for name, value in _pairs(args):
        if name == f"--{key}" and not (key == "config" and Path(value or "").is_file()):
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
