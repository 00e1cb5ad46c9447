"""`veca plan`: hours, memory, storage and throughput of a full-size run, with the arithmetic.

FLOPs are counted, not quoted; of a recipe the YAML is read, and nothing of it is built. The share of a
device's peak that a run reaches is an assumption, and the plan says so.
"""

import math
from pathlib import Path
from typing import Any, NamedTuple

from veca.data.resolutions import PATCH_SIZE, Phase, ResolutionSchedule
from veca.flops import (
    mean_over_budgets,
    meta_student,
    meta_teacher,
    polar_flops_per_rank,
    saved_bytes,
    student_flops,
    teacher_flops,
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
NUM_IMAGES = NUM_TRAIN + NUM_VAL
IMAGE_BYTES = 367e9 / NUM_IMAGES  # all of them take 367 GB
REENCODED_BYTES = 43_600 + 2_048  # mean of 128 photos at short side 288, quality 92; tar headers
REENCODED_CROP = 256  # the largest crop that a short side of 288 serves
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
    rate = gpu.flops * utilisation
    print(f"{recipe.name} on {work.devices} × {gpu.name}")
    print(f"\n{_length(run, work)}\n\n{_flops(run, work)}\n\n{_time(run, work, gpu, utilisation)}")
    print(f"\n{_memory(run, student, work, gpu)}\n")
    if work.devices > 1:
        print(f"{_traffic(student, work, rate)}\n")
    print(_storage(run, student))


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
    flops = {s: {b: student_flops(student, resolution=s, budget=b) for b in student.budgets} for s in sizes}
    network = meta_teacher(run.teacher, gated=run.gated)
    teacher = {size: teacher_flops(network, resolution=size) for size in sizes}
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


def _length(run: PlannedRun, work: Work) -> str:
    size, images = max(work.batch, key=lambda size: work.batch[size]), f"{work.images_per_step:,.0f}"
    count, steps = work.batch[size], f"{work.steps:,}, from the recipe"
    text = f"""length
  images per step   {work.devices} devices × {count} × {work.accumulate} accumulated = {images}"""
    if work.batch != run.resolutions.batch_sizes:
        text += f"\n{'':20}needs --data.resolutions.batch_size {count}"
    if run.max_steps < 1:
        epoch = work.steps // run.max_epochs
        text += f"\n  steps per epoch   ⌊{NUM_TRAIN:,} images / {images}⌋ = {epoch:,}"
        steps = f"{run.max_epochs} epochs × {epoch:,} = {work.steps:,}"
    return f"{text}\n  steps             {steps}"


def _flops(run: PlannedRun, work: Work) -> str:
    weights = ", ".join(f"{budget}:{weight:g}" for budget, weight in run.budgets.items())
    again = ", and one forward again: activation checkpointing" if run.checkpointing else ""
    step, training = f"{work.step_flops / 1e12:.2f} T", work.steps * work.step_flops
    polar, device = f"{work.polar / 1e12:.3f} T", f"{work.device_flops / 1e12:.3f} T"
    images = "".join(
        f"  {size:4} px           {work.passes} × {work.student[size] / 1e9:.2f} G + "
        f"{work.teacher[size] / 1e9:.2f} G = {work.per_image(size) / 1e9:.2f} G; {share:.1%} of the steps\n"
        for size, share in work.share.items()
    )
    return f"""FLOPs (2 per multiply-add; counted on the meta device)
  budgets           {weights}; the student's forward is the mean with these weights
  an image costs    {work.passes} × student (backward = 2 × forward{again}) + teacher
{images}  a step            Σ share × images × FLOPs = {step} over all devices
  … per device      {step} / {work.devices} + Polar Express on the busiest {polar} = {device}
  the run           {work.steps:,} × {step} = {training / 1e18:.2f} E
  validation        {work.validation / 1e18:.3f} E, {work.validation / training:.1%} on top"""


def _time(run: PlannedRun, work: Work, gpu: Device, utilisation: float) -> str:
    rate = gpu.flops * utilisation
    step, hours = work.device_flops / rate, work.hours(rate)
    validation, speed = hours - work.steps * step / 3600, work.images_per_step / step
    each, days = speed / work.devices, f"{hours / 24:.1f} days"
    peak, reached, ms = f"{gpu.flops / 1e12:g}", f"{rate / 1e12:.1f}", f"{1000 * step:.2f} ms"
    text = f"""time (ASSUMED, not measured: training reaches {utilisation:.0%} of the peak)
  rate              {peak} TFLOP/s dense bf16 × {utilisation:g} = {reached} TFLOP/s per device
  a step            {work.device_flops / 1e12:.3f} T / {reached} T/s = {ms}
  throughput        {work.images_per_step:,.0f} / {ms} = {speed:,.0f} images/s, {each:,.0f} per device
  wall-clock        {work.steps:,} × {ms} + validation {validation:.1f} h = {hours:,.1f} h ({days})
  device hours      {hours:,.1f} h × {work.devices} = {hours * work.devices:,.0f}
  to read           {speed:,.0f} images/s × {IMAGE_BYTES / 1e3:.0f} kB = {_mb(speed * IMAGE_BYTES)}/s
  cross-check       the paper names 6 × L40S and no wall-clock: there is none to compare with"""
    if not run.checkpointing:
        again = work._replace(passes=work.passes + 1)
        text += f"\n  … checkpointed    with activation checkpointing, {again.passes} × student: "
        text += f"{again.hours(rate):,.1f} h"
    return text


def _memory(run: PlannedRun, student: Veca, work: Work, gpu: Device) -> str:
    weights, states, size = _count(student), state_bytes(student), max(work.batch)
    count = work.batch[size]
    teacher = sum(p.numel() for p in meta_teacher(run.teacher, gated=run.gated).parameters())
    targets = 4 * count * _num_tokens(size) * run.teacher.width
    fixed = 8 * weights + states + 4 * teacher + targets
    whole, again = (saved_bytes(student.size, resolution=size, checkpointing=c) for c in (False, True))
    block = whole.per_image // student.size.depth
    image = _mb(whole.per_image)
    option = "" if run.checkpointing else " (--model.activation_checkpointing true)"

    def in_all(amount: int) -> str:
        fits = "fits" if amount < 0.9 * gpu.memory else "does NOT fit"
        return f"{_gb(amount)}: {fits} in {gpu.memory / 1e9:.0f} GB less a tenth"

    return f"""memory per device, at {count} images of {size} px and the full budget
  weights, grads    {weights:,} × (4 + 4) B = {_gb(8 * weights)}
  optimizer         NorMuon 4 B + one 4 B per row, AdamW 8 B: {_gb(states)}
  teacher, targets  {teacher:,} × 4 B + float32 targets {_gb(targets)} = {_gb(4 * teacher + targets)}
  activations       ESTIMATED from the tensors that autograd saves under bf16 autocast: {image} an image,
                    {_mb(again.per_image)} with activation checkpointing + one block {_mb(block)}
  in all            {in_all(fixed + whole.fixed + count * whole.per_image)}
  … checkpointed    {in_all(fixed + again.fixed + count * (again.per_image + block))}{option}"""


def _traffic(student: Veca, work: Work, rate: float) -> str:
    matrices = sum(matrix.numel() for _, matrix in split_parameters(student).matrices)
    sent = 2 * (work.devices - 1) / work.devices * 4 * _count(student) + 2 * matrices
    needed = f"a tenth of a step at {sent / (0.1 * work.device_flops / rate) / 1e9:.1f} GB/s"
    return f"""traffic (not part of the time above)
  per step, device  gradients 2·(n−1)/n × 4 B + directions of NorMuon 2 B = {_gb(sent)}; {needed}"""


def _storage(run: PlannedRun, student: Veca) -> str:
    largest, file = max(run.resolutions.resolutions), 4 * _count(student) + state_bytes(student)
    size, each = f"{NUM_IMAGES * REENCODED_BYTES / 1e9:.0f} GB", f"{REENCODED_BYTES / 1e3:.0f} kB"
    small = f"{size} at short side 288, {each} an image"
    if largest > REENCODED_CROP:
        small = f"no: crops of {largest} px want a short side of {math.ceil(1.125 * largest)} px"
    text = f"""storage
  shards, verbatim  {NUM_IMAGES:,} images × {IMAGE_BYTES / 1e3:.0f} kB = 367 GB
  … re-encoded      {small}
  checkpoints       last two and best: 3 × (weights + optimizer {_gb(file)}) = {_gb(3 * file)}"""
    for resolution in run.resolutions.resolutions:
        tokens, width = _num_tokens(resolution), run.teacher.width
        view = 2 * tokens * width
        text += f"\n  cached targets    optional, {resolution} px: {tokens} tokens × {width} × 2 B = "
        text += f"{view / 1e3:.0f} kB; × {NUM_TRAIN:,} = {view * NUM_TRAIN / 1e12:.2f} TB a view"
    return text


def state_bytes(student: Veca) -> int:
    """Optimizer state in float32: NorMuon's momentum and row moment, AdamW's two moments."""
    split = split_parameters(student)
    matrices = sum(matrix.numel() + matrix.shape[0] for _, matrix in split.matrices)
    return 4 * matrices + 8 * sum(parameter.numel() for _, parameter in split.rest)


def _count(student: Veca) -> int:
    return sum(parameter.numel() for parameter in student.parameters())


def _num_tokens(resolution: int) -> int:
    """Of the teacher's targets: patches and CLS."""
    return (resolution // PATCH_SIZE) ** 2 + 1


def _gb(amount: float) -> str:
    return f"{amount / 1e9:.2f} GB"


def _mb(amount: float) -> str:
    return f"{amount / 1e6:,.0f} MB"
