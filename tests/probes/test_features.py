"""Features on the disk: right rows in the right order, whatever the batch, the rank or the interruption."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.probes.fakes import FakeBackbone, MemorySplit, label_items, map_items, planted
from veca.probes import features as features_module
from veca.probes.features import Cached, CentreView, Store, Viewer, Windows, extract, open_store

PLANTED = FakeBackbone("planted", planted, 8)


class Rank(NamedTuple):
    """The part of Fabric that extraction uses."""

    global_rank: int = 0
    world_size: int = 1

    def barrier(self) -> None: ...


def store_of(folder: Path, viewer: Viewer, items: int, *, backbone: FakeBackbone = PLANTED) -> Store:
    store = open_store(folder, backbone, viewer, digest="d", num_items=items, about="data")
    return Store(store.folder, items, shard_items=4)


def run(
    store: Store, split: MemorySplit, viewer: Viewer, backbone: FakeBackbone = PLANTED, **rank: int
) -> None:
    extract(backbone, split, store, viewer, fabric=Rank(**rank), label="test")  # type: ignore[arg-type]  # a part of it


@pytest.mark.parametrize("batch", [1, 3, 256])
def test_rows_equal_single_images(tmp_path: Path, batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features_module, "MAX_BATCH", batch)
    split, viewer = label_items([i % 5 for i in range(10)]), CentreView(16)
    store = store_of(tmp_path, viewer, 10)
    run(store, split, viewer)
    cached = Cached(store)
    alone = [PLANTED(torch.from_numpy(viewer.views(item)[0].pixels)[None]).cls for item in split.items]
    torch.testing.assert_close(cached.cls, torch.cat(alone))
    assert [record.item for record in cached.records] == list(range(10))


@pytest.mark.parametrize("whole", [False, True])
def test_patches_and_targets_of_windows_of_any_shape(tmp_path: Path, whole: bool) -> None:
    items = [
        map_items(1, num_classes=4, seed=n, size=size).items[0]
        for n, size in enumerate([(16, 40), (30, 16), (16, 16)] * 2)
    ]
    split, viewer = MemorySplit(items), Windows(16, 8, whole=whole, labelled=not whole)
    store = store_of(tmp_path, viewer, 6)
    run(store, split, viewer)
    cached = Cached(store)
    views = [(place, view) for place, item in enumerate(items) for view in viewer.views(item)]
    assert len(cached) == len(views)
    for number, (place, view) in enumerate(views):
        record = cached.records[number]
        assert (record.item, record.window) == (place, view.window)
        alone = PLANTED(torch.from_numpy(view.pixels)[None])
        assert (record.grid_rows, record.grid_columns) == alone.grid
        assert alone.patches is not None
        torch.testing.assert_close(cached.patches(number), alone.patches[0])
        if view.target is not None:
            assert np.array_equal(cached.target(number).numpy(), view.target)


def test_stores_join(tmp_path: Path) -> None:
    viewer = Windows(16, 8, labelled=True)
    splits = [map_items(5, num_classes=4, seed=seed, size=(16, 30)) for seed in (0, 50)]
    stores = [store_of(tmp_path / str(n), viewer, 5) for n in range(2)]
    for store, split in zip(stores, splits, strict=True):
        run(store, split, viewer)
    first, second, both = Cached(stores[0]), Cached(stores[1]), Cached(*stores)
    last = len(both) - 1
    assert len(both) == len(first) + len(second)
    assert both.records[last].item == 9
    torch.testing.assert_close(both.patches(last), second.patches(len(second) - 1))
    torch.testing.assert_close(both.patches(1), first.patches(1))
    odd = np.arange(10) % 2 == 1
    assert {both.records[view].item for view in both.views_of(odd)} == {1, 3, 5, 7, 9}


def test_an_interrupted_extraction_goes_on(tmp_path: Path) -> None:
    split, viewer = label_items([i % 5 for i in range(10)]), CentreView(16)
    store, whole = store_of(tmp_path / "a", viewer, 10), store_of(tmp_path / "b", viewer, 10)
    run(whole, split, viewer)

    class Stops(MemorySplit):
        def __getitem__(self, place: int):  # type: ignore[no-untyped-def]
            if place == 6:
                raise KeyboardInterrupt
            return super().__getitem__(place)

    with pytest.raises(KeyboardInterrupt):
        run(store, Stops(split.items), viewer)
    assert store.missing() == [1, 2]
    split.reads.clear()
    run(store, split, viewer)
    assert sorted(split.reads) == list(range(4, 10))
    torch.testing.assert_close(Cached(store).cls, Cached(whole).cls)
    split.reads.clear()
    run(store, split, viewer)
    assert split.reads == []


def test_ranks_share_the_shards(tmp_path: Path) -> None:
    split, viewer = label_items([i % 5 for i in range(18)]), CentreView(16)
    alone, shared = store_of(tmp_path / "a", viewer, 18), store_of(tmp_path / "b", viewer, 18)
    run(alone, split, viewer)
    missing = shared.missing()
    for rank in range(2):
        part = MemorySplit(split.items)
        for number in missing[rank::2]:  # what each rank would do, had both looked before either wrote
            shared.write(number, features_module._shard(PLANTED, part, shared.items(number), viewer))
        assert len(set(part.reads)) == (10 if rank == 0 else 8)
    for path in sorted(alone.folder.glob("*.npy")):
        assert path.read_bytes() == (shared.folder / path.name).read_bytes()


def test_no_more_than_two_batches_are_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features_module, "MAX_BATCH", 2)
    split, viewer = label_items([0] * 40), CentreView(16)
    ahead: list[int] = []
    done = 0

    def watch(pixels: Tensor) -> Tensor:
        nonlocal done
        done += len(pixels)
        ahead.append(len(split.reads) - done)
        return planted(pixels)

    backbone = FakeBackbone("watch", watch, 8)
    store = Store(store_of(tmp_path, viewer, 40).folder, 40, shard_items=40)
    run(store, split, viewer, backbone)
    assert max(ahead) <= 2
    assert {calls[0] for calls in backbone.calls} == {2}


def test_batches_shrink_with_resolution(tmp_path: Path) -> None:
    split, viewer = label_items([0, 1]), CentreView(2048)
    backbone = FakeBackbone("large", planted, 8)
    run(store_of(tmp_path, viewer, 2), split, viewer, backbone)
    assert backbone.calls == [(1, 3, 2048, 2048)] * 2


@pytest.mark.parametrize("dense", [False, True])
def test_features_that_are_not_finite_are_refused(tmp_path: Path, dense: bool) -> None:
    def diverged(pixels: Tensor) -> Tensor:
        found = planted(pixels)
        found[-1] = torch.nan
        return found

    split = map_items(3, num_classes=2, seed=0, size=(16, 16))
    viewer: Viewer = Windows(16, 8) if dense else CentreView(16)
    with pytest.raises(ValueError, match="diverged gives features that are not finite, first for 0-2"):
        run(store_of(tmp_path, viewer, 3), split, viewer, FakeBackbone("diverged", diverged, 8))


def test_too_little_room_is_said_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(NamedTuple):
        free: int = 10

    monkeypatch.setattr(features_module.shutil, "disk_usage", lambda _: Full())
    split, viewer = label_items([0] * 10), CentreView(16)
    store = store_of(tmp_path, viewer, 10)
    with pytest.raises(ValueError, match="Give --cache a folder with more room"):
        run(store, split, viewer)
    assert store.missing() == [1, 2]


def test_the_place_depends_on_everything_that_decides_the_content(tmp_path: Path) -> None:
    def place(backbone: FakeBackbone, viewer: Viewer, digest: str) -> str:
        return open_store(tmp_path, backbone, viewer, digest=digest, num_items=1, about="").folder.name

    other = FakeBackbone("planted", planted, 8, budget=8)
    places = {
        place(PLANTED, CentreView(16), "d"),
        place(PLANTED, CentreView(16), "e"),
        place(PLANTED, CentreView(24), "d"),
        place(PLANTED, Windows(16, 8), "d"),
        place(PLANTED, Windows(16, 8, whole=True), "d"),
        place(PLANTED, Windows(16, 8, labelled=True), "d"),
        place(other, CentreView(16), "d"),
    }
    assert len(places) == 7
    assert place(PLANTED, CentreView(16), "d") in places
