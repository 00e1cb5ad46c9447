"""The model beside its peers: one layer's attention path, and the whole small model.

`regions` times reading parts of an image's patches from its memory.

`attention` times one projection–attention–projection path beside that of the DINOv3 of the same size
(transformers' layer with its SDPA kernel, on its own N + 5 tokens), called with the inputs it gets in a
forward pass.

`model` times forward pass and training step beside DINOv3-S and a straightforward VECA. Every resolution has
a pass of about as many patches, as a training step has: 16 images of 256 px, or one of 1024 px. As many
float32 products of 2048³ as make up the step's FLOPs take turns with the training steps, so that "share of
the matrix rate" means the same on every machine.

Shapes: B batch, C active cores, N patches, T = C + N tokens, D width, H heads, h head width.
"""

import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from veca.bench.harness import Case, Goal, Ratio, Steps, benchmark
from veca.data.resolutions import PATCH_SIZE
from veca.flops import attention_flops, meta_student, meta_teacher
from veca.model import Veca, create_model
from veca.model.attention import CoreAttention
from veca.model.block import Block
from veca.model.regions import cut, grid_corners
from veca.model.rope import frequencies, patch_coordinates
from veca.model.sizes import Size, resolve_size
from veca.teachers.dinov3 import dinov3_config
from veca.types import Features
from veca.utils.process import keep_memory

RESOLUTIONS = (256, 512, 768, 1024)
TURN = 0.1  # seconds; an attention path at 256 px takes a few milliseconds
SPEED_UP_AT_1024 = {"small": 4.3, "base": 2.9, "large": 2.5}  # goals, of a batch of 1 with 64 cores
SIZE = "small"
BUDGET = 64
MATRIX = 2048
PEAKS = 3
CANDIDATES = ("veca", "straightforward", "dinov3")

Run = Callable[[Tensor], Tensor]


@benchmark
def attention(
    *,
    sizes: Sequence[str] = ("small", "base", "large"),
    resolutions: Sequence[int] = RESOLUTIONS,
    budgets: Sequence[int] = (8, 64),
    batches: Sequence[int] = (1, 2, 4, 8),
    repeats: int = 7,
) -> Steps:
    """Time one layer's attention path of VECA and DINOv3, over sizes, resolutions, budgets and batches.

    Args:
        sizes: Sizes of the model, as in small,base.
        resolutions: Sides of the image in pixels, as in 256,512.
        budgets: Active cores.
        batches: Batch sizes, timed for the first size at the smallest resolution.
        repeats: Turns that each candidate takes.
    """
    places = [(size, side, 1) for size in sizes for side in resolutions]
    places += [(sizes[0], min(resolutions), batch) for batch in batches[1:]]
    for name, side, batch in places:
        size, key = replace(resolve_size(name, {}), depth=1), f"{name}/r{side}/batch{batch}"
        student = meta_student(name, {"depth": 1}, teacher_width=size.width)
        theirs = attention_flops(meta_teacher(size, gated=False), resolution=side)
        for budget in budgets:
            flops = attention_flops(student, resolution=side, budget=budget)
            print(f"{key}/b{budget}: {batch * flops / 1e9:.2f} GFLOPs, DINOv3 {batch * theirs / 1e9:.2f}")
            yield {f"{key}/b{budget}/flop_ratio": theirs / flops}
        images, layer = torch.randn(batch, 3, side, side), Veca(**size.as_dict())
        paths = {f"b{budget}": _attention_path(layer, images, budget=budget) for budget in budgets}
        yield Case(
            candidates=paths | {"dinov3": _attention_path(_dinov3(size), images)},
            ratios={
                f"{key}/b{budget}/speed_up": Ratio("dinov3", f"b{budget}", _goal(name, side, batch, budget))
                for budget in budgets
            },
            repeats=repeats,
            warmup=2,
            turn=TURN,
        )


def _goal(name: str, resolution: int, batch: int, budget: int) -> Goal | None:
    if (batch, budget) != (1, 64) or name not in SPEED_UP_AT_1024:
        return None
    return {1024: Goal(SPEED_UP_AT_1024[name]), 256: Goal(0.85)}.get(resolution)


def _attention_path(network: nn.Module, images: Tensor, **options: int) -> Callable[[], object]:
    """The first attention of a network, with the inputs it gets from these images."""
    path = next(m for name, m in network.named_modules() if name.rpartition(".")[2] in ("attn", "attention"))
    kept: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    hook = path.register_forward_pre_hook(
        lambda _, args, kwargs: kept.append((args, kwargs)), with_kwargs=True
    )
    with torch.inference_mode():
        network.eval()(images, **options)
    hook.remove()
    args, kwargs = kept[0]
    return torch.inference_mode()(partial(path, *args, **kwargs))


def _dinov3(size: Size) -> nn.Module:
    network: nn.Module = transformers.DINOv3ViTModel(dinov3_config(size, gated=False))
    return network


