"""The verbs of the `veca` command. Each is one line here; the work is in the module it names."""

import sys
from collections.abc import Callable
from importlib import import_module

from jsonargparse import auto_cli

# verb: (module, function, what it does). Imported on use, so that --help answers at once.
VERBS = {
    "convert": ("veca.checkpoint", "convert", "the authors' checkpoint -> model.safetensors + config.json"),
}


def main(argv: list[str] | None = None) -> None:
    """Run one verb; a user's mistake ends with one line and status 2, not a traceback."""
    args = sys.argv[1:] if argv is None else argv
    if not args or args[0] in ("-h", "--help"):
        print(_usage())
        return
    verb, rest = args[0], args[1:]
    if verb not in VERBS:
        raise SystemExit(f"veca: error: no verb {verb!r}.\n\n{_usage()}")
    module, name, _ = VERBS[verb]
    function: Callable[..., None] = getattr(import_module(module), name)
    try:
        auto_cli(function, args=rest, prog=f"veca {verb}", as_positional=True)
    except (ValueError, OSError) as error:
        print(f"veca: error: {error}", file=sys.stderr)
        raise SystemExit(2) from None


def _usage() -> str:
    lines = [f"  {verb:<10} {text}" for verb, (_, _, text) in VERBS.items()]
    return "usage: veca VERB [options]   (veca VERB --help explains one)\n\n" + "\n".join(lines)
