"""The `veca` command. Each verb is a row of verbs.toml, whose module is imported when it is typed."""

import os
import sys
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from jsonargparse import ArgumentError

from veca.cli.args import VerbParser
from veca.utils.process import KIND, TRACEBACK, keep_memory, message, stop_signals


class Verb(NamedTuple):
    """A row of verbs.toml, which says what the fields mean."""

    target: str
    summary: str
    example: str = ""
    inputs: Sequence[str] = ()
    defaults: Mapping[str, str] = MappingProxyType({})


_TABLE = tomllib.loads(Path(__file__).with_name("verbs.toml").read_text(encoding="utf-8"))
VERBS = {name: Verb(**row) for name, row in _TABLE["verbs"].items()}
GROUPS: dict[str, str] = _TABLE["groups"]
FORMER = {"bench plan": ["plan"]}  # old spellings, until version 0.3
RUNS = ("fit", "validate", "test", "predict")


def main(argv: list[str] | None = None) -> None:
    """Run one verb; a user's mistake ends with its message and status 2, not a traceback."""
    args = list(sys.argv[1:] if argv is None else argv)
    if not args or args[0] in ("-h", "--help"):
        print(_usage())
    elif args[0] == "--version":
        print(f"veca {version('veca')}")
    else:
        _run(args, ends_process=argv is None)


def _run(args: list[str], *, ends_process: bool) -> None:
    args = [*FORMER.get(" ".join(args[:2]), args[:2]), *args[2:]]
    words = 2 if args[0] in GROUPS else 1
    name, rest = " ".join(args[:words]), args[words:]
    if args[0] in GROUPS and (len(args) == 1 or args[1] in ("-h", "--help")):
        print(_group_usage(args[0]))
        return
    if name not in VERBS:
        raise SystemExit(_unknown(name))
    asks_help = any(word in ("-h", "--help") for word in rest)
    if name in RUNS and asks_help:
        text = Path(__file__).with_name("run_help.txt").read_text(encoding="utf-8")
        print(text.rstrip().format(verb=name, example=VERBS[name].example))
        return
    catching = stop_signals.caught(ends_process=ends_process) if name in RUNS else nullcontext()
    keep_memory()
    try:
        with catching:
            _call(name, rest, asks_help=asks_help, ends_process=ends_process)
    except (*KIND, ArgumentError) as error:
        if TRACEBACK in os.environ:
            raise
        print(f"veca: error: {message(error)}", file=sys.stderr)
        # Numbers that are not finite are the run's failure, the rest is a wrong request.
        raise SystemExit(1 if isinstance(error, FloatingPointError) else 2) from None


def _call(name: str, rest: list[str], *, asks_help: bool, ends_process: bool) -> None:
    verb = VERBS[name]
    module, _, attribute = verb.target.partition(":")
    function = getattr(import_module(module), attribute)
    if name == "data":
        function(rest, prog="veca data")
    elif name in RUNS:
        words = [name, *("--help" if word == "--help-keys" else word for word in rest)]
        if name != "fit":
            stop_signals.let_go()  # there is nothing to save
        function(None if ends_process and words == sys.argv[1:] else words)
    else:
        example = f"veca {name} {verb.example}".strip()
        parser = VerbParser(
            function, name=f"veca {name}", example=example, inputs=verb.inputs, defaults=verb.defaults
        )
        if asks_help:
            print(parser.help())
        else:
            function(**parser.parse(rest))


def _unknown(name: str) -> str:
    group, word = name.split()[0], name.split()[-1]
    if group in GROUPS:
        known = _kinds(group)
        problem, otherwise, before = f"{group} has no", f"It has {', '.join(known)}.", f"{group} "
    else:
        known = [*VERBS, *GROUPS]
        problem, otherwise, before = "there is no verb", "`veca` alone lists the verbs.", ""
    close = get_close_matches(word, known, n=1)
    hint = f"Did you mean veca {before}{close[0]}?" if close else otherwise
    return f"veca: error: {problem} {word!r}. {hint}"


def _kinds(group: str) -> list[str]:
    return [verb.split()[1] for verb in VERBS if verb.startswith(f"{group} ")]


def _usage() -> str:
    rows = {name: verb.summary for name, verb in VERBS.items() if name.split()[0] not in GROUPS}
    rows |= {group: f"{text}: {', '.join(_kinds(group))}" for group, text in GROUPS.items()}
    lines = [f"  {name:<9} {text}" for name, text in rows.items()]
    return (
        "usage: veca VERB [KIND] INPUT… [--option value …]     (veca VERB --help explains one)\n\n"
        + "\n".join(lines)
        + f"\n\nA mistake ends with a message; set {TRACEBACK}=1 to see where it was found."
    )


def _group_usage(group: str) -> str:
    first, *_ = kinds = _kinds(group)
    example = f"veca {group} {first} {VERBS[f'{group} {first}'].example}".rstrip()
    lines = [f"  {kind:<14} {VERBS[f'{group} {kind}'].summary}" for kind in kinds]
    return (
        f"usage: veca {group} KIND …     (veca {group} KIND --help explains one)\n\n"
        f"example: {example}\n\n{GROUPS[group]}:\n" + "\n".join(lines)
    )
