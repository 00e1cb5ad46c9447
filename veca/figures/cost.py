"""`veca figures cost`: FLOPs and latency against resolution and batch size, Veca beside DINOv3 of its size.

FLOPs are counted (2 · multiply-adds); latency is measured here and now, the candidates taking turns. The
attention path is one layer's projection–attention–projection, called with the inputs it gets in a forward
pass.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
import transformers
from torch import Tensor, nn

from veca.backbones import Numbers
from veca.figures.inputs import choose_budgets, parse_numbers
from veca.figures.sheet import Curve, Panel, check_out, draw_panels, save
from veca.flops import attention_flops, meta_student, meta_teacher, student_flops, teacher_flops
from veca.model import SIZES, create_model
from veca.teachers.dinov3 import dinov3_config, is_gated
from veca.utils.files import write_text_atomic
from veca.utils.precision import choose_device
from veca.utils.timing import Timing, interleave

Part = Literal["attention", "model"]
PEER = "DINOv3"


class Plan(NamedTuple):
    """What is measured, and how often."""

    size: str
    part: Part
    budgets: list[int]
    repeats: int


def cost(
    out: Path,
    *,
    size: str = "small",
    part: Part = "attention",
    budgets: Numbers = None,
    resolutions: Numbers = None,
    batch_sizes: Numbers = None,
    batch_resolution: int = 512,
    repeats: int = 5,
) -> None:
    """FLOPs and latency against resolution and batch size, as a picture and as JSON beside it.

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
    plan = Plan(size, part, choose_budgets(student, budgets), repeats)
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
    px, x_sides, x_batches = "resolution (px)", list(map(float, sides)), list(map(float, batches))
    each = {at: {n: t.median / at for n, t in found.items()} for at, found in throughput.items()}
    whole = {at: {n: t.median for n, t in found.items()} for at, found in latency.items()}
    panels = [
        Panel("FLOPs of one image", _curves(flops, 1e9), px, "GFLOPs", "xy", x_sides),
        Panel("latency, batch of 1", _curves(whole, 1e-3, latency), px, "milliseconds", "xy", x_sides),
        Panel(
            f"latency at {batch_resolution} px",
            _curves(each, 1e-3, throughput),
            "batch size",
            "ms per image",
            "x",
            x_batches,
        ),
    ]
    what = "attention path of one layer" if part == "attention" else "forward pass"
    note = f"Median of {repeats} on {device}."
    figure = draw_panels(panels, title=f"Cost of {size}: {what}", columns=3, note=note)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_text_atomic(out.with_suffix(".json"), json.dumps(body, indent=1) + "\n")
    save(figure, out)


def count_flops(plan: Plan, *, resolution: int) -> dict[str, float]:
    """FLOPs of one image, by candidate."""
    size = replace(SIZES[plan.size], depth=_depth(plan))
    student = meta_student(plan.size, {"depth": size.depth}, teacher_width=size.width)
    teacher = meta_teacher(size, gated=is_gated(plan.size))
    whole = plan.part == "model"
    student_count: Callable[..., int] = student_flops if whole else attention_flops
    teacher_count: Callable[..., int] = teacher_flops if whole else attention_flops
    counts = {_name(b): float(student_count(student, resolution=resolution, budget=b)) for b in plan.budgets}
    return {**counts, PEER: float(teacher_count(teacher, resolution=resolution))}


@torch.no_grad()
def measure(plan: Plan, *, resolution: int, batch: int) -> dict[str, Timing]:
    """Seconds per call, by candidate."""
    device = choose_device()
    student = create_model(plan.size, depth=_depth(plan)).eval().to(device)
    config = dinov3_config(student.size, gated=is_gated(plan.size))
    teacher: nn.Module = transformers.DINOv3ViTModel(config)
    teacher.eval().to(device)
    images = torch.randn(batch, 3, resolution, resolution, device=device)
    calls: dict[str, Callable[[], object]] = {
        _name(b): _call(student, plan.part, images, budget=b) for b in plan.budgets
    }
    calls[PEER] = _call(teacher, plan.part, images)
    return interleave({name: partial(_finish, call) for name, call in calls.items()}, repeats=plan.repeats)


def _call(model: nn.Module, part: Part, images: Tensor, **options: int) -> Callable[[], object]:
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


def _depth(plan: Plan) -> int:
    return SIZES[plan.size].depth if plan.part == "model" else 1  # one attention costs as much as the next


def _finish(call: Callable[[], object]) -> None:
    with torch.no_grad():
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


def _curves(
    values: dict[int, dict[str, float]], unit: float, timings: dict[int, dict[str, Timing]] | None = None
) -> list[Curve]:
    """A curve per candidate, with the spread of its timings as error bars."""
    curves = []
    for name in next(iter(values.values())):
        y = [found[name] / unit for found in values.values()]
        spreads = [found[name].spread for found in (timings or {}).values()]
        error = [value * spread for value, spread in zip(y, spreads, strict=True)] if timings else None
        curves.append(Curve(name, list(map(float, values)), y, error, dashed=name == PEER))
    return curves
