"""Shards → batches, as Lightning takes them: the data part of a recipe.

**Order.** One endless sequence of micro-batches, a function of (seed, epoch, position) alone (`order.py`);
workers and ranks only share it out. Each sample is seen exactly once per epoch, but for a remainder of less
than one optimizer step's samples, which is logged.

**Resume.** A checkpoint holds the position behind the last micro-batch that training has gone through,
counted in samples over all ranks. The next one after a resume is the one the uninterrupted run would have
seen.

* Another number of workers changes nothing.
* Another world size, batch size or accumulation continues with the next unseen sample of the epoch; no
  sample is repeated or left out. Only the epoch's remainder may differ, and the epoch that the Trainer was
  in counts on in its batches, so that it may be shorter or longer than the data's.
* Another seed, window or dataset would be another order: that stops with a message.
"""

import os
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, Literal

from lightning.pytorch import LightningDataModule
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_info

from veca.data.index import Shard, Source, check_shards, fingerprint, open_sources
from veca.data.loader import (
    BatchDataset,
    CentreViews,
    EvalLoader,
    FreshViews,
    Progress,
    SkipTally,
    TrainLoader,
    ViewSource,
    WorkerOptions,
)
from veca.data.order import ALONE, EpochOrder, Position, Ranks, TrainStream, eval_requests
from veca.data.reader import ShardReader
from veca.data.resolutions import ResolutionSchedule
from veca.data.shard_cache import ShardCache
from veca.data.stored_targets import Cache, TargetsSource
from veca.data.stored_views import StoredViews, check_replay
from veca.data.transport import is_url

ONE_RESOLUTION = ResolutionSchedule()

_SPLITS_OF_STAGE = {"fit": ["train", "val"], "validate": ["val"], "test": ["test"], "predict": ["val"]}


