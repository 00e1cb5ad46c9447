"""The verbs of the `veca` command. Each is one line here; the work is in the module it names."""

import os
import sys
from contextlib import nullcontext
from importlib import import_module

from jsonargparse import auto_cli

from veca.utils.leaving import KIND, TRACEBACK
from veca.utils.memory import keep_memory
from veca.utils.signals import stop_signals
from veca.cli.args import spell_out

# verb: (module, function, what it does). Imported on use, so that --help answers at once.
VERBS = {
    "fit": ("veca.cli.fit", "main", "train: --config recipes/NAME.yaml [--key value]"),
    "validate": ("veca.cli.fit", "main", "losses over the resolution × budget grid, on the val shards"),
    "test": ("veca.cli.fit", "main", "the same on the test shards"),
    "predict": ("veca.cli.fit", "main", "write features of the val shards into the run's folder"),
    "probe knn": ("veca.probes.knn", "knn", "what frozen features are worth: nearest neighbours"),
    "probe linear": (
        "veca.probes.linear",
        "linear",
        "… a linear classifier, its learning rate chosen",
    ),
    "probe segment": ("veca.probes.segment", "segment", "… a linear segmentation head"),
    "probe depth": ("veca.probes.depth", "depth", "… a linear depth head"),
    "features": ("veca.features.command", "features", "global and dense features of images or shards"),
    "export": ("veca.export.command", "export", "one budget as ONNX or torch.export, read back and compared"),
    "convert": ("veca.checkpoint", "convert", "a run's .ckpt or the authors' .pt → a model's folder"),
    "page": ("veca.page.command", "page", "a local web page where one moves the budget"),
    "figures contributions": (
        "veca.figures.pictures",
        "contributions",
        "which cores each patch feeds, as colour: layers × budgets",
    ),
    "figures cores": ("veca.figures.pictures", "cores", "similarity of chosen cores to all patches"),
    "figures similarity": (
        "veca.figures.pictures",
        "similarity",
        "similarity of all patches to chosen points",
    ),
    "figures dense": ("veca.figures.pictures", "dense", "dense features and CLS maps over resolutions"),
    "figures paths": ("veca.figures.pictures", "paths", "where each core sits at every layer"),
    "figures elastic": (
        "veca.figures.elastic",
        "elastic",
        "a probe against the budget, with the paper's curves",
    ),
    "figures cost": ("veca.figures.cost", "cost", "FLOPs and latency against resolution and batch size"),
    "figures analysis": (
        "veca.figures.analysis",
        "analysis",
        "redundancy, stability, semantics and isotropy of cores",
    ),
    "report": ("veca.report", "report", "one HTML file about a run"),
    "mini": ("veca.mini", "mini", "the paper's claims in miniature: three students, two seeds, one table"),
    "bench plan": (
        "veca.bench.plan",
        "plan",
        "GPU hours, memory and storage of a recipe, with the arithmetic",
    ),
    "bench all": ("veca.bench.table", "run_all", "every benchmark, as one table and one JSON"),
    "bench check": ("veca.bench.table", "check", "the same, compared with docs/bench.json"),
    "bench attention": ("veca.bench.attention", "attention", "one layer's attention path beside DINOv3's"),
    "bench model": ("veca.bench.model", "model", "the whole small model beside its peers"),
    "bench scale": ("veca.bench.scale", "scale", "images/s of two ranks beside one"),
    "bench loop": ("veca.bench.loop", "run", "what Lightning's loop costs over a bare one"),
    "bench loader": ("veca.bench.loader", "run", "images/s of the loader, and the cost of skipping"),
    "bench pixels": ("veca.bench.pixels", "run", "images/s of decoding and augmenting"),
    "bench cache": ("veca.bench.cache", "run", "training from cached targets beside a live teacher"),
    "bench probe": ("veca.bench.probe", "run", "thirteen learning rates at once, against one by one"),
    "bench shards": ("veca.bench.shards", "run", "speed of making shards"),
}
NAMED = ("probe", "features", "export", "page", "figures", "mini")  # --model and --data read better named


def main(argv: list[str] | None = None) -> None:
    """Run one verb; a user's mistake ends with its message and status 2, not a traceback."""
    args = sys.argv[1:] if argv is None else argv
    if not args or args[0] in ("-h", "--help"):
        print(_usage())
        return
    words = 2 if " ".join(args[:2]) in VERBS else 1
    verb, rest = " ".join(args[:words]), args[words:]
    if verb not in VERBS:
        raise SystemExit(f"veca: error: no verb {verb!r}.\n\n{_usage()}")
    module, name, _ = VERBS[verb]
    catching = stop_signals.caught(ends_process=argv is None) if module == "veca.cli.fit" else nullcontext()
    keep_memory()
    try:
        with catching:
            function = getattr(import_module(module), name)
            if module == "veca.cli.fit":
                if verb != "fit":
                    stop_signals.let_go()  # there is nothing to save
                function(argv)
            else:
                positional = verb.split()[0] not in NAMED
                spelled = rest if positional else spell_out(function, rest)
                auto_cli(function, args=spelled, prog=f"veca {verb}", as_positional=positional)
    except KIND as error:
        if TRACEBACK in os.environ:
            raise
        print(f"veca: error: {error}", file=sys.stderr)
        raise SystemExit(2) from None


def _usage() -> str:
    lines = [f"  {verb:<21} {text}" for verb, (_, _, text) in VERBS.items()]
    return (
        "usage: veca VERB [options]   (veca VERB --help explains one)\n\n"
        + "\n".join(lines)
        + f"\n\nA mistake ends with a message; set {TRACEBACK}=1 to see where it was found."
    )
