"""The verbs of the `veca` command. Each is one row here; the work is in the module it names."""

import os
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import version
from types import MappingProxyType
from typing import NamedTuple

from jsonargparse import ArgumentError

from veca.cli.args import VerbParser
from veca.utils.process import KIND, TRACEBACK, keep_memory, message, stop_signals


class Verb(NamedTuple):
    """What a verb runs (`module:function`), and what its help says."""

    target: str
    summary: str
    example: str  # what is typed behind `veca VERB`
    inputs: tuple[str, ...] = ()  # parameters that bare words give, in order
    defaults: Mapping[str, str] = MappingProxyType({})  # of parameters that the function itself requires


_RUN = "--config runs/a/config.yaml --ckpt_path best"
_PROBE = "data/photos --model my-model"
_NANO = {"model": "nano"}  # where none is named
_PICTURES = {
    "contributions": "which cores each patch feeds, as colour: layers × budgets",
    "cores": "similarity of cores to all patches",
    "similarity": "similarity of all patches to chosen points",
    "dense": "dense features over resolutions",
    "paths": "where each core sits, layer by layer",
}

# In the order in which a user meets them. Imported on use, so that --help answers at once.
VERBS = {
    "data": Verb("veca_data.cli:main", "images → shards → cached targets", "shards photos --out shards"),
    "plan": Verb(
        "veca.bench.plan:plan",
        "GPU hours, memory and storage of a recipe",
        "recipes/pretrain_base.yaml",
        ("recipe",),
    ),
    "fit": Verb("veca.cli.fit:main", "train: one recipe, one run", "--config cpu_tiny"),
    "validate": Verb("veca.cli.fit:main", "losses over resolutions × budgets, on the val shards", _RUN),
    "test": Verb("veca.cli.fit:main", "the same on the test shards", _RUN),
    "predict": Verb("veca.cli.fit:main", "features of the val shards, into the run's folder", _RUN),
    "check": Verb(
        "veca.cli.check:check",
        "whether a run, a model, shards, a cache or a checkpoint is whole",
        "runs/a",
        ("path",),
    ),
    "report": Verb("veca.report:report", "one HTML file about a run", "runs/a", ("run_dir",)),
    "convert": Verb(
        "veca.checkpoint:convert",
        "a run's .ckpt or the authors' .pt → a model's folder",
        "runs/a/checkpoints/best.ckpt --out my-model",
        ("checkpoint", "out"),
    ),
    "features": Verb(
        "veca.features:features",
        "global and dense features of images or shards",
        "photos --out features",
        ("images",),
        _NANO,
    ),
    "export": Verb(
        "veca.export:export",
        "one budget as ONNX or torch.export, read back and compared",
        "--model my-model --budget 32 --out small-32.onnx",
    ),
    "page": Verb("veca.page:page", "a local web page where one moves the budget", ""),
    "probe knn": Verb("veca.probes.classify:knn", "nearest neighbours", _PROBE, ("data",)),
    "probe linear": Verb("veca.probes.classify:linear", "a linear classifier", _PROBE, ("data",)),
    "probe segment": Verb("veca.probes.segment:segment", "a linear segmentation head", _PROBE, ("data",)),
    "probe depth": Verb("veca.probes.depth:depth", "a linear depth head", _PROBE, ("data",)),
    **{
        f"figures {kind}": Verb(
            f"veca.figures.pictures:{kind}", summary, f"photo.jpg --out {kind}.png", ("image",), _NANO
        )
        for kind, summary in _PICTURES.items()
    },
    "figures elastic": Verb(
        "veca.figures.curves:elastic",
        "a probe against the budget",
        "knn.json --out knn.svg",
        ("results",),
    ),
    "figures cost": Verb(
        "veca.figures.curves:cost", "FLOPs and latency against resolution", "--out cost.svg"
    ),
    "figures analysis": Verb(
        "veca.figures.analysis:analysis",
        "redundancy, stability, semantics and isotropy of cores",
        "photos --out analysis",
        ("images",),
        _NANO,
    ),
    "bench all": Verb("veca.bench.harness:run_all", "every benchmark, as one table and one JSON", ""),
    "bench check": Verb("veca.bench.harness:check", "the same, compared with docs/bench.json", ""),
    "bench attention": Verb("veca.bench.model:attention", "one layer's attention beside DINOv3's", ""),
    "bench model": Verb("veca.bench.model:model", "the whole small model beside its peers", ""),
    "bench regions": Verb("veca.bench.model:regions", "reading parts of an image from its memory", ""),
    "bench scale": Verb("veca.bench.training:scale", "images/s of two ranks beside one", ""),
    "bench loop": Verb("veca.bench.training:loop", "what Lightning's loop costs over a bare one", ""),
    "bench loader": Verb("veca.bench.data:loader", "images/s of the loader", ""),
    "bench pixels": Verb("veca.bench.data:pixels", "images/s of decoding and augmenting", "", ("photos",)),
    "bench cache": Verb("veca.bench.training:cache", "cached targets beside a live teacher", ""),
    "bench probe": Verb("veca.bench.training:probe", "thirteen rates at once, against one by one", ""),
    "bench shards": Verb("veca.bench.data:shards", "speed of making shards", "", ("folder",)),
}
GROUPS = {
    "probe": "what frozen features are worth",
    "figures": "pictures of what a model sees, and numbers about its cores",
    "bench": "how fast, as ratios taken in one run",
}
FORMER = {"bench plan": ["plan"]}  # old spellings, until version 0.3
RUNS = ("fit", "validate", "test", "predict")
RUN_HELP = """\
usage: veca {verb} --config RECIPE [--key value …]

example: veca {verb} {example}

RECIPE is a YAML file or the name of a packaged one. Every key of it can be overridden here, with dots between
its parts; several --config are read in order, the later one's keys over the earlier one's. The run's
config.yaml says what it came to.

  --ckpt_path last                      go on from the run's newest intact checkpoint (also best, or a file)
  --trainer.default_root_dir runs/a     the run's folder
  --trainer.max_steps 1000              optimizer steps
  --trainer.devices 2                   devices on this machine; auto takes all GPUs
  --trainer.precision auto              bf16 where the machine multiplies it fast, else float32
  --model.size small                    tiny, small, small_plus, base, large
  --model.optimization.lr 4e-4          learning rate after warmup
  --model.init_from my-model            start from these weights
  --data.sources data/images            shards to read
  --data.resolutions.batch_size 32      images per device and pass
  --checkpoint_every 1000               optimizer steps between two last.ckpt
  --wandb_project NAME                  also log to Weights & Biases

veca {verb} --help-keys lists all keys with their meaning (some seconds, some hundred lines)."""


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
        print(RUN_HELP.format(verb=name, example=VERBS[name].example))
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
