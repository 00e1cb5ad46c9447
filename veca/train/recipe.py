"""Every problem of a recipe at once, before anything is built.

The parser stops at its first problem. Here a rejected key is noted, taken out of the command line and the
recipe files, and the rest is parsed again, until nothing is rejected.
"""

import argparse
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

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
