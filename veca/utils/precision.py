"""What a run computes in: bf16 where the machine multiplies it fast, float32 elsewhere.

GPUs do, and so do CPUs with AMX or AVX512-BF16: four to nine times as many products per second as in float32.
A CPU without either runs bf16 fifty times slower than float32, so the decision is made from its flags, once,
before a run starts; the run's config.yaml then says what it came to.
"""

import logging
import sysconfig
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Final, Literal

import torch
import yaml

AUTO: Final = "auto"
FLOAT32: Final = "32-true"
BF16: Final = "bf16-mixed"
InferencePrecision = Literal["auto", "bf16-mixed", "32-true"]
WORTH_COMPILING = 50_000  # images: below, making the graphs takes longer than they save

log = logging.getLogger(__name__)


def resolve_precision(precision: str, *, accelerator: str = AUTO) -> str:
    """`precision` itself, or what `auto` means for the device that Lightning would take."""
    if precision != AUTO:
        return precision
    if accelerator in (AUTO, "gpu", "cuda") and torch.cuda.is_available():
        return BF16 if torch.cuda.is_bf16_supported(including_emulation=False) else FLOAT32
    if accelerator == "cpu" or (accelerator == AUTO and not torch.backends.mps.is_available()):
        return BF16 if cpu_multiplies_bf16() else FLOAT32
    return FLOAT32


def choose_device(device: str | None = None) -> torch.device:
    """The device named, if torch finds it here; by default a GPU where there is one, else the CPU."""
    default = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        chosen = torch.device(device or default)
        torch.empty(0, device=chosen)
    except (RuntimeError, AssertionError, NotImplementedError) as error:  # torch raises each of them for it
        first = str(error).splitlines()[0]
        raise ValueError(
            f"device must be one that torch finds here, as cpu, cuda or cuda:1; got {device!r} ({first}). "
            f"Try {default}."
        ) from None
    return chosen


def cpu_multiplies_bf16() -> bool:
    """Whether this CPU has instructions for products of bf16 matrices."""
    return torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported()


def recorded_precision(checkpoint: Path) -> str | None:
    """What the run that wrote a checkpoint computed in, by its config.yaml; None where that is not known."""
    config = checkpoint.absolute().parent.parent / "config.yaml"
    try:
        recorded = yaml.safe_load(config.read_text(encoding="utf-8"))["trainer"]["precision"]
    except (OSError, UnicodeDecodeError, KeyError, TypeError, yaml.YAMLError):
        return None
    return None if recorded in (None, AUTO) else str(recorded)


def computing_in(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """Frozen models run in this precision inside the block; 32-true leaves them as they are."""
    uses_bf16 = resolve_precision(precision, accelerator=device.type) == BF16
    return torch.autocast(device.type, dtype=torch.bfloat16) if uses_bf16 else nullcontext()


def has_cpp_compiler() -> bool:
    """Whether torch finds here what it compiles for a CPU with; where not, says what is missing."""
    from torch._inductor import cpp_builder, exc  # only where something is compiled: it takes a while

    try:
        cpp_builder.get_cpp_compiler()
    except exc.InvalidCxxCompiler:
        missing = "no C++ compiler (g++, or what the variable CXX names)"
    else:
        if (Path(sysconfig.get_path("include")) / "Python.h").is_file():
            return True
        missing = "no Python.h (Debian: python3-dev)"
    log.warning("%s: models run uncompiled, about a third slower. Install it to change that.", missing)
    return False
