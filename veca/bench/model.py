"""The whole small model, forward and as a training step, beside DINOv3-S and a straightforward VECA.

Times are ratios of turns taken in one run. Every resolution has a pass of about as many patches, as a
training step has: 16 images of 256 px, or one of 1024 px. The machine's own matrix rate, as many float32
products of 2048³ as make up the step's FLOPs, takes turns with the training steps, so that "share of the
matrix rate" means the same on every machine. Peak memory is the median of a few processes per candidate.
"""

import re
import resource
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
import transformers
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from veca.bench.goals import said
from veca.bench.straightforward import straightforward
from veca.data.resolutions import PATCH_SIZE
from veca.model import create_model
from veca.model.sizes import resolve_size
from veca.teachers.dinov3 import dinov3_config
from veca.utils.memory import keep_memory
from veca.utils.timing import Timing, compare, interleave

SIZE = "small"
RESOLUTIONS = (256, 512, 768, 1024)
BUDGET = 64
MATRIX = 2048
PEAKS = 3
CANDIDATES = ("veca", "straightforward", "dinov3")

Run = Callable[[Tensor], Tensor]


def model(
    *,
    resolutions: Sequence[int] = RESOLUTIONS,
    budget: int = BUDGET,
    patches: int = 4096,
    repeats: int = 5,
    memory: bool = True,
) -> dict[str, float]:
    """Time the small model, forward and training step, against its peers.

    Args:
        resolutions: Sides of the image in pixels.
        budget: Active cores.
        patches: About how many patches a pass has; at least one image.
        repeats: Turns that each candidate takes.
        memory: Also measure peak memory, each candidate in a process of its own.
    """
    results: dict[str, float] = {}
    runs = {name: candidate(name, budget=budget) for name in CANDIDATES}
    for resolution in resolutions:
        images = _images(resolution, patches)
        for kind in STEPS:
            results |= said("model", _time(runs, images, kind, budget=budget, repeats=repeats))
        if memory:
            results |= said("model", _memory(resolution, len(images), budget))
    if {512, 1024} <= set(resolutions):
        for kind in STEPS:
            results |= said("model", _growth(runs["veca"], kind, patches=patches, repeats=repeats))
    return results


def candidate(name: str, *, budget: int = BUDGET, seed: int = 0) -> Run:
    """Images → one tensor of features that a backward pass can start from."""
    torch.manual_seed(seed)
    if name == "dinov3":
        network: nn.Module = transformers.DINOv3ViTModel(
            dinov3_config(resolve_size(SIZE, {}), gated=False)
        ).train()
        return lambda images: network(images).last_hidden_state
    student = create_model(SIZE)
    student.augment_rope = False
    if name == "veca":
        return lambda images: student(images, budget=budget).patches
    return lambda images: straightforward(student, images, budget).patches


def train_flops(resolution: int, budget: int = BUDGET) -> int:
    """FLOPs of one image's forward and backward pass, counted by torch on the meta device."""
    with torch.device("meta"):
        student = create_model(SIZE)
        images = torch.empty(1, 3, resolution, resolution)
    counter = FlopCounterMode(display=False)
    with counter:
        student(images, budget=budget).patches.sum().backward()
    total: int = counter.get_total_flops()
    return total


def _images(resolution: int, patches: int) -> Tensor:
    batch = max(1, round(patches / (resolution // PATCH_SIZE) ** 2))
    return torch.randn(batch, 3, resolution, resolution)


def _forward(run: Run, images: Tensor) -> None:
    with torch.inference_mode():
        run(images)


def _train(run: Run, images: Tensor) -> None:
    run(images).square().mean().backward()


STEPS = {"forward": _forward, "train": _train}


def _time(runs: dict[str, Run], images: Tensor, kind: str, *, budget: int, repeats: int) -> dict[str, float]:
    a, b = torch.randn(MATRIX, MATRIX), torch.randn(MATRIX, MATRIX)
    resolution = images.shape[-1]
    work = len(images) * train_flops(resolution, budget) / (2 * MATRIX**3)
    products = max(1, round(work))

    def multiply() -> None:
        for _ in range(products):
            a @ b

    calls: dict[str, Callable[[], object]] = {
        name: partial(STEPS[kind], run, images) for name, run in runs.items()
    }
    if kind == "train":
        calls["matrix"] = multiply
    timings = interleave(calls, repeats=repeats)
    key = f"{kind}/r{resolution}"
    results = compare(timings, {f"{key}/{peer}_over_veca": (peer, "veca") for peer in CANDIDATES[1:]})
    if kind == "train":
        share = {f"{key}/share_of_matrix_rate": ("matrix", "veca")}
        results |= compare(timings, share, scale=work / products)
    return results


def _growth(run: Run, kind: str, *, patches: int, repeats: int) -> dict[str, float]:
    """How much longer an image of 1024 px takes than one of 512."""
    sides = {str(side): _images(side, patches) for side in (512, 1024)}
    timings = interleave(
        {side: partial(STEPS[kind], run, images) for side, images in sides.items()}, repeats=repeats
    )
    scale = len(sides["512"]) / len(sides["1024"])
    return compare(timings, {f"{kind}/time_1024_over_512": ("1024", "512")}, scale=scale)


def _memory(resolution: int, batch: int, budget: int) -> dict[str, float]:
    """Of a few processes each: a single peak may be a fifth off."""
    sizes = {"resolution": resolution, "batch": batch, "budget": budget}
    peaks = {name: Timing(tuple(_peak(name, **sizes) for _ in range(PEAKS))) for name in CANDIDATES}
    key = f"train/r{resolution}"
    return compare(peaks, {f"{key}/{peer}_memory_over_veca": (peer, "veca") for peer in CANDIDATES[1:]})


def _peak(name: str, *, resolution: int, batch: int, budget: int) -> float:
    numbers = map(str, (resolution, batch, budget))
    command = [sys.executable, "-m", "veca.bench.model", name, *numbers]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def _measure_peak(name: str, resolution: int, batch: int, budget: int) -> None:
    """In a process of its own: how far a training step raises the peak of the resident memory."""
    run = candidate(name, budget=budget)
    _train(run, torch.randn(1, 3, 64, 64))
    before = _peak_kilobytes()
    _train(run, torch.randn(batch, 3, resolution, resolution))
    print(_peak_kilobytes() - before)


def _peak_kilobytes() -> int:
    """This process's own peak; on Linux getrusage starts with that of the process which started it."""
    status = Path("/proc/self/status")
    if status.exists() and (found := re.search(r"VmHWM:\s+(\d+) kB", status.read_text(encoding="ascii"))):
        return int(found[1])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


if __name__ == "__main__":
    keep_memory()  # as `veca` itself does
    _measure_peak(sys.argv[1], *map(int, sys.argv[2:]))
