"""Curves: a probe's metric against the budget, and FLOPs and latency against resolution and batch size."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
import transformers
from torch import Tensor, nn

from veca.backbones import Names, Numbers, split_names
from veca.figures.inputs import choose_budgets, parse_numbers
from veca.figures.sheet import check_out, save
from veca.flops import attention_flops, meta_student, meta_teacher, student_flops, teacher_flops
from veca.model import SIZES, create_model
from veca.probes.results import BUDGETS, Results, elastic_values, is_share, read_results
from veca.teachers.dinov3 import dinov3_config, is_gated
from veca.utils.chart import Line, Panel, draw_panels
from veca.utils.files import write_text_atomic
from veca.utils.precision import choose_device
from veca.utils.timing import Timing, interleave

CostPart = Literal["attention", "model"]
PEER = "DINOv3"
_SHAPES = {"VECA-S": "v", "VECA-S+": "s", "VECA-B": "D", "VECA-L": "^"}
_GREY = "0.55"
_LOWER_IS_BETTER = ("RMSE", "AbsRel")


class Subject(NamedTuple):
    """What one panel is about."""

    data: str  # plain, as `ade20k`
    quantity: str


PAPER = {
    name: Subject(name, quantity)
    for name, quantity in {"in1k": "top-1", "voc12": "mIoU", "ade20k": "mIoU", "nyuv2": "RMSE"}.items()
}


class CostPlan(NamedTuple):
    """What is measured, and how often."""

    size: str
    part: CostPart
    budgets: list[int]
    repeats: int

    @property
    def depth(self) -> int:
        return (
            SIZES[self.size].depth if self.part == "model" else 1
        )  # one attention costs as much as the next


def elastic(out: Path, *, results: Names = None, relative: bool = False) -> None:
    """A metric against the budget, one panel per dataset, with the paper's curves in grey.

    Args:
        out: Picture to write, .png or .svg.
        results: JSON files of `veca probe`, with commas between; without any, the paper's curves alone.
        relative: Show the share of the full budget's value that is kept, so that other data, where the paper
            has no curve, stands beside all of the paper's curves of the same quantity.
    """
    check_out(out)
    by_subject: dict[Subject, list[Line]] = {}
    for name in split_names(results):
        found = _read(Path(name))
        by_subject.setdefault(_subject(found), []).extend(measured_curves(found, relative=relative))
    panels = []
    for subject in by_subject or PAPER.values():
        unit = " (%)" if is_share(subject.quantity) else " (m)" * (subject.quantity == "RMSE")
        label = f"{subject.quantity}: % of the full budget's" if relative else subject.quantity + unit
        lines = [*by_subject.get(subject, []), *paper_curves(subject, relative=relative)]
        ticks = sorted({x for line in lines for x, _ in line.points})
        panels.append(Panel(subject.data, lines, "budget (active cores)", label, x_ticks=ticks))
    save(draw_panels(panels, title="Elastic budgets", columns=min(4, len(panels))), out)


def paper_curves(subject: Subject, *, relative: bool = False) -> list[Line]:
    """The paper's curves for a dataset of its; for other data and `relative`, base on all of its datasets."""
    lines: list[Line] = []
    for (name, size), values in elastic_values().items():
        data = name.lower()
        kin = relative and subject not in PAPER.values() and size == "VECA-B"
        if PAPER[data] != subject and not (kin and PAPER[data].quantity == subject.quantity):
            continue
        values = _kept(values, subject.quantity) if relative else values
        title = f"paper: {size}, {data}" if kin else f"paper: {size}"
        shape = _SHAPES[size if not kin else list(_SHAPES)[len(lines)]]
        points = list(zip(map(float, BUDGETS), values, strict=True))
        lines.append(Line(title, points, colour=_GREY, dashed=True, marker=shape))
    return lines


