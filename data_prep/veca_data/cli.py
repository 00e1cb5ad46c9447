"""`veca-data`: the verbs of the data stage. Each verb is one function elsewhere; its words are in cli.toml.

Exit status: 0 done, 1 the work failed or problems were found, 2 the request was wrong.
"""

import argparse
import re
import sys
import tomllib
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from veca.utils.process import message


class _Parser(argparse.ArgumentParser):
    """Errors in one line, always under the command's own name."""

    def error(self, message: str) -> NoReturn:
        words = self.prog.split()
        command = " ".join(words[: 1 if words[0] == "veca-data" else 2])
        self.exit(2, f"{command}: error: {message} (see {self.prog} --help)\n")


def main(arguments: Sequence[str] | None = None, *, prog: str = "veca-data") -> None:
    """Run one verb; mistakes of the user are one line on stderr. `prog` is how the command was typed."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    parser, verbs = _parser(prog)
    if words and (unknown := _unknown_options(verbs.get(words[0]), words)):
        parser.error(unknown)
    values = vars(parser.parse_args(words))
    module, _, function = values.pop("run").partition(":")
    try:
        # Imported only now: `--help` answers at once.
        result = getattr(import_module(f"veca_data.{module}"), function)(**values)
    except (ValueError, OSError) as error:
        parser.exit(2, f"{prog}: error: {message(error)}\n")
    except RuntimeError as error:
        parser.exit(1, f"{prog}: error: {error}\n")
    except KeyboardInterrupt:
        parser.exit(130, f"{prog}: error: interrupted; the same command continues where it stopped\n")
    status = 0
    if isinstance(result, list):  # the problems that a check has found
        status = 1 if result else 0
        result.append(f"{values['folder']}: {f'{len(result):,} problems' if result else 'sound'}")
        result = "\n".join(result)
    if result is not None:
        print(result)
    sys.exit(status)


def _unknown_options(verb: argparse.ArgumentParser | None, words: Sequence[str]) -> str:
    """All options that a verb does not have; argparse would tell of one that is missing for a typo first."""
    known = [] if verb is None else [flag for action in verb._actions for flag in action.option_strings]
    unknown = []
    for flag in (word.partition("=")[0] for word in words if word.startswith("--")):
        if known and not any(name.startswith(flag) for name in known):  # a beginning stands for the whole
            close = get_close_matches(flag, known, n=1)
            unknown.append(f"no option {flag}" + (f", did you mean {close[0]}?" if close else ""))
    return "; ".join(unknown)


def _parser(prog: str) -> tuple[argparse.ArgumentParser, Mapping[str, argparse.ArgumentParser]]:
    """The parser of the command, and those of its verbs."""
    parser = _Parser(prog=prog, description="The data stage: from images to shards that training reads.")
    verbs = parser.add_subparsers(required=True, metavar="VERB", parser_class=_Parser)
    for name, verb in _VERBS.items():
        sub = verbs.add_parser(
            name,
            help=verb["help"].splitlines()[0],
            description=f"example: veca data {name} {verb['example']}\n\n"
            + verb["help"].replace("{sources}", _WORDS["sources"]),
            epilog=verb.get("more"),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            argument_default=argparse.SUPPRESS,  # what is not given has the function's own default
        )
        sub.set_defaults(run=verb["run"])
        for key in verb["arguments"]:
            argument, *metavar = key.split(" ")
            options = _WORDS["arguments"][key] | ({"metavar": metavar[0]} if metavar else {})
            if "type" in options:
                options["type"] = _TYPES[options["type"]]
            sub.add_argument(argument, **options)
    return parser, verbs.choices


def _size(text: str) -> int:
    units = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmg]i?)?b?", text.strip().lower())
    if not match:
        raise argparse.ArgumentTypeError(f"a size looks like 256MB or 1GiB; got {text!r}")
    return int(float(match[1]) * units[match[2] or ""])


def _part(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if not match:
        raise argparse.ArgumentTypeError(f"a part looks like 0/4; got {text!r}")
    return int(match[1]), int(match[2])


def _numbers(text: str) -> list[int]:
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"numbers look like 256,512; got {text!r}") from None


_TYPES = {"path": Path, "int": int, "float": float, "size": _size, "part": _part, "numbers": _numbers}
_WORDS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
_VERBS: dict[str, Any] = _WORDS["verbs"]
