"""All stages of a run → report.html, whole in itself: style and pictures are inside, nothing is fetched."""

import platform
import subprocess
from datetime import datetime
from html import escape
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from veca.files import write_text_atomic
from veca.probes.results import markdown, table
from veca.report.sections import html_table, stage_section
from veca.report.stage import Stage, read_stages

REPORT_NAME = "report.html"
PACKAGES = ("veca", "torch", "lightning", "transformers", "webdataset")
STYLE = """
:root { color-scheme: light; --line: #dde3ea; --soft: #5a6673; }
* { box-sizing: border-box; }
body { margin: 0; background: #f5f7f9; color: #1b2530;
  font: 15px/1.5 system-ui, "Segoe UI", "DejaVu Sans", sans-serif; }
main { max-width: 1180px; margin: 0 auto; padding: 28px 16px 60px; }
h1 { margin: 0; font-size: 28px; }
h2 { margin: 0 0 14px; font-size: 22px; }
h3 { margin: 26px 0 8px; font-size: 16px; }
section { margin-top: 22px; padding: 22px; background: #fff;
  border: 1px solid var(--line); border-radius: 10px; }
.note, header p { margin: 6px 0 0; color: var(--soft); font-size: 13px; overflow-wrap: anywhere; }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(170px, 1fr)); gap: 12px; }
.fact { padding: 12px 14px; background: #f5f7f9; border-left: 4px solid #0072b2; border-radius: 4px; }
.fact b { display: block; font-size: 22px; font-variant-numeric: tabular-nums; }
.fact span { color: var(--soft); font-size: 13px; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: 5px 12px; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th { color: var(--soft); font-size: 13px; font-weight: 600; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
.worse { color: #b34700; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 400px), 1fr)); gap: 18px; }
figure { margin: 0; padding: 12px; border: 1px solid var(--line); border-radius: 8px; max-width: 640px; }
figcaption { margin-bottom: 6px; font-weight: 600; font-size: 14px; }
svg { display: block; width: 100%; height: auto; }
svg text { fill: #1b2530; font-size: 12px; }
svg .tick { fill: #5a6673; font-size: 11px; }
svg .grid { stroke: #e6ebf0; }
svg .axis { stroke: #8a96a3; }
.legend { display: flex; flex-wrap: wrap; gap: 2px 14px; margin: 4px 0 0; font-size: 12px; }
.legend i { display: inline-block; width: 22px; margin-right: 5px; vertical-align: middle; }
details { margin-top: 24px; }
summary { cursor: pointer; font-weight: 600; }
pre { overflow: auto; max-height: 480px; padding: 12px; background: #f5f7f9;
  border-radius: 6px; font-size: 12px; }
"""


def report(run_dir: Path) -> None:
    """Write RUN_DIR/report.html: recipe, metrics, probes and environment of a run, in one file.

    Args:
        run_dir: Folder of a run, or a folder whose subfolders are the stages of one.
    """
    stages = read_stages(run_dir)
    body = "".join(stage_section(stage) for stage in stages)
    path = run_dir / REPORT_NAME
    write_text_atomic(path, _document(run_dir.resolve().name, body + _environment()))
    for stage in stages:
        print("\n".join(_summary(stage)))
    print(path)


def _summary(stage: Stage) -> list[str]:
    """The final validation losses beside the constant, and the probes, for the terminal."""
    lines = []
    for resolution, names in stage.grid("val").items():
        heads = ["constant" if budget is None else f"budget {budget}" for budget in names]
        losses = [f"{stage.last(name):.4f}" for name in names.values()]
        lines += [markdown([[f"{stage.name}, {resolution} px", *heads], ["val loss", *losses]]), ""]
    for results in stage.probes:
        lines += [markdown(table(results)), ""]
    return lines


def _document(title: str, body: str) -> str:
    made = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z")
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)} – veca</title><style>{STYLE}</style></head>\n"
        f"<body><main><header><h1>{escape(title)}</h1><p>A run of veca; reported {made}.</p></header>\n"
        f"{body}</main></body></html>\n"
    )


def _environment() -> str:
    """Where the report was made, which is where the run was made in most cases."""
    facts = {"python": platform.python_version(), "platform": platform.platform()}
    facts |= {name: found for name in PACKAGES if (found := _version(name))}
    if state := _git_state(Path(__file__).resolve().parents[2]):
        facts["git"] = state
    rows = [[escape(name), escape(value)] for name, value in facts.items()]
    table = html_table([["environment of this report", "value"], *rows])
    return f'<section class="environment"><h2>Environment</h2>{table}</section>'


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _git_state(root: Path) -> str:
    """Commit of the checkout veca runs from, and whether it was changed; empty for an installed package."""
    if not (root / ".git").exists():
        return ""
    try:
        commit, changes = (
            subprocess.run(
                ["git", "-C", str(root), *words], capture_output=True, text=True, timeout=10, check=True
            ).stdout.strip()
            for words in (("rev-parse", "HEAD"), ("status", "--porcelain"))
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    changed = len(changes.splitlines())
    return f"{commit[:12]}, {f'{changed} files changed since' if changed else 'unchanged'}"
