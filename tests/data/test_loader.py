"""Batches: the right pixels in an order that workers do not touch; ranks agree, bad samples stop a run."""

import faulthandler
import json
import logging
import multiprocessing.util
import os
import pickle
import signal
import subprocess
import sys
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.data.conftest import MakeShards
from tests.data.run_fit import data_module
from tests.data.shards import sample_members, tiny_jpeg
from veca.data.index import open_sources
from veca.data.loader import (
    BatchDataset,
    BuiltBatch,
    CentreViews,
    FreshViews,
    Progress,
    Skipped,
    SkipTally,
    TrainLoader,
    ViewSource,
)
from veca.data.order import Position, Request
from veca.data.reader import Sample, ShardReader
from veca.data.views import View, centre_view, draw_view, render, sample_generator
from veca.types import Batch, Targets
from veca.utils.process import outlive_signals


def dataset(folder: Path, views: ViewSource, *, replace_bad: bool = True) -> BatchDataset:
    shards = open_sources(str(folder))[0].shards("train")
    return BatchDataset(ShardReader(shards, cache=None, max_open=2), views, replace_bad=replace_bad)


def request(*refs: tuple[int, int, int], resolution: int = 32) -> Request:
    return Request(np.array(refs, np.int64), resolution, [])


def test_pixels_are_the_view_of_the_sample(make_shards: MakeShards) -> None:
    data = dataset(make_shards([3, 2]), FreshViews(seed=7))
    batch, skipped = data.__getitems__(request((0, 2, 5), (1, 1, 6)))
    assert (batch.keys, batch.targets, skipped) == (["s00002", "s00004"], None, [])
    assert (batch.images.dtype, tuple(batch.images.shape)) == (torch.uint8, (2, 3, 32, 32))
    for pixels, key, number, visit in zip(batch.images, batch.keys, (2, 4), (5, 6), strict=True):
        view = draw_view(sample_generator(7, visit, key), size=(48, 40), resolution=32)
        assert np.array_equal(pixels.numpy(), render(tiny_jpeg(number), view))


def test_evaluation_takes_the_centre(make_shards: MakeShards) -> None:
    batch, _ = dataset(make_shards([2]), CentreViews()).__getitems__(request((0, 1, 0)))
    assert np.array_equal(
        batch.images[0].numpy(), render(tiny_jpeg(1), centre_view(size=(48, 40), resolution=32))
    )


def test_visits_draw_views_of_their_own(make_shards: MakeShards) -> None:
    data = dataset(make_shards([1]), FreshViews(seed=7))
    batch, _ = data.__getitems__(request(*((0, 0, visit) for visit in range(6))))
    assert len({image.numpy().tobytes() for image in batch.images}) == 6


def test_any_resolution_and_a_copy_of_the_dataset_give_the_same(make_shards: MakeShards) -> None:
    data = dataset(make_shards([2]), FreshViews(seed=7))
    for resolution in (48, 32, 64):
        asked = request((0, 0, 0), (0, 1, 0), resolution=resolution)
        batch, _ = data.__getitems__(asked)
        copied, _ = pickle.loads(pickle.dumps(data)).__getitems__(asked)
        assert batch.images.shape[-1] == resolution
        assert torch.equal(batch.images, copied.images)