def measured_curves(results: Results, *, relative: bool = False) -> list[Line]:
    """A curve per model and resolution; error bars are the standard deviation over seeds."""
    quantity = results.quantities[0]
    scale = 100 if is_share(quantity) else 1
    lines = []
    rows = [row for row in results.rows() if quantity in row.values]
    for (name, side), group in groupby(rows, key=lambda row: (row.name, row.resolution)):
        elastic_rows = {float(row.budget): row for row in group if row.budget is not None}
        if not elastic_rows:
            continue  # a model of fixed compute has no curve
        budgets = sorted(elastic_rows, reverse=True)
        values = [scale * elastic_rows[budget].values[quantity] for budget in budgets]
        errors = [scale * elastic_rows[budget].spread.get(quantity, 0.0) for budget in budgets]
        if relative:
            errors = [100 * error / values[0] for error in errors]
            values = _kept(values, quantity)
        title = "/".join(Path(name).parts[-2:]) + (f", {side} px" if side else "")
        lines.append(Line(title, list(zip(budgets, values, strict=True)), errors))
    return lines


def _kept(values: list[float], quantity: str) -> list[float]:
    """Percent of the first value; of an error, the other way round, so that less is worse for both."""
    first = values[0]
    return [100 * (first / value if quantity in _LOWER_IS_BETTER else value / first) for value in values]


def _read(path: Path) -> Results:
    if not path.is_file():
        raise FileNotFoundError(f"there is no {path}. Give the JSON files that `veca probe` wrote.")
    found = read_results(path)
    if found is None:
        raise ValueError(f"{path} is not a probe's JSON. Give the files that `veca probe` wrote.")
    return found


def _subject(results: Results) -> Subject:
    """`ADE20K:PATH` and `ade20k` are the paper's dataset; a folder goes by its name."""
    name, colon, _ = results.data.partition(":")
    plain = name.lower().replace("-", "").replace("_", "")
    data = plain if colon or plain in PAPER else Path(results.data).name
    return Subject(data, results.quantities[0])


def cost(
    out: Path,
    *,
    size: str = "small",
    part: CostPart = "attention",
    budgets: Numbers = None,
    resolutions: Numbers = None,
    batch_sizes: Numbers = None,
    batch_resolution: int = 512,
    repeats: int = 5,
) -> None:
    """FLOPs and latency against resolution and batch size, as a picture and as JSON beside it.

    Veca stands beside DINOv3 of its size. FLOPs are counted (2 · multiply-adds); latency is measured here and
    now, the candidates taking turns.

    Args:
        out: Picture to write, .png or .svg.
        size: tiny, small, small_plus, base or large.
        part: attention for one layer's projection–attention–projection, model for a whole forward pass.
        budgets: Numbers of active cores; by default 8,16,32,64.
        resolutions: Sides in pixels; by default 256,384,512,768,1024.
        batch_sizes: Images at once; by default 1,2,4,8.
        batch_resolution: Side in pixels where the batch size varies.
        repeats: Timings of each, of which the median counts.
    """
    check_out(out)
    if size not in SIZES:
        raise ValueError(f"size must be one of {', '.join(SIZES)}; got {size!r}.")
    sides = parse_numbers("resolutions", resolutions, default=[256, 384, 512, 768, 1024])
    batches = parse_numbers("batch_sizes", batch_sizes, default=[1, 2, 4, 8])
    student = meta_student(size, {}, teacher_width=SIZES[size].width)
    plan = CostPlan(size, part, choose_budgets(student, budgets), repeats)
    flops = {side: count_flops(plan, resolution=side) for side in sides}
    latency = {side: measure(plan, resolution=side, batch=1) for side in sides}
    throughput = {batch: measure(plan, resolution=batch_resolution, batch=batch) for batch in batches}
    on_gpu = torch.cuda.is_available()
    device = torch.cuda.get_device_name() if on_gpu else f"CPU, threads: {torch.get_num_threads()}"
    body = {
        "format": "veca-cost",
        "version": 1,
        **plan._asdict(),
        "flops": flops,
        "seconds": _readings(latency),
        "seconds_of_batch": _readings(throughput),
        "device": device,
    }
    counted = {
        side: {name: Timing((count,)) for name, count in found.items()} for side, found in flops.items()
    }
    px, each = "resolution (px)", f"latency at {batch_resolution} px"
    panels = [
        Panel("FLOPs of one image", _lines(counted, 1e9), px, "GFLOPs", "xy", sides),
        Panel("latency, batch of 1", _lines(latency, 1e-3), px, "milliseconds", "xy", sides),
        Panel(each, _lines(throughput, 1e-3, per_image=True), "batch size", "ms per image", "x", batches),
    ]
    what = "attention path of one layer" if part == "attention" else "forward pass"
    note = f"Median of {repeats} on {device}."
    figure = draw_panels(panels, title=f"Cost of {size}: {what}", columns=3, note=note)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_text_atomic(out.with_suffix(".json"), json.dumps(body, indent=1) + "\n")
    save(figure, out)


