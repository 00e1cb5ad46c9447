"""`veca plan`: hours, memory, storage and throughput of a full-size run, with the arithmetic.

FLOPs are counted, not quoted; of a recipe the YAML is read, and nothing of it is built. The share of a
device's peak that a run reaches is an assumption, and the plan says so.
"""

from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from veca.data.resolutions import PATCH_SIZE, Phase, ResolutionSchedule
from veca.flops import (
    forward_flops,
    mean_over_budgets,
    meta_student,
    meta_teacher,
    polar_flops_per_rank,
    saved_bytes,
)
from veca.model import SIZES, Size, Veca
from veca.optim.combined import split_parameters
from veca.teachers.dinov3 import TINY, is_gated
from veca.utils.recipes import load_recipe


class Device(NamedTuple):
    """A GPU, as its data sheet has it."""

    name: str
    flops: float  # dense bf16 FLOP/s
    memory: float  # bytes
    usual: int  # how many a full-size run takes


DEVICES = {
    "l40s": Device("L40S", 362.05e12, 48e9, usual=6),
    "h100": Device("H100 SXM", 989e12, 80e9, usual=64),
}
NUM_TRAIN, NUM_VAL = 1_742_289, 80_000  # Objects365 v2 on disk
_DINOV3 = {"vits16": "small", "vits16plus": "small_plus", "vitb16": "base", "vitl16": "large"}


class PlannedRun(NamedTuple):
    """One recipe, as far as its cost goes."""

    size: str
    overrides: dict[str, Any]
    teacher: Size
    gated: bool  # whether the teacher's feed-forward is
    budgets: dict[int, float]
    resolutions: ResolutionSchedule
    global_batch_size: int | None
    max_epochs: int
    max_steps: int
    checkpointing: bool
    val_every_epochs: int | None
    val_every_steps: int | None
    val_after_first_epoch: bool
    val_budgets: list[int] | None  # None: the full budget
    val_batches: int | dict[int, int] | None  # per resolution and rank; None: all


class Work(NamedTuple):
    """FLOPs and sizes of a run on a number of devices; resolutions are the keys."""

    steps: int
    accumulate: int
    batch: dict[int, int]  # images per device and micro-batch
    share: dict[int, float]  # of the steps
    student: dict[int, float]  # FLOPs of a forward pass, mean over budgets
    teacher: dict[int, int]
    passes: int  # forward passes that a training step costs
    polar: int  # per step, on the busiest device
    validation: int  # of the whole run
    devices: int

    @property
    def images_per_step(self) -> float:
        return sum(share * self._images(size) for size, share in self.share.items())

    @property
    def step_flops(self) -> float:
        """Student and teacher over all devices."""
        return sum(share * self._images(size) * self.per_image(size) for size, share in self.share.items())

    @property
    def device_flops(self) -> float:
        """One optimizer step on the busiest device."""
        return self.step_flops / self.devices + self.polar

    def per_image(self, resolution: int) -> float:
        return self.passes * self.student[resolution] + self.teacher[resolution]

    def hours(self, rate: float) -> float:
        """Training and validation at `rate` FLOP/s per device."""
        return (self.steps * self.device_flops + self.validation / self.devices) / rate / 3600

    def _images(self, resolution: int) -> int:
        return self.batch[resolution] * self.accumulate * self.devices


