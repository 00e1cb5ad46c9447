"""A written plan for a full-size run: hours, memory, storage and throughput, with the arithmetic.

FLOPs are counted (`costs.py`, `work.py`), not quoted. The share of a device's peak that a run reaches is
an assumption, and the plan says so: it was not measured on the devices it names.
"""

import math
from pathlib import Path
from typing import NamedTuple

from veca.data.resolutions import PATCH_SIZE
from veca.flops import (
    NUM_TRAIN,
    NUM_VAL,
    PlannedRun,
    Work,
    count_work,
    meta_student,
    meta_teacher,
    read_recipe,
    saved_bytes,
)
from veca.model import Veca
from veca.optim.combined import split_parameters


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
IMAGE_BYTES = 367e9 / (NUM_TRAIN + NUM_VAL)  # all its images take 367 GB
REENCODED_BYTES = 43_600 + 2_048  # mean of 128 photos at short side 288, quality 92; tar headers
REENCODED_CROP = 256  # the largest crop that a short side of 288 serves
Lines = list[str]


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
    print("\n".join(plan_lines(recipe, device=device, devices=devices, utilisation=utilisation)))


def plan_lines(recipe: Path, *, device: str, devices: int | None, utilisation: float) -> Lines:
    """The plan as text, line by line."""
    if device not in DEVICES:
        raise ValueError(f"device must be one of {', '.join(DEVICES)}; got {device!r}.")
    if not 0 < utilisation <= 1:
        raise ValueError(f"utilisation must be above 0 and at most 1; got {utilisation}. Try 0.35.")
    if devices is not None and devices < 1:
        raise ValueError(f"devices must be at least 1; got {devices}.")
    run, gpu = read_recipe(recipe), DEVICES[device]
    student = meta_student(run.size, run.overrides, teacher_width=run.teacher.width)
    work = count_work(run, student, devices=devices or gpu.usual)
    return [
        f"{recipe.name} on {work.devices} × {gpu.name}",
        *_batch_lines(run, work),
        *_flop_lines(run, work),
        *_time_lines(work, gpu, utilisation),
        *([] if run.checkpointing else [_checkpointed_line(work, gpu, utilisation)]),
        *_memory_lines(run, student, work, gpu),
        *_traffic_lines(student, work, work.device_flops / (gpu.flops * utilisation)),
        *_storage_lines(run, student),
    ]


def _batch_lines(run: PlannedRun, work: Work) -> Lines:
    size = max(work.batch, key=lambda size: work.batch[size])
    lines = [
        "",
        "length",
        f"  images per step   {work.devices} devices × {work.batch[size]} × {work.accumulate} accumulated "
        f"= {work.images_per_step:,.0f}",
    ]
    if work.batch != run.resolutions.batch_sizes:
        lines.append(f"                    needs --data.resolutions.batch_size {work.batch[size]}")
    if run.max_steps < 1:
        epoch = work.steps // run.max_epochs
        lines.append(f"  steps per epoch   ⌊{NUM_TRAIN:,} images / {work.images_per_step:,.0f}⌋ = {epoch:,}")
        return [*lines, f"  steps             {run.max_epochs} epochs × {epoch:,} = {work.steps:,}"]
    return [*lines, f"  steps             {work.steps:,}, from the recipe"]


def _flop_lines(run: PlannedRun, work: Work) -> Lines:
    weights = ", ".join(f"{budget}:{weight:g}" for budget, weight in run.budgets.items())
    kind = "3 × student (backward = 2 × forward)"
    if run.checkpointing:
        kind = "4 × student (backward = 2 × forward, and one forward again: activation checkpointing)"
    lines = [
        "",
        "FLOPs (2 per multiply-add; counted on the meta device)",
        f"  budgets           {weights}; the student's forward is the mean with these weights",
        f"  an image costs    {kind} + teacher",
    ]
    lines += [
        f"  {size:4} px           {work.passes} × {work.student[size] / 1e9:.2f} G + "
        f"{work.teacher[size] / 1e9:.2f} G = {work.per_image(size) / 1e9:.2f} G; {share:.1%} of the steps"
        for size, share in work.share.items()
    ]
    training = work.steps * work.step_flops
    return [
        *lines,
        f"  a step            Σ share × images × FLOPs = {work.step_flops / 1e12:.2f} T over all devices",
        f"  … per device      {work.step_flops / 1e12:.2f} T / {work.devices} + Polar Express on the busiest "
        f"{work.polar / 1e12:.3f} T = {work.device_flops / 1e12:.3f} T",
        f"  the run           {work.steps:,} × {work.step_flops / 1e12:.2f} T = {training / 1e18:.2f} E",
        f"  validation        {work.validation / 1e18:.3f} E, {work.validation / training:.1%} on top",
    ]


def _time_lines(work: Work, gpu: Device, utilisation: float) -> Lines:
    rate = gpu.flops * utilisation
    step, hours = work.device_flops / rate, run_hours(work, rate)
    validation, images = hours - work.steps * step / 3600, work.images_per_step / step
    return [
        "",
        f"time (ASSUMED, not measured: training reaches {utilisation:.0%} of the peak)",
        f"  rate              {gpu.flops / 1e12:g} TFLOP/s dense bf16 × {utilisation:g} = "
        f"{rate / 1e12:.1f} TFLOP/s per device",
        f"  a step            {work.device_flops / 1e12:.3f} T / {rate / 1e12:.1f} T/s "
        f"= {1000 * step:.2f} ms",
        f"  throughput        {work.images_per_step:,.0f} / {1000 * step:.2f} ms = {images:,.0f} images/s, "
        f"{images / work.devices:,.0f} per device",
        f"  wall-clock        {work.steps:,} × {1000 * step:.2f} ms + validation {validation:.1f} h "
        f"= {hours:,.1f} h ({hours / 24:.1f} days)",
        f"  device hours      {hours:,.1f} h × {work.devices} = {hours * work.devices:,.0f}",
        f"  to read           {images:,.0f} images/s × {IMAGE_BYTES / 1e3:.0f} kB = "
        f"{images * IMAGE_BYTES / 1e6:,.0f} MB/s",
        "  cross-check       the paper names 6 × L40S and no wall-clock: there is none to compare with",
    ]


