"""Recipes by path or packaged name, and the line by which one builds on another.

In: `pretrain_small` or `my/recipe.yaml`. Out: its values, those of the recipe it `extends` beneath them. An
installed wheel has the YAML files in veca/recipes/; in a checkout they are beside veca/.
"""

from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

EXTENDS = "extends"


def find_recipe(name: str, *, beside: Path = Path()) -> Path:
    """The recipe's file: an existing path (a relative one is taken from `beside`), else a packaged name."""
    path = beside / name
    if path.is_file():
        return path
    packaged = {path.stem: path for path in recipes_folder().glob("*.yaml")}
    if name.removesuffix(".yaml") in packaged:
        return packaged[name.removesuffix(".yaml")]
    near = get_close_matches(Path(name).stem, packaged, n=3) or sorted(packaged)
    raise FileNotFoundError(
        f"recipe {name}: must be an existing file or the name of a packaged recipe, and is neither. "
        f"Try {', '.join(near)}."
    )


def load_recipe(name: str) -> dict[str, Any]:
    """What a recipe decides, with all that it builds on."""
    return _load(find_recipe(name), [])


def merge(base: dict[Any, Any], overlay: dict[Any, Any]) -> dict[Any, Any]:
    """`overlay` over `base`, key by key.

    Lists, tables keyed by numbers (budgets, resolutions) and objects of another class replace what was there:
    their parts mean nothing to each other.
    """
    merged = dict(base)
    for key, value in overlay.items():
        old = base.get(key)
        if isinstance(old, dict) and isinstance(value, dict) and _same_kind(old, value):
            value = merge(old, value)
        merged[key] = value
    return merged


def spell_out_recipes(args: Sequence[str], folder: Path) -> tuple[list[str], list[str]]:
    """A command line whose `--config` values are files that extend nothing, made in `folder` where needed.

    Recipes that cannot be had are left out, and told as problems: there may be others in the same line.
    """
    spelled: list[str] = []
    problems: list[str] = []
    left = list(args)
    while left:
        option, equals, value = left.pop(0).partition("=")
        if option not in ("--config", "-c") or not (equals or left):
            spelled.append(option + equals + value)
            continue
        try:
            spelled += [option, _spelled_out(value if equals else left.pop(0), folder)]
        except (ValueError, OSError) as error:
            problems.append(str(error))
    return spelled, problems


def _spelled_out(name: str, folder: Path) -> str:
    path = find_recipe(name)
    try:
        recipe = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError:
        return str(path)  # the parser of the command line says what is wrong with it
    except RecursionError:
        raise ValueError(f"recipe {path}: must be YAML of a few levels; this one has thousands.") from None
    if not isinstance(recipe, dict) or EXTENDS not in recipe:
        return str(path)
    whole = folder / f"{len(list(folder.iterdir()))}-{path.name}"
    whole.write_text(yaml.safe_dump(_load(path, []), sort_keys=False), encoding="utf-8")
    return str(whole)


def _load(path: Path, extending: list[Path]) -> dict[str, Any]:
    path = path.resolve()
    if path in extending:
        chain = " → ".join(str(each) for each in [*extending, path])
        raise ValueError(f"recipe {path}: {EXTENDS} must end somewhere; got the circle {chain}.")
    try:
        recipe = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"recipe {path}: must be YAML; got {error}.") from None
    if not isinstance(recipe, dict):
        raise ValueError(f"recipe {path}: must be YAML with keys and values; got {recipe!r}.")
    if EXTENDS not in recipe:
        return recipe
    base = recipe.pop(EXTENDS)
    if not isinstance(base, str):
        raise ValueError(f"recipe {path}: {EXTENDS} must be one recipe's path or name; got {base!r}.")
    return merge(_load(find_recipe(base, beside=path.parent), [*extending, path]), recipe)


def _same_kind(old: dict[Any, Any], new: dict[Any, Any]) -> bool:
    same_class = new.get("class_path", old.get("class_path")) == old.get("class_path")
    return same_class and not any(str(key).isdigit() for key in [*old, *new])


def recipes_folder() -> Path:
    """Where the packaged recipes are."""
    package = Path(__file__).resolve().parents[1]
    return next(
        (each for each in (package / "recipes", package.parent / "recipes") if each.is_dir()), package
    )