def plan(
    recipe: Path, *, device: str = "l40s", devices: int | None = None, utilisation: float = 0.35
) -> None:
    """Hours, memory, storage and throughput of a recipe's run on Objects365.

    Args:
        recipe: a recipe's path or name, e.g. pretrain_base.
        device: l40s or h100.
        devices: how many of them; 6 × L40S and 64 × H100 by default.
        utilisation: share of the peak FLOP/s that training is assumed to reach.
    """
    if device not in DEVICES:
        raise ValueError(f"device must be one of {', '.join(DEVICES)}; got {device!r}.")
    if not 0 < utilisation <= 1:
        raise ValueError(f"utilisation must be above 0 and at most 1; got {utilisation}. Try 0.35.")
    if devices is not None and devices < 1:
        raise ValueError(f"devices must be at least 1; got {devices}.")
    run, gpu = read_recipe(recipe), DEVICES[device]
    student = meta_student(run.size, run.overrides, teacher_width=run.teacher.width)
    work = count_work(run, student, devices=devices or gpu.usual)
    tokens = {size: (size // PATCH_SIZE) ** 2 + 1 for size in run.resolutions.resolutions}  # with CLS
    largest = max(tokens)
    count = work.batch[largest]
    weights, states = sum(p.numel() for p in student.parameters()), state_bytes(student)
    teacher = sum(p.numel() for p in meta_teacher(run.teacher, gated=run.gated).parameters())
    targets = 4 * count * tokens[largest] * run.teacher.width
    whole, again = (saved_bytes(student.size, resolution=largest, checkpointing=c) for c in (False, True))
    matrices = sum(matrix.numel() for _, matrix in split_parameters(student).matrices)
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["f"] = format
    text = environment.get_template("plan.txt.j2").render(
        name=recipe.name,
        run=run,
        work=work,
        checkpointed=work._replace(passes=4),
        gpu=gpu,
        utilisation=utilisation,
        rate=gpu.flops * utilisation,
        largest=largest,
        count=count,
        weights=weights,
        states=states,
        teacher=teacher,
        targets=targets,
        whole=whole,
        again=again,
        depth=student.size.depth,
        sent=2 * (work.devices - 1) / work.devices * 4 * weights + 2 * matrices,
        tokens=tokens,
        num_train=NUM_TRAIN,
        num_images=NUM_TRAIN + NUM_VAL,
    )
    print(text, end="")


def read_recipe(path: Path) -> PlannedRun:
    """The costly part of a recipe, by path or name; a ValueError names the key that is missing or unknown."""
    recipe = load_recipe(str(path))
    try:
        model, trainer, data = recipe["model"], recipe["trainer"], recipe["data"]
        schedule = dict(data.get("resolutions", {}))
        if "phases" in schedule:
            schedule["phases"] = [Phase(**phase) for phase in schedule["phases"]]
        every_epochs = trainer.get("check_val_every_n_epoch", 1)
        callbacks = [entry.get("class_path", "") for entry in trainer.get("callbacks") or []]
        teacher, gated = _teacher(model.get("teacher"))
        run = PlannedRun(
            size=model.get("size", "small"),
            overrides=model.get("size_overrides") or {},
            teacher=teacher,
            gated=gated,
            budgets=model["budgets"],
            resolutions=ResolutionSchedule(**schedule),
            global_batch_size=model.get("global_batch_size"),
            max_epochs=trainer.get("max_epochs") or -1,
            max_steps=trainer.get("max_steps", -1),
            checkpointing=model.get("activation_checkpointing", False),
            val_every_epochs=every_epochs,
            val_every_steps=trainer.get("val_check_interval") if every_epochs is None else None,
            val_after_first_epoch=any(name.endswith("ValidateAfterFirstEpoch") for name in callbacks),
            val_budgets=model.get("val_budgets"),
            val_batches=data.get("val_batches"),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"recipe {path} cannot be planned: {error!r}. It must be YAML with model (teacher, budgets), "
            "trainer and data; pretrain_base is an example."
        ) from None
    attention, problems = model.get("attention", "cores"), []
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
    return run


def _teacher(entry: dict[str, Any] | None) -> tuple[Size, bool]:
    entry = entry or {"class_path": "none"}  # of a run from stored targets
    kind, options = entry["class_path"].rpartition(".")[2], entry.get("init_args", {})
    known = [part for part in str(options.get("name_or_path", "")).split("-") if part in _DINOV3]
    if kind == "OfflineTeacher":
        name = options.get("size", "tiny")
    elif kind == "TransformersTeacher" and known:
        name = _DINOV3[known[0]]
    else:
        raise ValueError(
            "model.teacher must be a DINOv3 by its Hub name (facebook/dinov3-vitb16-pretrain-lvd1689m; also "
            f"vits16, vits16plus, vitl16) or an OfflineTeacher, to be planned; got {kind} {options}."
        )
    return (TINY, True) if name == "tiny" else (SIZES[name], is_gated(name))


def count_work(run: PlannedRun, student: Veca, *, devices: int) -> Work:
    """Everything that the hours follow from."""
    accumulate, batch = divide_batch(run, devices)
    epoch = NUM_TRAIN // (max(batch.values()) * accumulate * devices)
    steps = run.max_steps if run.max_steps > 0 else run.max_epochs * epoch
    sizes = run.resolutions.resolutions
    flops = {s: {b: forward_flops(student, resolution=s, budget=b) for b in student.budgets} for s in sizes}
    network = meta_teacher(run.teacher, gated=run.gated)
    teacher = {size: forward_flops(network, resolution=size) for size in sizes}
    validation = 0  # a teacher pass and every validated budget
    for size, count in batch.items():
        limit = run.val_batches.get(size) if isinstance(run.val_batches, dict) else run.val_batches
        seen = min(NUM_VAL, limit * count * devices) if limit else NUM_VAL
        budgets = run.val_budgets or [max(student.budgets)]
        validation += seen * (teacher[size] + sum(flops[size][budget] for budget in budgets))
    every = run.val_every_steps or (run.val_every_epochs or 1) * epoch
    early = run.val_after_first_epoch and run.val_every_epochs != 1
    return Work(
        steps=steps,
        accumulate=accumulate,
        batch=batch,
        share=resolution_shares(run, steps),
        student={size: mean_over_budgets(flops[size], run.budgets) for size in sizes},
        teacher=teacher,
        passes=4 if run.checkpointing else 3,
        polar=polar_flops_per_rank(student, num_ranks=devices),
        validation=validation * (steps // max(1, every) + early),
        devices=devices,
    )


def divide_batch(run: PlannedRun, devices: int) -> tuple[int, dict[int, int]]:
    """Accumulation, and images per device and micro-batch, that keep the recipe's images per step."""
    most = run.resolutions.batch_sizes
    if run.global_batch_size is None:
        return 1, most
    if run.global_batch_size % devices:
        near = [n for n in range(1, run.global_batch_size + 1) if run.global_batch_size % n == 0]
        raise ValueError(
            f"devices must divide model.global_batch_size = {run.global_batch_size}; got {devices}. "
            f"Try {min(near, key=lambda n: abs(n - devices))}."
        )
    share = run.global_batch_size // devices
    accumulate = next(n for n in range(1, share + 1) if share % n == 0 and share // n <= max(most.values()))
    return accumulate, {size: min(count, share // accumulate) for size, count in most.items()}


def resolution_shares(run: PlannedRun, steps: int) -> dict[int, float]:
    """Share of the run's steps at each resolution: phases weighed by their length."""
    phases = run.resolutions.phases
    ends = [*(phase.start_step for phase in phases[1:]), steps]
    share = dict.fromkeys(run.resolutions.resolutions, 0.0)
    for phase, end in zip(phases, ends, strict=True):
        length = max(0, min(end, steps) - phase.start_step)
        for size, probability in phase.probabilities.items():
            share[size] += probability * length / steps
    return share


def state_bytes(student: Veca) -> int:
    """Optimizer state in float32: NorMuon's momentum and row moment, AdamW's two moments."""
    split = split_parameters(student)
    matrices = sum(matrix.numel() + matrix.shape[0] for _, matrix in split.matrices)
    return 4 * matrices + 8 * sum(parameter.numel() for _, parameter in split.rest)
