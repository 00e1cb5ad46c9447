"""Command lines as people type them → what `auto_cli` reads.

`--model M --dense a.jpg b.jpg` becomes `--model M --dense true --images '["a.jpg", "b.jpg"]'`: a switch needs
no value, and bare words go to the one parameter that takes a list of them.
"""

import inspect
import json
from collections.abc import Callable, Sequence

_SWITCH_VALUES = ("true", "false")


def spell_out(function: Callable[..., object], args: Sequence[str]) -> list[str]:
    """The same arguments with every switch's value and every list in full."""
    kinds = {f"--{name}": item.annotation for name, item in inspect.signature(function).parameters.items()}
    spelled: list[str] = []
    bare: list[str] = []
    words = list(args)
    while words:
        word = words.pop(0)
        if not word.startswith("-"):
            bare.append(word)
            continue
        spelled.append(word)
        if kinds.get(word) is bool and (not words or words[0] not in _SWITCH_VALUES):
            spelled.append("true")
        elif words and "=" not in word and (word in kinds or not words[0].startswith("-")):
            spelled.append(words.pop(0))  # also of an option that the function only passes on
    many = [name for name, kind in kinds.items() if kind == list[str]]
    return [*spelled, many[0], json.dumps(bare)] if bare and many else [*spelled, *bare]
