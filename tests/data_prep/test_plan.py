"""Which image goes where."""

from pathlib import Path

import numpy as np
import pytest

from veca_data.plan import (
    NO_SPLIT,
    TEST,
    TRAIN,
    VAL,
    ImageEncoding,
    Plan,
    ShardSize,
    folder_splits,
    make_plan,
    ranks,
    split_orders,
)
from veca_data.source import open_source

BY_SEVEN = ShardSize(samples=7)


def _plan(source: Path, *, seed=0, size=BY_SEVEN, val_share=None) -> Plan:
    return make_plan(open_source(source), seed=seed, size=size, val_share=val_share, encoding=ImageEncoding())


def _names(plan: Plan) -> dict[str, list[str]]:
    listing = plan.source.listing
    return {unit.shards[0]: [listing.name(i) for i in unit.chosen] for unit in plan.units}


def _lay(root: Path, names: list[str], size: int = 3) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"x" * size)
    return root


def test_every_image_lies_in_exactly_one_shard(photos):
    plan = _plan(photos, val_share=0.1)
    shards = _names(plan)
    everything = [name for names in shards.values() for name in names]
    assert sorted(everything) == sorted(p.relative_to(photos).as_posix() for p in photos.rglob("*.jpg"))
    assert {name.partition("-")[0] for name in shards} == {"train", "val"}
    assert sum(len(names) for shard, names in shards.items() if shard.startswith("val")) == 4
    assert max(map(len, shards.values())) <= 7


def test_the_plan_does_not_depend_on_the_file_systems_order(photos, tmp_path):
    copy = tmp_path / "again" / "photos"
    for path in sorted(photos.rglob("*.jpg"), reverse=True):
        _lay(copy, [path.relative_to(photos).as_posix()])
    assert _names(_plan(photos)) == _names(_plan(copy))


def test_neighbours_at_the_source_are_no_neighbours_in_a_shard(tmp_path):
    root = _lay(tmp_path / "s", [f"{i:04d}.jpg" for i in range(1000)])
    plan = _plan(root, size=ShardSize(samples=1000), val_share=0)
    [names] = _names(plan).values()
    steps = np.abs(np.diff([int(name[:4]) for name in names]))
    assert (steps == 1).mean() < 0.01
    assert steps.mean() > 250  # a third of the range is what chance gives


def test_the_seed_changes_order_and_split(photos):
    first, second = _names(_plan(photos, seed=0)), _names(_plan(photos, seed=1))
    assert first != second
    assert first["val-000000.tar"] != second["val-000000.tar"]


