"""All stages of a run → report.html, whole in itself: style and pictures are inside, nothing is fetched."""

from datetime import datetime
from html import escape
from pathlib import Path

from veca.probes.results import markdown, table
from veca.report.sections import stage_section
from veca.report.stage import Stage, read_stages
from veca.report.tables import html_table
from veca.train.environment import facts, gather
from veca.utils.files import write_text_atomic

REPORT_NAME = "report.html"
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
.environment td { white-space: normal; text-align: left; overflow-wrap: anywhere; }
.environment th { text-align: left; }
.environment td:first-child { white-space: nowrap; vertical-align: top; }
.sights th, .sights td { padding: 4px 4px 10px; border: 0; width: 150px; text-align: left;
  vertical-align: top; }
.sights td:first-child { min-width: 150px; color: var(--soft); font-size: 13px; white-space: normal; }
.sights td:not(:first-child) { min-width: 120px; }
.sights img + svg { margin-top: 4px; }
.sights img { display: block; width: 100%; height: auto; image-rendering: pixelated; }
.sights .faded { opacity: 0.55; filter: grayscale(1); }
.sights g { fill: none; stroke-width: 1.8; stroke-linejoin: round; }
.sights .edge { stroke: #fff; stroke-width: 3.6; }
.sights .end { stroke: #1b2530; stroke-width: 0.6; }
.sights text { font-size: 10px; font-weight: 600; paint-order: stroke; stroke: #fff; stroke-width: 2.5px; }
details { margin-top: 24px; }
summary { cursor: pointer; font-weight: 600; }
pre { overflow: auto; max-height: 480px; padding: 12px; background: #f5f7f9;
  border-radius: 6px; font-size: 12px; }
"""


def report(run_dir: Path) -> None:
    """Write RUN_DIR/report.html: metrics, probes, pictures, recipe and environment of a run, in one file.

    Args:
        run_dir: Folder of a run, or a folder whose subfolders are the stages of one.
    """
    stages = read_stages(run_dir)
    body = "".join(stage_section(stage, place=place) for place, stage in enumerate(stages))
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
    """Where the report was made; a stage tells where it was."""
    rows = [[escape(name), escape(value)] for name, value in facts(gather()).items()]
    table = html_table([["fact", "value"], *rows])
    return f'<section class="environment"><h2>Environment of this report</h2>{table}</section>'
