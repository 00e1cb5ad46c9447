"""`veca-data`: the verbs of the data stage. Each verb is one function elsewhere; here are its words.

Exit status: 0 done, 1 the work failed or problems were found, 2 the request was wrong.
"""

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from veca.utils.leaving import message

_SOURCES = """\
SOURCE is one of
  a folder of images, however deep; train/ and val/ folders in it become the splits
  Objects365 unpacked (train/patchN/*.jpg + val/…, or images/train + images/val)
  Objects365 as downloaded (train/patchN.tar.gz + val/images/v1/…), read without unpacking
  an archive (.zip, .tar, .tar.gz, .tar.bz2, .tar.xz), or a folder of archives
  a text file (.txt, .lst) with one path per line, relative to that file"""

_SAMPLE_HELP = "Make a folder of small generated images, to try everything else with."
_MERGE_HELP = "Write the index of shards that several machines made with --part."
_CHECK_HELP = "Compare index.json with the tars, and name every problem."
_SCAN_HELP = f"Read a source and report what is in it.\n\n{_SOURCES}"
_ESTIMATE_HELP = f"Tell bytes and hours before anything is written.\n\n{_SOURCES}"

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

_CACHE_EXAMPLE = "shards --config pretrain_small --views 8 --dtype int8"
_CACHE_EXAMPLES = """\
more examples:
  veca data cache shards --config pretrain_base --views 4
  veca data cache shards --teacher veca.teachers.EfficientNetTeacher --resolutions 128 --dtype int8
  veca data cache shards --config pretrain_base \\
      --teacher '{class_path: veca.teachers.TransformersTeacher, init_args: {name_or_path: models/vitb16}}'
  srun veca data cache shards --config … --num-nodes 4      under SLURM, see recipes/slurm/cache.sbatch"""


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


