"""`veca-data`: the verbs of the data stage. Each verb is one function elsewhere; here are its words.

Exit status: 0 done, 1 the work failed or problems were found, 2 the request was wrong.
"""

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from veca.utils.process import message

_SOURCES = """\
SOURCE is one of
  a folder of images, however deep; train/ and val/ folders in it become the splits
  Objects365 unpacked (train/patchN/*.jpg + val/…, or images/train + images/val)
  Objects365 as downloaded (train/patchN.tar.gz + val/images/v1/…), read without unpacking
  an archive (.zip, .tar, .tar.gz, .tar.bz2, .tar.xz), or a folder of archives
  a text file (.txt, .lst) with one path per line, relative to that file"""

_SHARDS_HELP = f"""\
Turn images into shards: tars of samples, index.json, and rejects.jsonl with what could not be used.

{_SOURCES}

Stop it at any time, even with kill -9: the same command finishes the rest, and the bytes of the result do
not depend on interruptions or on the number of workers. Compressed tars need room for one of them per
worker beside the shards while they are read."""

_SHARDS_EXAMPLES = """\
more examples:
  veca data shards photos --out shards                       keep files byte for byte
  veca data shards objects365 --out shards --max-short-side 864 --quality 92
  veca data shards objects365 --out shards --part 3/16       on the fourth of 16 machines, then
  veca data merge shards                                     when all 16 are done"""

_CACHE_HELP = """\
Run a teacher once over shards, and keep its targets beside them, in SHARDS/targets-FINGERPRINT.

Training then reads them instead of running the teacher (--model.teacher null --data.targets SHARDS). Targets
belong to views: each training image is seen in --views random crops, flips and operations per resolution,
recorded and replayed exactly; val and test images in their centre. More views augment better and take more
room: `veca data estimate` tells how much.

Stop it at any time: the same command keeps the finished shards and makes the rest, with the same bytes."""

_CACHE_EXAMPLES = """\
more examples:
  veca data cache shards --config pretrain_base --views 4
  veca data cache shards --teacher veca.teachers.EfficientNetTeacher --resolutions 128 --dtype int8
  veca data cache shards --config pretrain_base \\
      --teacher '{class_path: veca.teachers.TransformersTeacher, init_args: {name_or_path: models/vitb16}}'
  srun veca data cache shards --config … --num-nodes 4      under SLURM, see recipes/slurm/cache.sbatch"""


class DataVerb(NamedTuple):
    """One word of the command line."""

    run: str  # module:function
    arguments: tuple[str, ...]  # keys of _ARGUMENTS
    example: str
    help: str
    more: str = ""  # examples