def test_shards_by_bytes_are_about_equal(tmp_path):
    root = tmp_path / "s"
    sizes = np.random.default_rng(0).integers(1, 2000, 300)
    for i, size in enumerate(sizes):
        _lay(root, [f"{i}.jpg"], int(size))
    plan = _plan(root, size=ShardSize(bytes=20_000), val_share=0)
    shards = [plan.source_bytes(unit) for unit in plan.units]
    assert len(shards) == -(-int(sizes.sum()) // 20_000)
    assert max(shards) < 20_000 + 2000
    assert min(shards) > 20_000 - 2 * 2000


def test_tiny_images_do_not_pile_up_in_one_shard(tmp_path, monkeypatch):
    monkeypatch.setattr("veca_data.plan.MAX_SHARD_SAMPLES", 10)
    root = _lay(tmp_path / "s", [f"{i}.jpg" for i in range(95)])
    plan = _plan(root, size=ShardSize(bytes=10**9), val_share=0)
    assert max(len(unit.chosen) for unit in plan.units) <= 11
    assert len(plan.units) == 10


@pytest.mark.parametrize(
    "names",
    [
        ["train/patch0/a.jpg", "train/patch1/b.jpg", "val/patch0/c.jpg"],
        ["images/train/a.jpg", "images/train/b.jpg", "images/val/c.jpg"],
        ["train/a.jpg", "train/b.jpg", "val/images/v1/patch3/c.jpg"],
    ],
)
def test_own_splits_are_respected(tmp_path, names):
    plan = _plan(_lay(tmp_path / "s", names))
    assert {shard: sorted(found) for shard, found in _names(plan).items()} == {
        "train-000000.tar": names[:2],
        "val-000000.tar": names[2:],
    }
    with pytest.raises(ValueError, match=r"val_share must be left out .* got 0\.5"):
        _plan(tmp_path / "s", val_share=0.5)


def test_a_test_folder_never_leaks_into_training(tmp_path):
    names = [f"train/{i}.jpg" for i in range(20)] + [f"test/{i}.jpg" for i in range(5)] + ["masks/0.jpg"]
    plan = _plan(_lay(tmp_path / "s", names), size=ShardSize(samples=100))
    shards = _names(plan)
    assert sorted(shards["test-000000.tar"]) == sorted(names[20:25])
    assert len(shards["val-000000.tar"]) == 1
    assert len(shards["train-000000.tar"]) == 19
    assert plan.ignored["outside train/, val/ and test/"] == 1


@pytest.mark.parametrize(
    ("count", "share", "val"), [(1, 0.01, 0), (2, 0.01, 1), (2, 0.9, 1), (150, 0.01, 2), (10, 0, 0)]
)
def test_val_gets_its_share_and_at_least_one(tmp_path, count, share, val):
    plan = _plan(_lay(tmp_path / "s", [f"{i}.jpg" for i in range(count)]), val_share=share)
    shards = _names(plan)
    assert sum(len(names) for shard, names in shards.items() if shard.startswith("val")) == val


def test_a_name_listed_twice_is_a_reject(tmp_path):
    _lay(tmp_path, ["a.jpg", "b.jpg"])
    (tmp_path / "list.txt").write_text("a.jpg\nb.jpg\na.jpg\n")
    plan = _plan(tmp_path / "list.txt", val_share=0)
    assert sorted(_names(plan)["train-000000.tar"]) == ["a.jpg", "b.jpg"]
    assert [tuple(reject) for reject in plan.rejects] == [("a.jpg", "the same name comes twice")]


@pytest.mark.parametrize("share", [-0.1, 1.0, 7])
def test_bad_val_share(photos, share):
    with pytest.raises(ValueError, match="val_share must be at least 0 and below 1"):
        _plan(photos, val_share=share)


def test_options_tell_sources_apart(photos):
    before = _plan(photos).options
    assert _plan(photos).options == before
    victim = next(photos.rglob("*.jpg"))
    victim.write_bytes(victim.read_bytes() + b"x")
    assert _plan(photos).options["fingerprint"] != before["fingerprint"]


def test_folders_tell_the_split():
    names = [b"train/a.jpg", b"images/train/b.jpg", b"val/images/v1/c.jpg", b"test/d.jpg", b"e/train/f.jpg"]
    assert list(folder_splits(names)) == [TRAIN, TRAIN, VAL, TEST, NO_SPLIT]


@pytest.mark.parametrize("names", [["a.jpg"], ["train/a.jpg", "b.jpg"], ["training/a.jpg", "val.jpg"], []])
def test_other_folders_tell_no_split(names):
    assert folder_splits(name.encode() for name in names) is None


def test_a_share_without_a_minimum_is_right_on_average():
    """Thousands of small archives, each deciding for itself, still give the wanted share together."""
    rank = ranks(np.arange(50_000, dtype=np.uint64), seed=3)
    pieces = [
        split_orders(piece, np.ones(10, dtype=bool), codes=None, val_share=0.02, at_least_one=False)
        for piece in rank.reshape(-1, 10)
    ]
    assert 800 < sum(len(piece.get("val", [])) for piece in pieces) < 1200
    assert all(len(piece.get("val", [])) + len(piece["train"]) == 10 for piece in pieces)


def test_ranks_shuffle_and_depend_on_the_seed():
    hashes = np.arange(10_000, dtype=np.uint64)
    orders = [np.argsort(ranks(hashes, seed=seed)) for seed in (0, 1)]
    for order in orders:
        assert sorted(order) == list(range(10_000))
        assert abs(np.corrcoef(order, np.arange(10_000))[0, 1]) < 0.05
    assert (orders[0] == orders[1]).mean() < 0.01


def test_the_shuffle_never_changes():
    """Resuming with a later release relies on these very numbers."""
    assert ranks(np.array([1, 2**63], dtype=np.uint64), seed=7).tolist() == [
        4414019431610648415,
        9098656213007624980,
    ]