def _parser(prog: str) -> tuple[_Parser, dict[str, _Parser]]:
    """The parser of the command, and those of its verbs."""
    parser = _Parser(prog=prog, description="The data stage: from images to shards that training reads.")
    verbs = parser.add_subparsers(required=True, metavar="VERB", parser_class=_Parser)
    for name, (run, text, example, more, add_arguments) in _VERBS.items():
        verb = verbs.add_parser(
            name,
            help=text.splitlines()[0],
            description=f"example: veca data {name} {example}\n\n{text}",
            epilog=more,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        verb.set_defaults(run=run)
        add_arguments(verb)
    return parser, verbs.choices


def _sample_arguments(parser: Any) -> None:
    add = parser.add_argument
    add("--out", type=Path, required=True, help="folder to write")
    add("--count", type=int, default=2000, help="number of images (default: %(default)s)")
    add("--size", type=int, default=256, help="side in pixels (default: %(default)s)")
    add("--seed", type=int, default=0, help="another seed, other images (default: %(default)s)")
    _add_workers(add)


def _scan_arguments(parser: Any) -> None:
    add = parser.add_argument
    _add_source(add)
    _add_annotations(add)
    add("--findings", type=Path, help="write all rejects and copies there, one JSON per line")
    _add_workers(add)


def _shards_arguments(parser: Any) -> None:
    add = parser.add_argument
    _add_source(add)
    _add_annotations(add)
    add("--out", type=Path, required=True, help="folder to write")
    size = parser.add_mutually_exclusive_group().add_argument
    size("--shard-bytes", type=_size, help="source bytes per shard (default: 256MB)")
    size("--shard-samples", type=int, help="images per shard instead; about so many from compressed tars")
    add(
        "--val-share",
        type=float,
        help="share of the images for validation (default: 0.01, or the source's own val folder)",
    )
    _add_encoding(add)
    add("--seed", type=int, default=0, help="of the shuffle and the val share (default: %(default)s)")
    _add_workers(add)
    add("--part", type=_part, help="make part I/N of the shards, I from 0 to N-1", metavar="I/N")
    _add_max_rejects(add)


def _merge_arguments(parser: Any) -> None:
    add = parser.add_argument
    add("out", type=Path, metavar="FOLDER", help="the --out of all parts")
    _add_max_rejects(add)


def _check_arguments(parser: Any) -> None:
    add = parser.add_argument
    add("folder", type=Path, metavar="FOLDER", help="folder with index.json")
    add("--decode", dest="decode_images", action="store_true", help="also decode every image")
    _add_workers(add)


def _estimate_arguments(parser: Any) -> None:
    add = parser.add_argument
    _add_source(add)
    _add_encoding(add)
    _add_workers(add)
    add("--samples", type=int, default=64, help="images to try (default: %(default)s)")
    add = parser.add_argument_group("cached targets").add_argument
    add("--teacher", choices=("small", "small_plus", "base", "large"), help="size of the teacher")
    add("--resolutions", type=_numbers, default=[256], metavar="R,R,…", help="in pixels (default: 256)")
    _add_storage(add)


def _cache_arguments(parser: Any) -> None:
    add = parser.add_argument
    add("shards", type=Path, metavar="SHARDS", help="folder with index.json")
    add(
        "--config",
        type=Path,
        metavar="RECIPE",
        help="take teacher, resolutions and precision of this recipe, a path or a packaged name",
    )
    add("--teacher", metavar="CLASS", help="a class path or, as in a recipe, {class_path: …, init_args: {…}}")
    add("--resolutions", type=_numbers, metavar="R,R,…", help="in pixels (default: 256)")
    _add_storage(add)
    add("--seed", type=int, default=42, help="of the views (default: %(default)s)")
    add("--batch-size", type=int, help="views the teacher takes at once (default: 64, on a CPU 16)")
    add(
        "--precision",
        help="32-true, bf16-mixed, or auto: bf16-mixed on GPUs and on CPUs that multiply bf16, else 32-true "
        "(default: the recipe's, else 32-true)",
    )
    add("--accelerator", default="auto", help="cpu, gpu, … (default: %(default)s)")
    add("--devices", default="auto", help="how many per machine (default: %(default)s)")
    add("--num-nodes", type=int, default=1, help="machines (default: %(default)s)")
    _add_workers(add)


def _add_storage(add: Any) -> None:
    add("--views", type=int, default=4, help="views per training image (default: %(default)s)")
    add("--dtype", choices=("fp16", "bf16", "int8"), default="fp16", help="(default: %(default)s)")


def _add_source(add: Any) -> None:
    add("source", type=Path, metavar="SOURCE", help="folder, archive or list of paths")


def _add_annotations(add: Any) -> None:
    add(
        "--annotations",
        type=Path,
        action="append",
        default=[],
        metavar="JSON",
        help="an Objects365 annotation file (may be repeated); images it lists that are missing become "
        "rejects. Files named zhiyuan_objv2_{train,val}.json inside SOURCE are found by themselves",
    )


def _add_encoding(add: Any) -> None:
    add("--max-short-side", type=int, metavar="PIXELS", help="re-encode as JPEG, shrunk to this short side")
    add("--quality", type=int, help="re-encode as JPEG of this quality, 1–95 (when re-encoding: 92)")


def _add_workers(add: Any) -> None:
    add("--workers", type=int, help="processes (default: one per core this process may use)")


def _add_max_rejects(add: Any) -> None:
    add(
        "--max-rejects",
        type=float,
        default=0.01,
        metavar="SHARE",
        help="fail, without an index, above this share of rejects (default: %(default)s)",
    )


def _size(text: str) -> int:
    units = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmg]i?)?b?", text.strip().lower())
    if not match:
        raise argparse.ArgumentTypeError(f"a size looks like 256MB or 1GiB; got {text!r}")
    return int(float(match[1]) * units[match[2] or ""])


def _part(text: str) -> object:
    from veca_data.pack import Part

    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if not match:
        raise argparse.ArgumentTypeError(f"a part looks like 0/4; got {text!r}")
    return Part(int(match[1]), int(match[2]))


def _numbers(text: str) -> list[int]:
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"numbers look like 256,512; got {text!r}") from None


# Name: function, help, example, more examples, arguments. An option has the name of the argument it sets.
_VERBS: dict[str, tuple[str, str, str, str, Callable[[Any], None]]] = {
    "sample": ("sample:make_sample", _SAMPLE_HELP, "--out sample --count 500", "", _sample_arguments),
    "scan": ("inspect:scan", _SCAN_HELP, "photos", "", _scan_arguments),
    "shards": ("pack:make_shards", _SHARDS_HELP, "photos --out shards", _SHARDS_EXAMPLES, _shards_arguments),
    "merge": ("pack:merge_parts", _MERGE_HELP, "shards", "", _merge_arguments),
    "check": ("check:check", _CHECK_HELP, "shards", "", _check_arguments),
    "estimate": ("inspect:estimate", _ESTIMATE_HELP, "photos --max-short-side 864", "", _estimate_arguments),
    "cache": ("cache:cache", _CACHE_HELP, _CACHE_EXAMPLE, _CACHE_EXAMPLES, _cache_arguments),
}
