"""What a recipe decides about the cost of a run, read from its YAML alone: nothing of it is built."""

from pathlib import Path
from typing import Any, NamedTuple

from veca.data.resolutions import Phase, ResolutionSchedule
from veca.model.sizes import SIZES, Size
from veca.teachers.dinov3 import is_gated
from veca.teachers.random import TINY
from veca.utils.recipes import load_recipe

_DINOV3 = {"vits16": "small", "vits16plus": "small_plus", "vitb16": "base", "vitl16": "large"}


class PlannedTeacher(NamedTuple):
    """The shape of a DINOv3."""

    size: Size
    gated: bool


class Validation(NamedTuple):
    """How often a run validates, and on what."""

    every_epochs: int | None
    every_steps: int | None
    after_first_epoch: bool
    budgets: list[int] | None  # None: the full budget
    batches: int | dict[int, int] | None  # per resolution and rank; None: all


class PlannedRun(NamedTuple):
    """One recipe, as far as its cost goes."""

    size: str
    overrides: dict[str, Any]
    teacher: PlannedTeacher
    budgets: dict[int, float]
    resolutions: ResolutionSchedule
    global_batch_size: int | None
    max_epochs: int
    max_steps: int
    checkpointing: bool
    validation: Validation


def read_recipe(path: Path) -> PlannedRun:
    """The costly part of a recipe, by path or name; a ValueError names the key that is missing or unknown."""
    recipe = load_recipe(str(path))
    try:
        model, trainer, data = recipe["model"], recipe["trainer"], recipe["data"]
        schedule = data.get("resolutions", {})
        phases = [
            Phase(**phase)
            for phase in schedule.get("phases", [{"start_step": 0, "probabilities": {256: 1.0}}])
        ]
        run = PlannedRun(
            size=model.get("size", "small"),
            overrides=model.get("size_overrides") or {},
            teacher=_teacher(model["teacher"]),
            budgets=model["budgets"],
            resolutions=ResolutionSchedule(**{**schedule, "phases": phases}),
            global_batch_size=model.get("global_batch_size"),
            max_epochs=trainer.get("max_epochs") or -1,
            max_steps=trainer.get("max_steps", -1),
            checkpointing=model.get("activation_checkpointing", False),
            validation=_validation(model, trainer, data),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"recipe {path} cannot be planned: {error!r}. It must be YAML with model (teacher, budgets), "
            "trainer and data; pretrain_base is an example."
        ) from None
    _check(path, run, attention=model.get("attention", "cores"))
    return run


def _check(path: Path, run: PlannedRun, *, attention: str) -> None:
    problems = []
    if run.size not in SIZES:
        problems.append(f"model.size must be one of {', '.join(SIZES)}; got {run.size!r}.")
    if attention != "cores":
        problems.append(f"model.attention must be cores, the model this plan counts; got {attention!r}.")
    if run.max_steps < 1 and run.max_epochs < 1:
        problems.append("trainer.max_steps or trainer.max_epochs must bound the run; neither does.")
    if not sum(run.budgets.values()) > 0:
        problems.append(f"model.budgets must have a weight above 0; got {run.budgets}.")
    if problems:
        raise ValueError(f"recipe {path} cannot be planned:\n" + "\n".join(f"- {line}" for line in problems))


def _teacher(entry: dict[str, Any]) -> PlannedTeacher:
    kind, options = entry["class_path"].rpartition(".")[2], entry.get("init_args", {})
    if kind == "OfflineTeacher":
        name = options.get("size", "tiny")
        return PlannedTeacher(TINY, True) if name == "tiny" else PlannedTeacher(SIZES[name], is_gated(name))
    known = [part for part in str(options.get("name_or_path", "")).split("-") if part in _DINOV3]
    if kind != "TransformersTeacher" or not known:
        raise ValueError(
            "model.teacher must be a DINOv3 by its Hub name (facebook/dinov3-vitb16-pretrain-lvd1689m; also "
            f"vits16, vits16plus, vitl16) or an OfflineTeacher, to be planned; got {kind} {options}."
        )
    name = _DINOV3[known[0]]
    return PlannedTeacher(SIZES[name], is_gated(name))


def _validation(model: dict[str, Any], trainer: dict[str, Any], data: dict[str, Any]) -> Validation:
    every_epochs = trainer.get("check_val_every_n_epoch", 1)
    callbacks = [entry.get("class_path", "") for entry in trainer.get("callbacks") or []]
    return Validation(
        every_epochs=every_epochs,
        every_steps=trainer.get("val_check_interval") if every_epochs is None else None,
        after_first_epoch=any(name.endswith("ValidateAfterFirstEpoch") for name in callbacks),
        budgets=model.get("val_budgets"),
        batches=data.get("val_batches"),
    )