class ShardDataModule(LightningDataModule):
    """Training and evaluation batches from shards.

    Args:
        sources: The folder of the shards or its http(s) URL; or several with weights, where the weight is
            how many passes over the source an epoch takes (`{/data/a: 1, https://host/b: 0.5}`).
        targets: Targets of these shards, stored by `veca data cache`, to train from without a teacher: the
            folder of the shards or of the cache; or with `teacher`, `views` or `dtype` beside its `path`,
            which choose among several. Null leaves the targets to a teacher.
        resolutions: Which resolution a step trains at, and the batch size per rank.
        seed: Seed of the order and of the views.
        window_shards: Shards that are mixed with each other. More mix better and keep more of them open.
        num_workers: Processes that decode, per rank; null takes the CPUs, shared among the ranks of the
            machine.
        start_method: How they start; null for the platform's way.
        max_bad_share: Share of samples that may be unusable before the run stops.
        val_batches: How many batches to evaluate, over all ranks: one number, one per resolution, or null
            for all.
        cache_dir: Folder on a local disk for the shards of URLs.
        cache_bytes: Bound on its size.
    """

    def __init__(
        self,
        *,
        sources: str | dict[str, float],
        targets: str | TargetsSource | None = None,
        resolutions: ResolutionSchedule = ONE_RESOLUTION,
        seed: int = 42,
        window_shards: int = 8,
        num_workers: int | None = None,
        start_method: Literal["fork", "spawn", "forkserver"] | None = None,
        max_bad_share: float = 0.01,
        val_batches: int | dict[int, int] | None = None,
        cache_dir: str | None = None,
        cache_bytes: int = 100_000_000_000,
    ) -> None:
        super().__init__()
        self.sources = sources
        self.targets = targets
        self.resolutions = resolutions
        self.seed = seed
        self.window_shards = window_shards
        self.num_workers = num_workers
        self.start_method = start_method
        self.max_bad_share = max_bad_share
        self.val_batches = val_batches
        self.cache_dir = cache_dir
        self.cache_bytes = cache_bytes
        problems = list(_setting_problems(self))
        if problems:
            raise ValueError("the data settings cannot be used:\n  " + "\n  ".join(problems))
        #: What the training loader asks for a step's resolution; replace it to decide elsewhere.
        self.resolution_of_step: Callable[[int], int] = resolutions.resolution
        self._opened: list[Source] = []
        self._position = Position()
        self._train_loader: TrainLoader | None = None
        self._tallies: dict[str, SkipTally] = {}

    @cached_property
    def stored(self) -> Cache | None:
        """The cache that `targets` names; None where a teacher gives the targets."""
        targets = TargetsSource(self.targets) if isinstance(self.targets, str) else self.targets
        return targets.open() if targets is not None else None

    def setup(self, stage: str) -> None:
        if not self._opened:
            self._opened = open_sources(self.sources)
        images = {split: self._shards(split) for split in self._splits(stage)}
        shards = [shard for split in images.values() for shard in split]
        # Three windows: the one being read, the last one, which slow workers hold, and the next one.
        sizes = sorted((shard.info.bytes for shard in shards if shard.is_remote), reverse=True)
        needed = sum(sizes[: 3 * self.window_shards])
        if needed > self.cache_bytes:
            raise ValueError(
                f"cache_bytes = {self.cache_bytes}: must hold three windows of {self.window_shards} shards, "
                f"{needed} B; raise it, or lower window_shards."
            )
        check_shards(shards)
        if self.stored is not None:
            check_replay(self.stored, images, resolutions=self.resolutions.resolutions)
        progress = self._progress()
        if stage == "fit" and progress is not None and progress.batches == 0:
            self._begin_at(Position())  # a Trainer that has not trained yet

    def train_dataloader(self) -> TrainLoader:
        accumulate = self.trainer.accumulate_grad_batches if self.trainer is not None else 1
        return self.train_loader(ranks=self._ranks(), accumulate=accumulate)

    def val_dataloader(self) -> list[EvalLoader]:
        """One loader per resolution, smallest first."""
        return self.eval_loaders("val", ranks=self._ranks())

    def test_dataloader(self) -> list[EvalLoader]:
        return self.eval_loaders("test", ranks=self._ranks())

    def predict_dataloader(self) -> list[EvalLoader]:
        return self.val_dataloader()

    def train_loader(self, *, ranks: Ranks = ALONE, accumulate: int = 1) -> TrainLoader:
        """Training batches of one rank; for use without a Trainer, call `setup("fit")` first."""
        self._begin_at(self._current_position())
        order = EpochOrder(
            [source.counts("train") for source in self._opened],
            seed=self.seed,
            window_shards=self.window_shards,
        )
        stream = TrainStream(
            order,
            batch_sizes=self.resolutions.batch_sizes,
            resolution_of_step=lambda step: self.resolution_of_step(step),
            ranks=ranks,
            accumulate=accumulate,
        )
        length = stream.batches_per_epoch(self.resolutions.resolution)
        if ranks.rank == 0:
            _log_epoch(order.samples_per_epoch, length, self.resolutions.batch_sizes, ranks.world_size)
        self._train_loader = TrainLoader(
            stream,
            self._dataset("train", self.train_views(), replace_bad=True),
            position=self._position,
            length=length,
            tally=self._tally("train"),
            workers=self._workers(),
            progress=self._progress,
        )
        return self._train_loader

    def eval_loaders(self, split: str, *, ranks: Ranks = ALONE) -> list[EvalLoader]:
        """Centre crops of a split in index order, one loader per resolution."""
        samples = [shard.info.samples for shard in self._shards(split)]
        limits = self.val_batches
        dataset = self._dataset(split, self._stored_views(split) or CentreViews(), replace_bad=False)
        return [
            EvalLoader(
                eval_requests(
                    samples,
                    resolution=resolution,
                    batch_size=batch_size,
                    max_batches=limits.get(resolution) if isinstance(limits, dict) else limits,
                    ranks=ranks,
                ),
                dataset,
                tally=self._tally(split),
                workers=self._workers(),
            )
            for resolution, batch_size in self.resolutions.batch_sizes.items()
        ]

    def train_views(self) -> ViewSource:
        """Which view of a training sample is used."""
        return self._stored_views("train") or FreshViews(self.seed)

    def metrics(self) -> dict[str, float]:
        """Skipped samples of this rank so far, in all and by reason, to be logged."""
        found: dict[str, float] = {}
        for split, tally in self._tallies.items():
            found[f"{split}/skipped"] = float(tally.reasons.total())
            found |= {f"{split}/skipped_{reason}": float(count) for reason, count in tally.reasons.items()}
        return found

    def state_dict(self) -> dict[str, Any]:
        return {**self._current_position()._asdict(), "data": self._identity()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if self.trainer is not None and self.trainer.state.fn != TrainerFn.FITTING:
            return  # evaluating a checkpoint on other data is fine
        saved, current = state_dict["data"], self._identity()
        changed = [
            f"{key}: {saved.get(key)!r} then, {current.get(key)!r} now"
            for key in {**saved, **current}
            if saved.get(key) != current.get(key)
        ]
        if changed:
            raise ValueError(
                "the checkpoint was made with other data settings, so its position means nothing here:\n  "
                + "\n  ".join(changed)
                + "\nResume with the settings of then, or start a new run from the checkpoint's weights."
            )
        self._begin_at(Position(**{name: int(state_dict[name]) for name in Position._fields}))

    def teardown(self, stage: str) -> None:
        if stage == "fit":
            self._begin_at(self._current_position())

    def on_exception(self, exception: BaseException) -> None:
        self._begin_at(self._current_position())  # ends the workers: nothing waits for them at exit

    def _current_position(self) -> Position:
        return self._position if self._train_loader is None else self._train_loader.position

    def _begin_at(self, position: Position) -> None:
        """Where the next training loader begins; the last one ends."""
        self._position = position
        if self._train_loader is not None:
            self._train_loader.close()
            self._train_loader = None

    def _identity(self) -> dict[str, Any]:
        """What order and targets depend on. Not where the data lies, and not how it is shared out."""
        found: dict[str, Any] = {
            "seed": self.seed,
            "window_shards": self.window_shards,
            "fingerprint": fingerprint(self._opened, "train"),
        }
        if self.stored is not None:
            spec = self.stored.spec
            # Not its resolutions: a cache that has more of them holds the same targets.
            for part in ("teacher", "weights", "views", "dtype", "seed", "precision"):
                found[f"targets.{part}"] = getattr(spec, part)
        return found

    def _splits(self, stage: str) -> list[str]:
        """The splits that a stage reads, each with samples."""
        splits = _SPLITS_OF_STAGE[stage]
        if self.trainer is None:
            return splits
        if stage == "fit" and not self.trainer.enable_validation:
            splits = ["train"]
        for split in splits:
            if not any(shard.info.samples for shard in self._shards(split)):
                raise ValueError(
                    f"sources = {self.sources}: there are no {split} samples. Make shards that have some, or "
                    f"set limit_{split}_batches=0."
                )
        return splits

    def _shards(self, split: str) -> list[Shard]:
        return [shard for source in self._opened for shard in source.shards(split)]

    def _dataset(self, split: str, views: ViewSource, *, replace_bad: bool) -> BatchDataset:
        cache = ShardCache(self.cache_dir, max_bytes=self.cache_bytes) if self.cache_dir else None
        # Two windows: a batch may reach over the boundary between them.
        reader = ShardReader(self._shards(split), cache=cache, max_open=2 * self.window_shards)
        return BatchDataset(reader, views, replace_bad=replace_bad)

    def _stored_views(self, split: str) -> StoredViews | None:
        if self.stored is None:
            return None
        return StoredViews(self.stored, split, seed=self.seed, max_open=2 * self.window_shards)

    def _workers(self) -> WorkerOptions:
        num_workers = self.num_workers
        if num_workers is None:
            ranks_here = self.trainer.num_devices if self.trainer is not None else 1
            num_workers = max(len(os.sched_getaffinity(0)) // ranks_here, 1)
        return WorkerOptions(num_workers, self.start_method)

    def _tally(self, split: str) -> SkipTally:
        return self._tallies.setdefault(split, SkipTally(self.max_bad_share))

    def _ranks(self) -> Ranks:
        return Ranks(self.trainer.global_rank, self.trainer.world_size) if self.trainer is not None else ALONE

    def _progress(self) -> Progress | None:
        if self.trainer is None:
            return None
        batches = self.trainer.fit_loop.epoch_loop.batch_progress
        # `processed` rather than `ready`: a batch counts when training is through with it.
        done = batches.total.processed  # type: ignore[attr-defined]  # Lightning names a base class here
        length = self.trainer.num_training_batches
        return Progress(self.trainer.global_step, done, batches.current.ready, length)


def _setting_problems(data: ShardDataModule) -> Iterator[str]:
    """Every broken rule as `key = value: rule`, before anything is read."""
    sources = {data.sources: 1.0} if isinstance(data.sources, str) else data.sources
    if not sources:
        yield "sources = {}: must name at least one folder or URL"
    for source, weight in sources.items():
        if not 0 < weight < float("inf"):
            yield f"sources[{source}] = {weight}: must be above 0 and finite; or leave the source out"
        try:
            if is_url(source) and data.cache_dir is None:
                yield f"cache_dir = null: must be a folder on a local disk, as {source} is remote"
        except ValueError as error:
            yield str(error)
    if data.targets is not None:
        path = data.targets if isinstance(data.targets, str) else data.targets.path
        if "://" in path:
            yield (
                f"targets = {path}: stored targets are read from a disk. Copy the folder, and give its path; "
                "the images may stay where they are"
            )
        if len(sources) > 1:
            yield f"sources = {sources}: stored targets serve one source; train from one"
    if data.seed < 0:
        yield f"seed = {data.seed}: must not be negative"
    if data.window_shards < 1:
        yield f"window_shards = {data.window_shards}: must be at least 1"
    if data.num_workers is not None and data.num_workers < 0:
        yield f"num_workers = {data.num_workers}: must not be negative; null takes the CPUs"
    if not 0 <= data.max_bad_share < 1:
        yield f"max_bad_share = {data.max_bad_share}: must be at least 0 and below 1"
    yield from _val_problems(data.val_batches, data.resolutions.resolutions)


def _val_problems(val_batches: int | dict[int, int] | None, known: list[int]) -> Iterator[str]:
    limits = val_batches if isinstance(val_batches, dict) else {}
    unknown = sorted(set(limits) - set(known))
    if unknown:
        yield f"val_batches = {val_batches}: resolutions {unknown} are not among {known}"
    for limit in limits.values() or [val_batches]:
        if limit is not None and not (isinstance(limit, int) and limit >= 1):
            yield f"val_batches = {val_batches}: must be at least 1; limit_val_batches=0 turns validation off"


def _log_epoch(samples: int, length: int, batch_sizes: dict[int, int], world_size: int) -> None:
    sizes = set(batch_sizes.values())
    if len(sizes) > 1:
        rank_zero_info(f"an epoch has {samples} samples, about {length} batches per rank")
        return
    left = samples - length * world_size * sizes.pop()
    rank_zero_info(
        f"an epoch has {samples} samples: {length} batches per rank; "
        f"{left} samples are left out, others each epoch"
    )