class _Parser(argparse.ArgumentParser):
    """Errors in one line, always under the command's own name."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{_command(self.prog)}: error: {message} (see {self.prog} --help)\n")


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
        _fail(prog, 2, message(error))
    except RuntimeError as error:
        _fail(prog, 1, error)
    except KeyboardInterrupt:
        _fail(prog, 130, "interrupted; the same command continues where it stopped")
    status = 0
    if isinstance(result, list):  # the problems that a check has found
        status = 1 if result else 0
        result.append(f"{values['folder']}: {f'{len(result):,} problems' if result else 'sound'}")
        result = "\n".join(result)
    if result is not None:
        print(result)
    sys.exit(status)


def _fail(prog: str, status: int, error: object) -> NoReturn:
    print(f"{prog}: error: {error}", file=sys.stderr)
    sys.exit(status)


def _command(prog: str) -> str:
    """How the data stage was called: `veca data shards` → `veca data`."""
    return " ".join(prog.split()[: 1 if prog.startswith("veca-data") else 2])


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
            help=verb.help.splitlines()[0],
            description=f"example: veca data {name} {verb.example}\n\n{verb.help}",
            epilog=verb.more,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            argument_default=argparse.SUPPRESS,  # what is not given has the function's own default
        )
        sub.set_defaults(run=verb.run)
        for key in verb.arguments:
            argument, _, metavar = key.partition(" ")
            more: dict[str, Any] = {"metavar": metavar} if metavar else {}
            sub.add_argument(argument, **more, **_ARGUMENTS[key])
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


# Name, and how its value is called in the help; an option has the name of the function's argument it sets.
_ARGUMENTS: dict[str, dict[str, Any]] = {
    "source SOURCE": {"type": Path, "help": "folder, archive or list of paths"},
    "shards SHARDS": {"type": Path, "help": "folder with index.json"},
    "folder FOLDER": {"type": Path, "help": "folder with index.json"},
    "out FOLDER": {"type": Path, "help": "the --out of all parts"},
    "--out": {"type": Path, "required": True, "help": "folder to write"},
    "--workers": {"type": int, "help": "processes (default: one per core this process may use)"},
    "--seed": {"type": int, "help": "another seed, another choice (default: 0; of a cache 42)"},
    "--count": {"type": int, "help": "number of images (default: 2000)"},
    "--size": {"type": int, "help": "side in pixels (default: 256)"},
    "--annotations JSON": {
        "type": Path,
        "action": "append",
        "help": "an Objects365 annotation file (may be repeated); images it lists that are missing become "
        "rejects. Files named zhiyuan_objv2_{train,val}.json inside SOURCE are found by themselves",
    },
    "--findings": {"type": Path, "help": "write all rejects and copies there, one JSON per line"},
    "--shard-bytes": {"type": _size, "help": "source bytes per shard (default: 256MB)"},
    "--shard-samples": {"type": int, "help": "images per shard instead; about so many from compressed tars"},
    "--val-share": {"type": float, "help": "for validation (default: 0.01, or the source's own val folder)"},
    "--max-short-side PIXELS": {"type": int, "help": "re-encode as JPEG, shrunk to this short side"},
    "--quality": {"type": int, "help": "re-encode as JPEG of this quality, 1–95 (when re-encoding: 92)"},
    "--part I/N": {"type": _part, "help": "make part I/N of the shards, I from 0 to N-1"},
    "--max-rejects SHARE": {
        "type": float,
        "help": "fail, without an index, above this share of rejects (default: 0.01)",
    },
    "--decode": {"dest": "decode_images", "action": "store_true", "help": "also decode every image"},
    "--samples": {"type": int, "help": "images to try (default: 64)"},
    "--teacher SIZE": {"help": "of cached targets: small, small_plus, base or large"},
    "--teacher CLASS": {"help": "a class path or, as in a recipe, {class_path: …, init_args: {…}}"},
    "--resolutions R,R,…": {"type": _numbers, "help": "of cached targets, in pixels (default: 256)"},
    "--views": {"type": int, "help": "cached views per training image (default: 4)"},
    "--dtype": {"choices": ("fp16", "bf16", "int8"), "help": "of cached targets (default: fp16)"},
    "--config RECIPE": {
        "type": Path,
        "help": "take teacher, resolutions and precision of this recipe, a path or a packaged name",
    },
    "--batch-size": {"type": int, "help": "views the teacher takes at once (default: 64, on a CPU 16)"},
    "--precision": {
        "help": "32-true, bf16-mixed, or auto: bf16-mixed on GPUs and on CPUs that multiply bf16, else "
        "32-true (default: the recipe's, else 32-true)",
    },
    "--accelerator": {"help": "cpu, gpu, … (default: auto)"},
    "--devices": {"help": "how many per machine (default: auto)"},
    "--num-nodes": {"type": int, "help": "machines (default: 1)"},
}
_FILES = ("source SOURCE", "--annotations JSON")
_SHARDS = ("--shard-bytes", "--shard-samples", "--val-share")
_ENCODING = ("--max-short-side PIXELS", "--quality")
_STORAGE = ("--resolutions R,R,…", "--views", "--dtype")
_COMPUTE = ("--batch-size", "--precision", "--accelerator", "--devices", "--num-nodes")

_VERBS = {
    "sample": DataVerb(
        "sample:make_sample",
        ("--out", "--count", "--size", "--seed", "--workers"),
        "--out sample --count 500",
        "Make a folder of small generated images, to try everything else with.",
    ),
    "scan": DataVerb(
        "inspect:scan",
        (*_FILES, "--findings", "--workers"),
        "photos",
        f"Read a source and report what is in it.\n\n{_SOURCES}",
    ),
    "shards": DataVerb(
        "pack:make_shards",
        (*_FILES, "--out", *_SHARDS, *_ENCODING, "--seed", "--workers", "--part I/N", "--max-rejects SHARE"),
        "photos --out shards",
        _SHARDS_HELP,
        _SHARDS_EXAMPLES,
    ),
    "merge": DataVerb(
        "pack:merge_parts",
        ("out FOLDER", "--max-rejects SHARE"),
        "shards",
        "Write the index of shards that several machines made with --part.",
    ),
    "check": DataVerb(
        "check:check",
        ("folder FOLDER", "--decode", "--workers"),
        "shards",
        "Compare index.json with the tars, and name every problem.",
    ),
    "estimate": DataVerb(
        "inspect:estimate",
        ("source SOURCE", *_ENCODING, "--workers", "--samples", "--teacher SIZE", *_STORAGE),
        "photos --max-short-side 864",
        f"Tell bytes and hours before anything is written.\n\n{_SOURCES}",
    ),
    "cache": DataVerb(
        "cache:cache",
        ("shards SHARDS", "--config RECIPE", "--teacher CLASS", *_STORAGE, "--seed", *_COMPUTE, "--workers"),
        "shards --config pretrain_small --views 8 --dtype int8",
        _CACHE_HELP,
        _CACHE_EXAMPLES,
    ),
}