def count_flops(plan: CostPlan, *, resolution: int) -> dict[str, float]:
    """FLOPs of one image, by candidate."""
    size = replace(SIZES[plan.size], depth=plan.depth)
    student = meta_student(plan.size, {"depth": size.depth}, teacher_width=size.width)
    teacher = meta_teacher(size, gated=is_gated(plan.size))
    whole = plan.part == "model"
    student_count: Callable[..., int] = student_flops if whole else attention_flops
    teacher_count: Callable[..., int] = teacher_flops if whole else attention_flops
    counts = {_name(b): float(student_count(student, resolution=resolution, budget=b)) for b in plan.budgets}
    return {**counts, PEER: float(teacher_count(teacher, resolution=resolution))}


@torch.no_grad()
def measure(plan: CostPlan, *, resolution: int, batch: int) -> dict[str, Timing]:
    """Seconds per call, by candidate."""
    device = choose_device()
    student = create_model(plan.size, depth=plan.depth).eval().to(device)
    config = dinov3_config(student.size, gated=is_gated(plan.size))
    teacher: nn.Module = transformers.DINOv3ViTModel(config)
    teacher.eval().to(device)
    images = torch.randn(batch, 3, resolution, resolution, device=device)
    calls = {_name(b): _call(student, plan.part, images, budget=b) for b in plan.budgets}
    calls[PEER] = _call(teacher, plan.part, images)
    return interleave({name: partial(_finish, call) for name, call in calls.items()}, repeats=plan.repeats)


def _call(model: nn.Module, part: CostPart, images: Tensor, **options: int) -> Callable[[], object]:
    """The model, or its first attention with the inputs it gets from these images."""
    if part == "model":
        return partial(model, images, **options)
    path = next(m for name, m in model.named_modules() if name.rpartition(".")[2] in ("attn", "attention"))
    kept: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    hook = path.register_forward_pre_hook(
        lambda _, args, kwargs: kept.append((args, kwargs)), with_kwargs=True
    )
    model(images, **options)
    hook.remove()
    args, kwargs = kept[0]
    return partial(path, *args, **kwargs)


def _finish(call: Callable[[], object]) -> None:
    call()
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _name(budget: int) -> str:
    return f"Veca, {budget} cores"


def _readings(timings: dict[int, dict[str, Timing]]) -> dict[int, dict[str, dict[str, float]]]:
    return {
        at: {name: {"median": one.median, "spread": one.spread} for name, one in found.items()}
        for at, found in timings.items()
    }


def _lines(timings: dict[int, dict[str, Timing]], unit: float, *, per_image: bool = False) -> list[Line]:
    """A line per candidate, with the spread of its timings as error bars."""
    lines = []
    for name in next(iter(timings.values())):
        found = {at: one[name] for at, one in timings.items()}
        points = [(float(at), one.median / unit / (at if per_image else 1)) for at, one in found.items()]
        error = [value * one.spread for (_, value), one in zip(points, found.values(), strict=True)]
        dashed = name == PEER
        lines.append(Line(name, points, error if any(error) else None, dashed=dashed, marker="o"))
    return lines
