"""What is known about a run's weights, for the model card: teacher and its licence, data, budgets, results.

In: the path of a checkpoint, whose run keeps config.yaml and probe results beside it. Out: `facts`, names
and texts. What is not there is left out: a checkpoint that was moved away from its run still loads.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from veca.data.stored_targets import TargetsSource
from veca.model.hub import RESULTS_FACT

PROBE_FORMAT = "veca-probe"
CHECKPOINTS = "checkpoints"

DINOV3_LICENCE = {
    "license": "other",
    "license_name": "dinov3-license",
    "license_link": "https://ai.meta.com/resources/models-and-libraries/dinov3-license",
}
TEACHER_RECORD = "teacher_facts"  # among the options of a cache's index: what a card says of its teacher
UNKNOWN_TEACHER = {"teacher": "unknown: ask before you publish", "license": "unknown"}
AUTHORS_FACTS = {
    "teacher": "DINOv3 (weights of the method's authors), under Meta's DINOv3 licence",
    **DINOV3_LICENCE,
}


def run_facts(checkpoint: Path) -> dict[str, str]:
    """The facts of a run's checkpoint, RUN/checkpoints/NAME.ckpt."""
    run = checkpoint.resolve().parent
    run = run.parent if run.name == CHECKPOINTS else run
    facts = _recipe_facts(run / "config.yaml")
    tables = [_markdown(results) for results in _probe_results(run)]
    return facts | ({RESULTS_FACT: "\n\n".join(tables)} if tables else {})


def teacher_facts(name: str) -> dict[str, str]:
    """A teacher, by its Hub id or else its class, and its licence."""
    if "dinov3" in name.lower():
        return {"teacher": f"{name}, under Meta's DINOv3 licence", **DINOV3_LICENCE}
    known = {
        "EfficientNetTeacher": "EfficientNet-Lite0 (ImageNet-1k), Apache-2.0",
        "OfflineTeacher": "a network with random weights, for tests: these features mean nothing",
    }
    return {"teacher": known.get(name, f"{name}; its own licence applies")}


def _recipe_facts(path: Path) -> dict[str, str]:
    try:
        recipe = yaml.safe_load(path.read_text(encoding="utf-8"))
        model, data, trainer = recipe["model"], recipe["data"], recipe["trainer"]
        facts = _target_facts(model.get("teacher"), data.get("targets"))
        folders = data["sources"] if isinstance(data["sources"], dict) else [data["sources"]]
        # Folder names, not paths: the rest is nobody's business.
        facts["data"] = ", ".join(Path(str(folder)).name for folder in folders)
        weights = (f"{budget} (weight {weight:g})" for budget, weight in model["budgets"].items())
        facts["budgets in training"] = ", ".join(weights)
        phases = data["resolutions"]["phases"]
        sizes = sorted({size for phase in phases for size in phase["probabilities"]})
        facts["resolutions in training"] = ", ".join(map(str, sizes))
        length = {"steps": trainer["max_steps"], "epochs": trainer["max_epochs"]}
        facts["length"] = ", ".join(f"{count} {unit}" for unit, count in length.items() if (count or -1) > 0)
    except (OSError, yaml.YAMLError, KeyError, TypeError, AttributeError):
        return {}  # no recipe, or one of another release: the weights are as good as before
    return facts


def _target_facts(teacher: Any, targets: Any) -> dict[str, str]:
    """The facts of `model.teacher` and `data.targets` as a recipe writes them."""
    if targets is not None:
        return _stored_facts(TargetsSource(**({"path": targets} if isinstance(targets, str) else targets)))
    kind, options = str(teacher["class_path"]).rpartition(".")[2], teacher.get("init_args") or {}
    if kind == "CachedTargets":  # a recipe of before `data.targets`
        return _stored_facts(TargetsSource(**options))
    return teacher_facts(str(options.get("name_or_path") or kind))


def _stored_facts(source: TargetsSource) -> dict[str, str]:
    """The teacher that made a cache, by the cache's own record.

    Where the cache is gone, by the name in the recipe, which the run has compared with that record.
    """
    try:
        cache = source.open()
    except (OSError, ValueError):
        stated = source.teacher
        is_name = isinstance(stated, str) and not re.fullmatch(r"[0-9a-f]{16}", stated)  # else of its weights
        return teacher_facts(stated) if stated and is_name else dict(UNKNOWN_TEACHER)
    record = cache.index.options.get(TEACHER_RECORD)
    if isinstance(record, dict) and "teacher" in record:
        return {str(name): str(fact) for name, fact in record.items()}
    return teacher_facts(cache.spec.teacher) if cache.spec.teacher else dict(UNKNOWN_TEACHER)


def _probe_results(run: Path) -> Iterator[dict[str, Any]]:
    """Probe JSONs in the run's folder, and those beside it that name one of its checkpoints."""
    for folder in (run, run.parent):
        for path in sorted(folder.glob("*.json")):
            try:
                body = json.loads(path.read_text(encoding="utf-8"))
                own = folder == run or run in Path(body["model"]).resolve().parents
                if body["format"] == PROBE_FORMAT and body["results"] and own:
                    yield body
            except (OSError, ValueError, KeyError, TypeError):
                continue  # some other JSON


def _markdown(body: dict[str, Any]) -> str:
    """The rows of a probe as a Markdown table, under a line that says what was measured."""
    rows = body["results"]
    columns = [name for name in rows[0] if any(row.get(name) is not None for row in rows)]
    lines = [columns, ["---"] * len(columns), *([_cell(row.get(name)) for name in columns] for row in rows)]
    table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    return f"{body.get('probe', 'probe')} on {Path(str(body.get('data', ''))).name}:\n\n{table}"


def _cell(value: Any) -> str:
    return "–" if value is None else f"{value:.3f}" if isinstance(value, float) else str(value)