def _checkpointed_line(work: Work, gpu: Device, utilisation: float) -> str:
    hours = run_hours(work._replace(passes=work.passes + 1), gpu.flops * utilisation)
    return f"  … checkpointed    with activation checkpointing, {work.passes + 1} × student: {hours:,.1f} h"


def run_hours(work: Work, rate: float) -> float:
    """Hours of training and validation at `rate` FLOP/s per device."""
    return (work.steps * work.device_flops + work.validation / work.devices) / rate / 3600


def _memory_lines(run: PlannedRun, student: Veca, work: Work, gpu: Device) -> Lines:
    weights, states = _count(student), state_bytes(student)
    size = max(work.batch)
    count, width = work.batch[size], run.teacher.width
    teacher = sum(p.numel() for p in meta_teacher(run.teacher, gated=run.gated).parameters())
    targets = 4 * count * ((size // PATCH_SIZE) ** 2 + 1) * width
    fixed = 8 * weights + states + 4 * teacher + targets
    whole = saved_bytes(student.size, resolution=size, checkpointing=False)
    again = saved_bytes(student.size, resolution=size, checkpointing=True)
    block = whole.per_image // student.size.depth
    plain = fixed + whole.fixed + count * whole.per_image
    checkpointed = fixed + again.fixed + count * (again.per_image + block)
    return [
        "",
        f"memory per device, at {count} images of {size} px and the full budget",
        f"  weights, grads    {weights:,} × (4 + 4) B = {_gb(8 * weights)}",
        f"  optimizer         NorMuon 4 B + one 4 B per row, AdamW 8 B: {_gb(states)}",
        f"  teacher, targets  {teacher:,} × 4 B + float32 targets {_gb(targets)} "
        f"= {_gb(4 * teacher + targets)}",
        f"  activations       ESTIMATED from the tensors that autograd saves under bf16 autocast: "
        f"{whole.per_image / 1e6:.0f} MB an image,",
        f"                    {again.per_image / 1e6:.0f} MB with activation checkpointing + one block "
        f"{block / 1e6:.0f} MB",
        f"  in all            {_gb(plain)}: {_fits(plain, gpu)}",
        f"  … checkpointed    {_gb(checkpointed)}: {_fits(checkpointed, gpu)}"
        + ("" if run.checkpointing else " (--model.activation_checkpointing true)"),
    ]


def _traffic_lines(student: Veca, work: Work, step: float) -> Lines:
    if work.devices == 1:
        return []
    matrices = sum(matrix.numel() for _, matrix in split_parameters(student).matrices)
    sent = 2 * (work.devices - 1) / work.devices * 4 * _count(student) + 2 * matrices
    return [
        "",
        "traffic (not part of the time above)",
        f"  per step, device  gradients 2·(n−1)/n × 4 B + directions of NorMuon 2 B = {_gb(sent)}; "
        f"a tenth of a step at {sent / (0.1 * step) / 1e9:.1f} GB/s",
    ]


def _storage_lines(run: PlannedRun, student: Veca) -> Lines:
    images, largest = NUM_TRAIN + NUM_VAL, max(run.resolutions.resolutions)
    small = (
        f"{images * REENCODED_BYTES / 1e9:.0f} GB at short side 288, {REENCODED_BYTES / 1e3:.0f} kB an image"
    )
    if largest > REENCODED_CROP:
        small = f"no: crops of {largest} px want a short side of {math.ceil(1.125 * largest)} px"
    file = 4 * _count(student) + state_bytes(student)
    return [
        "",
        "storage",
        f"  shards, verbatim  {images:,} images × {IMAGE_BYTES / 1e3:.0f} kB "
        f"= {images * IMAGE_BYTES / 1e9:.0f} GB",
        f"  … re-encoded      {small}",
        f"  checkpoints       last two and best: 3 × (weights + optimizer {_gb(file)}) = {_gb(3 * file)}",
        *(_cache_line(size, width=run.teacher.width) for size in run.resolutions.resolutions),
    ]


def _cache_line(resolution: int, *, width: int) -> str:
    tokens = (resolution // PATCH_SIZE) ** 2 + 1
    each = tokens * width * 2
    return (
        f"  cached targets    optional, {resolution} px: {tokens} tokens × {width} × 2 B "
        f"= {each / 1e3:.0f} kB; × {NUM_TRAIN:,} = {each * NUM_TRAIN / 1e12:.2f} TB a view"
    )


def state_bytes(student: Veca) -> int:
    """Optimizer state in float32: NorMuon's momentum and row moment, AdamW's two moments."""
    split = split_parameters(student)
    matrices = sum(matrix.numel() + matrix.shape[0] for _, matrix in split.matrices)
    return 4 * matrices + 8 * sum(parameter.numel() for _, parameter in split.rest)


def _count(student: Veca) -> int:
    return sum(parameter.numel() for parameter in student.parameters())


def _gb(amount: float) -> str:
    return f"{amount / 1e9:.2f} GB"


def _fits(amount: float, gpu: Device) -> str:
    return (
        f"{'fits' if amount < 0.9 * gpu.memory else 'does NOT fit'} in {gpu.memory / 1e9:.0f} GB less a tenth"
    )