def bad_shards(make_shards: MakeShards) -> Path:
    jpeg = tiny_jpeg(1)
    return make_shards(
        [6],
        replace={
            "s00001": [("s00001.jpg", jpeg[: len(jpeg) // 2]), ("s00001.json", b"{}")],
            "s00003": [*sample_members("s00003", 3), ("s00003.pkl", b"\x80")],
            "s00005": [("s00005.jpg", b"not an image")],
        },
    )


def test_bad_samples_are_replaced_by_the_next_good_one(make_shards: MakeShards) -> None:
    data = dataset(bad_shards(make_shards), FreshViews(seed=7))
    batch, skipped = data.__getitems__(request(*((0, number, 0) for number in range(6))))
    assert batch.keys == ["s00000", "s00002", "s00002", "s00004", "s00004", "s00000"]
    assert torch.equal(batch.images[1], batch.images[2])
    assert [skip.key for skip in skipped] == ["s00001", "sample 3", "s00005"]
    assert skipped[1].reason == "refused-member"
    assert len({skip.reason for skip in skipped}) >= 2
    assert all(skip.shard.endswith("train-000000.tar") for skip in skipped)


def test_bad_samples_are_left_out_of_evaluation(make_shards: MakeShards) -> None:
    data = dataset(bad_shards(make_shards), CentreViews(), replace_bad=False)
    batch, skipped = data.__getitems__(request(*((0, number, 0) for number in range(6))))
    assert batch.keys == ["s00000", "s00002", "s00004"]
    assert len(batch.images) == 3
    assert len(skipped) == 3


def test_a_batch_without_one_good_sample(make_shards: MakeShards) -> None:
    folder, bad = bad_shards(make_shards), request((0, 1, 0), (0, 3, 0))
    with pytest.raises(RuntimeError, match=r"not one of the 2 samples .*s00001"):
        dataset(folder, FreshViews(seed=7)).__getitems__(bad)
    batch, skipped = dataset(folder, CentreViews(), replace_bad=False).__getitems__(bad)
    assert (batch.keys, tuple(batch.images.shape), len(skipped)) == ([], (0, 3, 32, 32), 2)


class StoredViews:
    """A cache in miniature: the centre, with targets that name the sample."""

    def choose(self, sample: Sample, *, visit: int, resolution: int) -> tuple[View, Targets | None]:
        targets = Targets(
            torch.full((3,), sample.number).half(), torch.full((4, 3), visit + len(sample.members)).half()
        )
        return centre_view(size=(48, 40), resolution=resolution), targets


def test_stored_targets_come_with_their_views(make_shards: MakeShards) -> None:
    batch, _ = dataset(make_shards([3]), StoredViews()).__getitems__(request((0, 2, 4), (0, 0, 5)))
    assert batch.targets is not None
    assert batch.targets.cls.tolist() == [[2.0] * 3, [0.0] * 3]
    assert tuple(batch.targets.patches.shape) == (2, 4, 3)
    assert batch.targets.patches[:, 0, 0].tolist() == [5.0, 6.0]


RUN_RANKS = Path(__file__).with_name("run_ranks.py")
# Every way to start workers; three of them are quick enough for each run of the tests.
CASES = [
    pytest.param(0, "fork"),
    pytest.param(3, "fork"),
    pytest.param(2, "spawn"),
    pytest.param(2, "fork", marks=pytest.mark.torture),
    pytest.param(0, "spawn", marks=pytest.mark.torture),
    pytest.param(3, "spawn", marks=pytest.mark.torture),
]


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("num_workers", "start_method"), CASES)
def test_two_ranks_share_uneven_shards(
    num_workers: int, start_method: str, make_shards: MakeShards, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = make_shards([13, 7, 25])  # 45 samples: 5 global batches of 8, and 5 left
    command = [sys.executable, str(RUN_RANKS), str(folder), "2", str(num_workers), start_method]
    output = subprocess.run(command, check=True, timeout=100, stdout=subprocess.PIPE).stdout
    results = [json.loads(line) for line in output.splitlines()]
    assert sorted(rank for rank, _, _ in results) == [0, 1]
    orders = []
    for epoch in range(2):
        batches = [batch for _, length, epochs in results for batch in epochs[epoch]]
        assert all(len(epochs[epoch]) == length == 5 for _, length, epochs in results)
        keys = Counter(key for batch in batches for key in batch)
        assert max(keys.values()) == 1
        assert len(keys) == 40
        orders.append(batches)
    assert orders[0] != orders[1]


def keys_of(loader: TrainLoader, count: int) -> list[list[str]]:
    return [batch.keys for batch in islice(loader, count)]


@pytest.mark.timeout(60)
def test_workers_change_nothing(make_shards: MakeShards) -> None:
    folder = make_shards([13, 7, 25])
    seen = []
    for num_workers in (0, 2):
        data = data_module(folder, num_workers=num_workers)
        data.setup("fit")
        loader = data.train_loader()
        epochs = [[(batch.keys, batch.images.numpy().tobytes()) for batch in loader] for _ in range(2)]
        loader.close()
        assert [len(epoch) for epoch in epochs] == [len(loader)] * 2 == [15, 15]
        seen.append(epochs)
    assert seen[0] == seen[1]
    assert {len(pixels) for _, pixels in seen[0][0]} == {3 * 3 * 32 * 32, 3 * 3 * 48 * 48}  # in one pass


def test_an_iteration_continues_behind_the_last_batch_taken(make_shards: MakeShards) -> None:
    data = data_module(make_shards([13, 7, 25]))
    data.setup("fit")
    whole = keys_of(data.train_loader(), 15)
    data = data_module(make_shards([13, 7, 25]))
    data.setup("fit")
    loader = data.train_loader()
    assert keys_of(loader, 4) + keys_of(loader, 100) == whole
    assert loader.position == Position(epoch=0, samples=45, step=15)


class FakeTrainer:
    """Counts as Lightning does; `finish` is the end of a training step."""

    def __init__(self, batches_per_epoch: int, accumulate: int) -> None:
        self.step = self.total = self.epoch_batches = 0
        self.batches_per_epoch = batches_per_epoch
        self.accumulate = accumulate

    def progress(self) -> Progress:
        return Progress(self.step, self.total, self.epoch_batches, self.batches_per_epoch)

    def finish(self) -> None:
        self.total += 1
        self.epoch_batches += 1
        last = self.epoch_batches == self.batches_per_epoch
        self.step += last or self.epoch_batches % self.accumulate == 0

    def new_epoch(self) -> None:
        self.epoch_batches = 0


def trained_loader(
    folder: Path, trainer: FakeTrainer, monkeypatch: pytest.MonkeyPatch, **settings: Any
) -> TrainLoader:
    data = data_module(folder, **settings)
    data.setup("fit")
    monkeypatch.setattr(data, "_progress", trainer.progress)
    return data.train_loader(accumulate=trainer.accumulate)


def test_a_batch_counts_when_training_is_through_with_it(
    make_shards: MakeShards, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = FakeTrainer(15, 1)
    loader = trained_loader(make_shards([13, 7, 25]), trainer, monkeypatch)
    batches = iter(loader)
    for number in range(4):
        assert loader.position.samples == 3 * number
        next(batches)
        assert loader.position.samples == 3 * number  # in hand, not yet consumed
        trainer.finish()
        assert loader.position.samples == 3 * (number + 1)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("num_workers", [0, 1])
def test_steps_are_the_trainers_and_samples_go_on(
    num_workers: int, make_shards: MakeShards, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Epochs of 5 micro-batches with 2 per step: the odd one is a step of its own, and no sample is lost."""
    folder = make_shards([13, 7, 25])
    data = data_module(folder)
    data.setup("fit")
    whole = [key for keys in keys_of(data.train_loader(accumulate=2), 14) for key in keys]
    trainer = FakeTrainer(5, 2)
    loader = trained_loader(folder, trainer, monkeypatch, num_workers=num_workers)
    schedule = data.resolutions
    taken = []
    for _ in range(2):
        trainer.new_epoch()
        for batch in islice(loader, 5):
            assert batch.images.shape[-1] == schedule.resolution(trainer.step)
            taken += batch.keys
            trainer.finish()
    loader.close()
    assert taken == whole[:30]


def test_a_trainer_that_resumes_in_a_finished_epoch_gets_no_batch(
    make_shards: MakeShards, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = FakeTrainer(15, 1)
    loader = trained_loader(make_shards([13, 7, 25]), trainer, monkeypatch)
    trainer.epoch_batches = 15
    assert list(loader) == []
    trainer.new_epoch()
    assert len(keys_of(loader, 3)) == 3


def built(*reasons: str) -> BuiltBatch:
    return BuiltBatch(Batch(None, []), [Skipped("a.tar", f"k{reason}", reason, "why") for reason in reasons])  # type: ignore[arg-type]


def test_a_few_bad_samples_are_counted_and_named_once(caplog: pytest.LogCaptureFixture) -> None:
    tally = SkipTally(0.01)
    with caplog.at_level(logging.WARNING):
        for _ in range(4):
            tally.add(built("truncated", "bomb"), asked=100)
    assert tally.reasons == {"truncated": 4, "bomb": 4}
    assert [record.getMessage() for record in caplog.records] == [
        "skipped ktruncated in a.tar: why",
        "skipped kbomb in a.tar: why",
    ]


def test_too_many_bad_samples_stop_the_run() -> None:
    tally = SkipTally(0.01)
    for _ in range(9):
        tally.add(built("truncated"), asked=10)
    with pytest.raises(RuntimeError, match=r"10 of 100 samples are bad \(truncated: 9, bomb: 1\)") as error:
        tally.add(built("bomb"), asked=10)
    assert "max_bad_share = 0.01" in str(error.value)
    assert "key 'kbomb' in a.tar: why" in str(error.value)
    tally = SkipTally(0.2)
    for _ in range(20):
        tally.add(built("truncated"), asked=10)


def abort_on_exit(worker_id: int) -> None:
    outlive_signals(worker_id)
    faulthandler.disable()  # nobody needs its report
    multiprocessing.util.Finalize(None, os.abort, exitpriority=100)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.torture)])
def test_a_worker_that_aborts_when_it_is_told_to_end_is_no_failure(
    method: str, make_shards: MakeShards, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("veca.data.loader.outlive_signals", abort_on_exit)
    data = data_module(make_shards([20], val=[5]), num_workers=1, start_method=method)
    data.setup("fit")
    (small, _) = data.eval_loaders("val")
    assert len([key for batch in small for key in batch.keys]) == 5
    loader = data.train_loader()
    batches = iter(loader)
    next(batches)
    (worker,) = loader._data_loader._iterator._workers  # type: ignore[union-attr]
    loader.close()
    assert worker.exitcode == -signal.SIGABRT


@pytest.mark.timeout(60)
def test_a_worker_that_dies_is_a_failure_only_where_a_batch_is_missing(make_shards: MakeShards) -> None:
    data = data_module(make_shards([20]), num_workers=1, start_method="fork")
    data.setup("fit")
    loader = data.train_loader()
    for ends_before in (False, True):
        batches = iter(loader)
        next(batches)
        (worker,) = loader._data_loader._iterator._workers  # type: ignore[union-attr]
        worker.kill()
        worker.join()  # the main process hears of it here
        if ends_before:
            with pytest.raises(
                OSError, match=r"num_workers = 1: a loader worker was killed by signal SIGKILL"
            ):
                list(islice(loader, 100))
        loader.close()
