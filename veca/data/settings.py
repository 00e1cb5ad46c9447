"""Rules for the data settings of a recipe, all checked at once and before anything is read."""

from collections.abc import Iterator, Sequence
from typing import Protocol

from veca.data.download import is_url
from veca.data.resolutions import ResolutionSchedule
from veca.data.sources import Shard
from veca.data.stored_targets import TargetsSource


class Settings(Protocol):
    """The settings of `ShardDataModule` that have rules."""

    sources: str | dict[str, float]
    targets: str | TargetsSource | None
    resolutions: ResolutionSchedule
    seed: int
    window_shards: int
    num_workers: int | None
    max_bad_share: float
    val_batches: int | dict[int, int] | None
    cache_dir: str | None


def check_settings(settings: Settings) -> None:
    rules = (_source_problems, _targets_problems, _number_problems, _val_problems)
    problems = [problem for rule in rules for problem in rule(settings)]
    if problems:
        raise ValueError("the data settings cannot be used:\n  " + "\n  ".join(problems))


def check_cache(shards: Sequence[Shard], *, cache_bytes: int, window_shards: int) -> None:
    """Three windows must fit: the one being read, the last one, which slow workers hold, and the next one."""
    sizes = sorted((shard.info.bytes for shard in shards if shard.is_remote), reverse=True)
    needed = sum(sizes[: 3 * window_shards])
    if needed > cache_bytes:
        raise ValueError(
            f"cache_bytes = {cache_bytes}: must hold three windows of {window_shards} shards, {needed} B; "
            "raise it, or lower window_shards."
        )


def _source_problems(settings: Settings) -> Iterator[str]:
    sources = settings.sources
    weights = {sources: 1.0} if isinstance(sources, str) else sources
    if not weights:
        yield "sources = {}: must name at least one folder or URL"
    for source, weight in weights.items():
        if not 0 < weight < float("inf"):
            yield f"sources[{source}] = {weight}: must be above 0 and finite; or leave the source out"
        try:
            if is_url(source) and settings.cache_dir is None:
                yield f"cache_dir = null: must be a folder on a local disk, as {source} is remote"
        except ValueError as error:
            yield str(error)


def _targets_problems(settings: Settings) -> Iterator[str]:
    if settings.targets is None:
        return
    path = settings.targets if isinstance(settings.targets, str) else settings.targets.path
    if "://" in path:
        yield (
            f"targets = {path}: stored targets are read from a disk. Copy the folder, and give its path; the "
            "images may stay where they are"
        )
    if isinstance(settings.sources, dict) and len(settings.sources) > 1:
        yield f"sources = {settings.sources}: stored targets serve one source; train from one"


def _number_problems(settings: Settings) -> Iterator[str]:
    if settings.seed < 0:
        yield f"seed = {settings.seed}: must not be negative"
    if settings.window_shards < 1:
        yield f"window_shards = {settings.window_shards}: must be at least 1"
    if settings.num_workers is not None and settings.num_workers < 0:
        yield f"num_workers = {settings.num_workers}: must not be negative; null takes the CPUs"
    if not 0 <= settings.max_bad_share < 1:
        yield f"max_bad_share = {settings.max_bad_share}: must be at least 0 and below 1"


def _val_problems(settings: Settings) -> Iterator[str]:
    val_batches, known = settings.val_batches, settings.resolutions.resolutions
    limits = val_batches if isinstance(val_batches, dict) else {}
    unknown = sorted(set(limits) - set(known))
    if unknown:
        yield f"val_batches = {val_batches}: resolutions {unknown} are not among {known}"
    for limit in limits.values() or [val_batches]:
        if limit is not None and not (isinstance(limit, int) and limit >= 1):
            yield f"val_batches = {val_batches}: must be at least 1; limit_val_batches=0 turns validation off"
