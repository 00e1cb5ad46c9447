"""What a run computes in: bf16 where the machine multiplies it fast, float32 elsewhere.

GPUs do, and so do CPUs with AMX or AVX512-BF16: four to nine times as many products per second as in float32.
A CPU without either runs bf16 fifty times slower than float32, so the decision is made from its flags, once,
before a run starts; the run's config.yaml then says what it came to.
"""

import logging
import os
import shutil
from pathlib import Path

import torch
import yaml

AUTO = "auto"
FLOAT32, BF16 = "32-true", "bf16-mixed"
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


def cpu_multiplies_bf16() -> bool:
    """Whether this CPU has instructions for products of bf16 matrices."""
    return torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported()


def recorded_precision(config: Path) -> str | None:
    """What an earlier start of a run resolved its precision to; None where that is not known."""
    try:
        recorded = yaml.safe_load(config.read_text(encoding="utf-8"))["trainer"]["precision"]
    except (OSError, KeyError, TypeError, yaml.YAMLError):
        return None
    return None if recorded in (None, AUTO) else str(recorded)


def has_cpp_compiler() -> bool:
    """Whether torch can compile for a CPU here; says so once where it cannot."""
    wanted = os.environ.get("CXX")
    found = any(shutil.which(name) for name in ([wanted] if wanted else ["g++", "clang++"]))
    if not found:
        log.warning(
            "no C++ compiler: models run uncompiled, about a third slower. Install g++ to change that."
        )
    return found