@benchmark
def model(
    *,
    resolutions: Sequence[int] = RESOLUTIONS,
    budget: int = BUDGET,
    patches: int = 4096,
    repeats: int = 5,
    memory: bool = True,
) -> Steps:
    """Time the small model, forward and training step, against its peers.

    Args:
        resolutions: Sides of the image in pixels, as in 256,512.
        budget: Active cores.
        patches: About how many patches a pass has; at least one image.
        repeats: Turns that each candidate takes.
        memory: Also measure peak memory, each candidate in a process of its own.
    """
    runs = {name: candidate(name, budget=budget) for name in CANDIDATES}
    for side in resolutions:
        images = _images(side, patches)
        for kind in STEPS:
            yield _step_case(runs, images, kind, budget=budget, repeats=repeats)
        if memory:
            yield memory_case(resolution=side, batch=len(images), budget=budget)
    if {512, 1024} <= set(resolutions):
        for kind in STEPS:
            yield growth_case(runs["veca"], kind, patches=patches, repeats=repeats)


@benchmark
def regions(*, size: str = SIZE, resolution: int = 768, budget: int = BUDGET, repeats: int = 5) -> Steps:
    """Time reading parts of one image's patches from its memory, beside its forward pass.

    Args:
        size: Size of the model.
        resolution: Side of the image in pixels.
        budget: Active cores.
        repeats: Turns that each candidate takes.
    """
    network, images = create_model(size).eval(), torch.randn(1, 3, resolution, resolution)
    cells = cut(images, grid_corners((resolution, resolution)))
    count = cells.crops.shape[1]
    with torch.inference_mode():
        memory = network.remember(images, budget)

    def read(share: float) -> Callable[[], object]:
        number = max(1, round(share * count))
        part = cells.crops[:, :number].contiguous(), cells.places[:, :number]
        return torch.inference_mode()(partial(network.read, memory, *part))

    shares = {"all": 1.0, "half": 0.5, "tenth": 0.1, "hundredth": 0.01}
    yield Case(
        candidates={
            "forward": torch.inference_mode()(partial(network, images, budget=budget)),
            "remember": torch.inference_mode()(partial(network.remember, images, budget)),
            **{name: read(share) for name, share in shares.items()},
        },
        ratios={
            "remember_over_forward": Ratio("remember", "forward", Goal(1.0, at_most=True)),
            "read_over_forward": Ratio("all", "forward", Goal(1.0, at_most=True)),
            # Of a full read: a tenth ± 30 %, and a hundredth with what every read costs, at most a tenth.
            "tenth_over_read": Ratio("tenth", "all", Goal(0.13, at_most=True)),
            "hundredth_over_read": Ratio("hundredth", "all", Goal(0.11, at_most=True)),
            "half_over_read": Ratio("half", "all"),
        },
        repeats=repeats,
    )


def candidate(name: str, *, budget: int = BUDGET, seed: int = 0) -> Run:
    """Images → one tensor of features that a backward pass can start from."""
    torch.manual_seed(seed)
    if name == "dinov3":
        network = _dinov3(resolve_size(SIZE, {})).train()
        return lambda images: network(images).last_hidden_state
    student = create_model(SIZE)
    student.augment_rope = False
    if name == "veca":
        return lambda images: student(images, budget=budget).patches
    return lambda images: straightforward(student, images, budget).patches


def train_flops(resolution: int, budget: int = BUDGET) -> int:
    """FLOPs of one image's forward and backward pass, counted by torch on the meta device."""
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        create_model(SIZE)(torch.empty(1, 3, resolution, resolution), budget=budget).patches.sum().backward()
    return int(counter.get_total_flops())


