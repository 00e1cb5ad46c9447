"""Command lines as people type them → the arguments of one function.

`veca features a.jpg b.jpg --model M --dense` becomes `features(images=["a.jpg", "b.jpg"], model="M",
dense=True)`: what is read is bare, every option has a name, switches are bare too (`--no-dense` turns one
off), lists use commas, and `--some-option` may also be written `--some_option`.
"""

import json
import types
import typing
from argparse import SUPPRESS, Action
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, ClassVar

from jsonargparse import ArgumentParser, DefaultHelpFormatter, Namespace

_SWITCH_VALUES = ("true", "false")


class _AsTyped(DefaultHelpFormatter):
    """Options with dashes, bare words without, and nothing about types."""

    inputs: ClassVar[Sequence[str]] = ()
    defaults: ClassVar[Mapping[str, str]] = {}

    def _format_action_invocation(self, action: Action) -> str:
        if action.dest in self.inputs:
            return action.dest.upper()
        flag = action.option_strings[-1].rstrip("+").replace("_", "-")
        switch = action.dest == "help" or _kinds(action) == [bool]
        return f"{flag} {action.dest.upper()}" if not switch else flag

    def _get_help_string(self, action: Action) -> str:
        text = action.help or ""
        if action.dest in self.defaults:
            return f"{text} (default: {self.defaults[action.dest]})"
        if getattr(action, "_required", action.required):
            return f"{text} (required)"
        shown = (
            "(default: " not in text
            and action.default not in (None, SUPPRESS, False, [])
            and action.dest != "help"
        )
        return f"{text} (default: {action.default})" if shown else text


class VerbParser:
    """The command line of one function, whose signature and docstring are the schema and the help.

    `name` is the verb as typed. Bare words give the parameters in `inputs`, in order; the last takes all that
    are left if it is a list. `defaults` are values of parameters that the function itself requires.
    """

    def __init__(
        self,
        function: Callable[..., object],
        *,
        name: str,
        example: str,
        inputs: Sequence[str] = (),
        defaults: Mapping[str, str] | None = None,
    ) -> None:
        self.name, self.inputs = name, list(inputs)
        self._defaults = dict(defaults or {})
        form = type("_Form", (_AsTyped,), {"inputs": self.inputs, "defaults": self._defaults})
        self._parser = ArgumentParser(prog=name, exit_on_error=False, formatter_class=form)
        self._parser.add_function_arguments(function, as_positional=False)
        self._actions = {action.dest: action for action in self._parser._actions if action.dest != "help"}
        words = "".join(f" {self._bare(field)}" for field in self.inputs)
        self._parser.usage = f"{name}{words} [--option value …]\n\nexample: {example}"

    def help(self) -> str:
        """The options, each as it is typed."""
        return self._parser.format_help()

    def parse(self, words: Sequence[str]) -> dict[str, Any]:
        """The arguments of the function; ValueError says what to type instead."""
        values: Namespace = self._parser.parse_args(self._spell_out(words))
        return dict(self._parser.instantiate_classes(values).items())

    def _spell_out(self, words: Sequence[str]) -> list[str]:
        """The same words as jsonargparse reads them: every value in full, behind a name."""
        spelled: list[str] = []
        bare: list[str] = []
        unknown: list[str] = []
        left = list(words)
        while left:
            word = left.pop(0)
            if not word.startswith("--") or word == "--":
                bare.append(word)
                continue
            flag, equals, value = word.partition("=")
            field = flag[2:].replace("-", "_")
            if field.startswith("no_") and self._is_switch(field[3:]):
                spelled.append(f"--{field[3:]}=false")
                continue
            if field not in self._actions:
                unknown.append(self._unknown(flag))
                if not equals and left and not left[0].startswith("--"):
                    left.pop(0)  # its value; where it is a bare word, no harm is done: nothing will run
                continue
            if not equals and self._is_switch(field):
                value = left.pop(0) if left and left[0] in _SWITCH_VALUES else "true"
            elif not equals:
                if not left:
                    raise ValueError(f"{flag} needs a value (see {self.name} --help).")
                value = left.pop(0)
            spelled.append(f"--{field}={self._listed(field, value)}")
        if unknown:
            raise ValueError(" ".join(unknown))
        spelled += self._place(bare)
        given = {word.partition("=")[0] for word in spelled}
        return spelled + [
            f"--{name}={value}" for name, value in self._defaults.items() if f"--{name}" not in given
        ]

    def _place(self, bare: list[str]) -> list[str]:
        placed = []
        for field in self.inputs:
            if not bare:
                break
            if field == self.inputs[-1] and self._takes_list(field):
                placed.append(f"--{field}={json.dumps(bare)}")
                bare = []
            else:
                placed.append(f"--{field}={bare.pop(0)}")
        if bare:
            takes = " ".join(self._bare(field) for field in self.inputs) or "no bare words"
            raise ValueError(
                f"{self.name} takes {takes}; {' '.join(bare)!r} is too much. Options start with --."
            )
        return placed

    def _listed(self, field: str, value: str) -> str:
        """A comma list as the JSON that a list is read from; where text is welcome too, it stays text."""
        kinds = _kinds(self._actions[field])
        if value.startswith("[") or str in kinds or not self._takes_list(field):
            return value
        items = [item.strip() for item in value.split(",")]
        of_text = any(str in typing.get_args(kind) for kind in kinds)
        return json.dumps(items) if of_text else f"[{','.join(items)}]"

    def _takes_list(self, field: str) -> bool:
        return any(typing.get_origin(kind) in (list, Sequence) for kind in _kinds(self._actions[field]))

    def _is_switch(self, field: str) -> bool:
        return field in self._actions and _kinds(self._actions[field]) == [bool]

    def _bare(self, field: str) -> str:
        return field.upper() + (" …" if self._takes_list(field) else "")

    def _unknown(self, flag: str) -> str:
        known = [f"--{field.replace('_', '-')}" for field in self._actions]
        close = get_close_matches(flag.replace("_", "-"), known, n=1)
        return f"{self.name} has no option {flag}. " + (
            f"Did you mean {close[0]}?" if close else f"It has {', '.join(known)}."
        )


def _kinds(action: Action) -> list[Any]:
    """The types that an option takes."""
    hint = getattr(action, "_typehint", None)
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return [*typing.get_args(hint)] if is_union else [hint]
