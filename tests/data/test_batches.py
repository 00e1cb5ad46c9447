"""What a worker builds: the right pixels, full batches, bad samples counted and never used."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.data.conftest import MakeShards
from tests.data.shards import sample_members, tiny_jpeg
from veca.data.augment import View, centre_view, draw_view, render, sample_generator
from veca.data.batches import BatchDataset, CentreViews, FreshViews, Request, ViewSource
from veca.data.reader import Sample, ShardReader
from veca.data.sources import open_sources
from veca.types import Targets


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