def _images(side: int, patches: int) -> Tensor:
    return torch.randn(max(1, round(patches / (side // PATCH_SIZE) ** 2)), 3, side, side)


def _forward(run: Run, images: Tensor) -> None:
    with torch.inference_mode():
        run(images)


def _train(run: Run, images: Tensor) -> None:
    run(images).square().mean().backward()


STEPS = {"forward": _forward, "train": _train}


def _step_case(runs: dict[str, Run], images: Tensor, kind: str, *, budget: int, repeats: int) -> Case:
    a, b = torch.randn(MATRIX, MATRIX), torch.randn(MATRIX, MATRIX)
    resolution = images.shape[-1]
    work = len(images) * train_flops(resolution, budget) / (2 * MATRIX**3)
    products = max(1, round(work))

    def multiply() -> None:
        for _ in range(products):
            a @ b

    calls: dict[str, Callable[[], object]] = {n: partial(STEPS[kind], run, images) for n, run in runs.items()}
    key = f"{kind}/r{resolution}"
    ratios = {f"{key}/{peer}_over_veca": Ratio(peer, "veca", Goal(1.0)) for peer in CANDIDATES[1:]}
    if kind == "train":
        calls["matrix"] = multiply
        ratios[f"{key}/share_of_matrix_rate"] = Ratio("matrix", "veca", Goal(0.8), work / products)
    return Case(candidates=calls, ratios=ratios, repeats=repeats)


def growth_case(run: Run, kind: str, *, patches: int, repeats: int) -> Case:
    """How much longer an image of 1024 px takes than one of 512."""
    small, large = _images(512, patches), _images(1024, patches)
    ratio = Ratio("1024", "512", Goal(4.4, at_most=True), scale=len(small) / len(large))
    return Case(
        candidates={"512": partial(STEPS[kind], run, small), "1024": partial(STEPS[kind], run, large)},
        ratios={f"{kind}/time_1024_over_512": ratio},
        repeats=repeats,
    )


def memory_case(*, resolution: int, batch: int, budget: int) -> Case:
    """Of a few processes each: a single peak may be a fifth off."""
    return Case(
        candidates={name: partial(_peak, name, resolution, batch, budget) for name in CANDIDATES},
        ratios={
            f"train/r{resolution}/{peer}_memory_over_veca": Ratio(peer, "veca", Goal(1.0))
            for peer in CANDIDATES[1:]
        },
        repeats=PEAKS,
        warmup=0,
        own_clock=True,
    )


def _peak(name: str, *sizes: int) -> dict[str, float]:
    """How far a training step raises the peak of the resident memory of a process of its own."""
    command = [sys.executable, "-m", "veca.bench.model", name, *map(str, sizes)]
    return {name: float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)}


def _peak_kilobytes() -> int:
    """This process's own peak; getrusage starts with that of the process which started it."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition("VmHWM:")[2].split()[0])


def straightforward(model: Veca, images: Tensor, budget: int) -> Features:
    """The features of `model` without RoPE augmentation, as one writes VECA down from the method.

    Nothing here is slow on purpose: the rotation as the formula reads, its angles in every layer again.
    """
    z = model.patch_embed(images)
    rows, cols = z.shape[-2:]
    z = z.flatten(2).transpose(1, 2)  # (B, N, D)
    groups = budget // model.size.core_group
    r = torch.cat(list(model.cores.tokens[:groups]), dim=1).expand(len(images), -1, -1)  # (B, C, D)
    p = torch.cat(list(model.cores.coordinates[:groups]), dim=1).expand(len(images), -1, -1)
    turn_rate = frequencies(model.size.head_width, device=z.device, dtype=z.dtype)
    places = patch_coordinates(rows, cols, device=z.device, dtype=z.dtype).expand(len(images), -1, -1)
    for number, block in enumerate(model.blocks):
        assert isinstance(block, Block)
        if number:
            p = p + model.coordinate_scales[number - 1] * model.coordinate_heads[number - 1](r)
        coordinates = torch.cat((p.tanh(), places), dim=1)
        x = torch.cat((r, z), dim=1)
        x = x + _attend(block.attn, block.norm_attn(x), coordinates, turn_rate, budget)
        u, v = block.ffn.fc1(block.norm_ffn(x)).chunk(2, dim=-1)
        x = x + block.ffn.fc2(F.silu(u) * v)
        r, z = x[:, :budget], x[:, budget:]
    x = model.final_norm(torch.cat((r, z), dim=1))
    if model.output_proj is not None:
        x = model.output_proj(x)
    return Features(cls=x[:, 0], patches=x[:, budget:], cores=x[:, :budget], grid=(rows, cols))


def _attend(attn: CoreAttention, x: Tensor, coordinates: Tensor, turn_rate: Tensor, budget: int) -> Tensor:
    products = (project(x).unflatten(-1, (attn.num_heads, -1)) for project in (attn.q, attn.k, attn.v))
    q, k, v = (product.transpose(1, 2) for product in products)  # (B, H, T, h)
    q, k = _turn(q, coordinates, turn_rate), _turn(k, coordinates, turn_rate)
    cores = F.scaled_dot_product_attention(q[:, :, :budget], k, v)
    patches = F.scaled_dot_product_attention(q[:, :, budget:], k[:, :, :budget], v[:, :, :budget])
    out: Tensor = attn.out(torch.cat((cores, patches), dim=2).transpose(1, 2).flatten(2))
    return out


def _turn(x: Tensor, coordinates: Tensor, turn_rate: Tensor) -> Tensor:
    angles = (coordinates[..., None] * turn_rate).flatten(-2)[:, None]  # (B, 1, T, h/2)
    a, b = x[..., 0::2], x[..., 1::2]
    turned = (a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos())
    return torch.stack(turned, dim=-1).flatten(-2)


if __name__ == "__main__":
    keep_memory()  # as `veca` itself does
    name, (resolution, batch, budget) = sys.argv[1], map(int, sys.argv[2:])
    run = candidate(name, budget=budget)
    _train(run, torch.randn(1, 3, 64, 64))
    before = _peak_kilobytes()
    _train(run, torch.randn(batch, 3, resolution, resolution))
    print(_peak_kilobytes() - before)
