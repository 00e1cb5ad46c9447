"""A replayed view is the pixels the teacher saw, with its targets as nearly as their dtype can say."""

import io
import json
import os
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cosine_similarity

from tests.data.caches import ON_CPU, RESOLUTIONS, write_cache
from tests.data.conftest import MakeShards
from tests.data.shards import tiny_jpeg
from veca.data.datamodule import ShardDataModule
from veca.data.index import open_sources
from veca.data.loader import BatchDataset
from veca.data.order import Request
from veca.data.reader import ShardReader
from veca.data.resolutions import Phase, ResolutionSchedule
from veca.data.stored_targets import DTYPES, Layout, npy_files, npy_rows, open_cache
from veca.data.stored_views import (
    StoredViews,
    check_replay,
    open_targets,
    pack_rows,
    unpack_rows,
    view_of_visit,
)
from veca.teachers import EfficientNetTeacher, OfflineTeacher
from veca.types import Batch, Targets
from veca_data.cache import NamedTeacher, make_cache
from veca_data.pack import make_shards as pack_images

LEAST_COSINE = {"fp16": 0.9999, "bf16": 0.9999, "int8": 0.999}


def dataset(folder: Path, split: str = "train", *, seed: int = 7) -> BatchDataset:
    (source,) = open_sources(str(folder.parent))
    reader = ShardReader(source.shards(split), cache=None, max_open=2)
    views = StoredViews(open_cache(folder), split, seed=seed, max_open=2)
    return BatchDataset(reader, views, replace_bad=False)


def every_view(folder: Path, *, samples: int, resolution: int, views: int) -> Batch:
    refs = [(0, number, visit) for number in range(samples) for visit in range(views)]
    batch, skipped = dataset(folder).__getitems__(Request(np.array(refs, np.int64), resolution, []))
    assert skipped == []
    return batch


def assert_same_targets(cached: Targets, live: Targets, *, least: float) -> None:
    for one, two in zip(open_targets(cached), live, strict=True):
        assert cosine_similarity(one.float(), two, dim=-1).min() >= least


@pytest.mark.parametrize("dtype", list(LEAST_COSINE))
def test_targets_are_those_of_the_replayed_pixels(make_shards: MakeShards, dtype: str) -> None:
    folder, teacher = write_cache(make_shards([4]), dtype=dtype), OfflineTeacher()
    for resolution in RESOLUTIONS:
        batch = every_view(folder, samples=4, resolution=resolution, views=3)
        assert batch.targets is not None
        assert_same_targets(batch.targets, teacher(batch.images), least=LEAST_COSINE[dtype])
        assert len({image.numpy().tobytes() for image in batch.images}) == 12  # no view twice


@pytest.mark.parametrize("dtype", ["fp16", "int8"])
def test_real_photos_and_a_pretrained_teacher(shared_data: Path, tmp_path: Path, dtype: str) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    for path in sorted((shared_data / "photos").iterdir())[:6]:
        shutil.copy(path, photos)
    pack_images(photos, tmp_path / "shards", val_share=0, workers=1)
    teacher = EfficientNetTeacher()
    summary = make_cache(
        tmp_path / "shards",
        NamedTeacher("efficientnet", teacher),
        resolutions=[96],
        views=2,
        dtype=dtype,
        devices=ON_CPU,
        workers=0,
    )
    assert summary is not None
    batch = every_view(summary.out, samples=6, resolution=96, views=2)
    assert batch.targets is not None
    # In another grouping than the cache was made with: rounding differs, and must not matter.
    assert_same_targets(batch.targets, teacher(batch.images), least=LEAST_COSINE[dtype])


def test_pixels_are_those_the_teacher_saw(make_shards: MakeShards) -> None:
    seen: set[bytes] = set()

    class Witness(OfflineTeacher):
        def forward(self, images: torch.Tensor) -> Targets:
            seen.update(image.numpy().tobytes() for image in images)
            return super().forward(images)

    folder = write_cache(make_shards([4]), teacher=Witness())
    replayed = {
        image.numpy().tobytes()
        for resolution in RESOLUTIONS
        for image in every_view(folder, samples=4, resolution=resolution, views=3).images
    }
    assert replayed == seen


def test_every_view_comes_once_in_k_visits() -> None:
    for key in ("a", "b", "c"):
        order = [view_of_visit(1, visit, key, num_views=4) for visit in range(40)]
        assert all(sorted(order[start : start + 4]) == [0, 1, 2, 3] for start in range(0, 40, 4))
        assert len({tuple(order[start : start + 4]) for start in range(0, 40, 4)}) > 3
    first = Counter(view_of_visit(1, 0, f"k{n}", num_views=4) for n in range(400))
    assert min(first.values()) > 60  # one epoch mixes all views
    assert [view_of_visit(2, v, "a", num_views=4) for v in range(40)] != order
    assert view_of_visit(1, 17, "a", num_views=1) == 0


def test_validation_takes_the_centre_with_its_targets(make_shards: MakeShards) -> None:
    folder = write_cache(make_shards([4], val=[5]))
    found = []
    for targets in (None, str(folder)):
        data = ShardDataModule(
            sources=str(folder.parent),
            targets=targets,
            resolutions=ResolutionSchedule([Phase(0, {32: 0.5, 48: 0.5})], batch_size=2),
            num_workers=0,
        )
        data.setup("validate")
        found.append([batch for loader in data.eval_loaders("val") for batch in loader])
    plain, replayed = found
    teacher = OfflineTeacher()
    for one, two in zip(plain, replayed, strict=True):
        assert torch.equal(one.images, two.images)
        assert (one.keys, one.targets) == (two.keys, None)
        assert two.targets is not None
        assert_same_targets(two.targets, teacher(two.images), least=0.9999)


def test_an_image_that_could_not_be_used_is_skipped(make_shards: MakeShards) -> None:
    broken = {
        "s00001": [("s00001.jpg", tiny_jpeg(1)[:300]), ("s00001.json", b"{}")],
        "s00003": [("s00003.txt", b"no image")],
    }
    folder = write_cache(make_shards([5], replace=broken))
    data = dataset(folder)
    refs = np.array([(0, number, 0) for number in range(5)], np.int64)
    batch, skipped = data.__getitems__(Request(refs, 32, []))
    assert batch.keys == ["s00000", "s00002", "s00004"]
    assert [skip.key for skip in skipped] == ["s00001", "sample 3"]
    views = StoredViews(open_cache(folder), "train", seed=0, max_open=1)
    assert "skipped" in views.read_about(0, 1, key="s00001")
    assert "skipped" in views.read_about(0, 3, key="s00003")


def check(folder: Path, shards: Path | None = None, *, resolutions: tuple[int, ...] = (32,)) -> None:
    (source,) = open_sources(str(shards or folder.parent))
    images = {split: source.shards(split) for split in source.index.splits}
    check_replay(open_cache(folder), images, resolutions=resolutions)


def test_a_sound_cache_passes(make_shards: MakeShards) -> None:
    folder = write_cache(make_shards([4, 3], val=[2]))
    check(folder)
    check(folder, resolutions=RESOLUTIONS)


def test_what_does_not_fit_is_named(make_shards: MakeShards) -> None:
    shards = make_shards([4, 3], val=[2])
    folder = write_cache(shards)
    with pytest.raises(ValueError, match=r"resolution: the run needs \[64\], the cache has \[32, 48\]"):
        check(folder, resolutions=(32, 64))
    other = make_shards([4, 3], val=[2], folder="other", name="t")
    with pytest.raises(ValueError, match=r"shards: .*other/train-000000\.tar is not the file") as error:
        check(folder, other)
    assert "val-000000.tar" in str(error.value)
    fewer = make_shards([4], val=[2], folder="fewer")
    with pytest.raises(ValueError, match=r"targets of 2 shards of train, the run 1"):
        check(folder, fewer)


def damage_missing(folder: Path) -> None:
    (folder / "train-000001.tar").unlink()


def damage_truncated(folder: Path) -> None:
    os.truncate(folder / "train-000001.tar", 2000)


def damage_other_weights(folder: Path) -> None:
    other = write_cache(folder.parent, teacher=OfflineTeacher(seed=9))
    shutil.copy(other / "train-000001.tar", folder)


def damage_other_order(folder: Path) -> None:
    """Swap the first two samples, which have one size."""
    offsets = np.load(folder / "train-000001.offsets.npy").tolist()
    data = (folder / "train-000001.tar").read_bytes()
    first, second = data[: offsets[1]], data[offsets[1] : offsets[2]]
    assert len(first) == len(second)
    (folder / "train-000001.tar").write_bytes(second + first + data[offsets[2] :])


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (damage_missing, r"train-000001\.tar: missing"),
        (damage_truncated, r"train-000001\.tar: 2000 bytes, but the index says"),
        (damage_other_weights, r"train-000001\.tar: sample 0 belongs to the cache \w+"),
        (damage_other_order, r"train-000001\.tar: sample 0 is s0000\d\.json, but the image there is s0000\d"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_damaged_shard_is_refused_by_name(make_shards: MakeShards, damage: Any, words: str) -> None:
    folder = write_cache(make_shards([4, 3]))
    damage(folder)
    with pytest.raises((ValueError, FileNotFoundError), match=words):
        check(folder)


def test_damage_in_the_middle_stops_the_run_when_it_is_read(make_shards: MakeShards) -> None:
    folder = write_cache(make_shards([4]))
    path = folder / "train-000000.tar"
    offsets = np.load(folder / "train-000000.offsets.npy").tolist()
    layout = open_cache(folder).spec.layout("train")
    good = path.read_bytes()
    for place, words in (
        (offsets[1] + 512, "decode"),  # the JSON
        (offsets[2] - layout.from_end("r32v0.npy"), "another name or size"),
        (offsets[2] - layout.from_end("r32v0.npy") + 512, "r32v0.npy"),  # the magic of the array
    ):
        path.write_bytes(good[:place] + b"\xff" * 8 + good[place + 8 :])
        check(folder)  # its ends are fine
        every_visit = Request(np.array([(0, 1, visit) for visit in range(3)], np.int64), 32, [])
        with pytest.raises(ValueError, match=rf"train-000000\.tar: sample 1 is damaged.*{words}"):
            dataset(folder).__getitems__(every_visit)


def test_views_are_recorded_in_plain_json(make_shards: MakeShards) -> None:
    views = StoredViews(open_cache(write_cache(make_shards([2]))), "train", seed=0, max_open=1)
    about = views.read_about(0, 1)
    assert set(about["views"]) == {f"r{size}v{view}" for size in RESOLUTIONS for view in range(3)}
    assert json.loads(json.dumps(about)) == about
    assert about["views"]["r48v2"]["resolution"] == 48


WIDTH = 40


def tokens(*shape: int) -> torch.Tensor:
    """Like a transformer's: a few channels ten times as large as the others."""
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(*shape, WIDTH, generator=generator)
    values[..., :2] *= 10
    return values


def there_and_back(values: torch.Tensor, dtype: str) -> torch.Tensor:
    rows = pack_rows(values, dtype)
    assert rows.dtype == torch.uint8
    stored = unpack_rows(rows, dtype)
    return open_targets(Targets(stored, stored)).patches


@pytest.mark.parametrize(
    ("dtype", "least", "error"), [("fp16", 0.999999, 2**-11), ("bf16", 0.99999, 2**-8), ("int8", 0.999, None)]
)
def test_every_token_survives(dtype: str, least: float, error: float | None) -> None:
    values = tokens(5, 17)
    back = there_and_back(values, dtype).float()
    assert cosine_similarity(back, values, dim=-1).min() > least
    largest = values.abs().amax(-1, keepdim=True)
    bound = values.abs() * error if error else largest / 127 * 0.51
    assert bool(((back - values).abs() <= bound + 1e-7).all())


def test_int8_is_what_plain_numpy_makes_of_it() -> None:
    values = tokens(1, 9)
    layout = Layout(WIDTH, "int8", (32,), 1)
    (file,) = npy_files(pack_rows(values[:, :5], "int8").numpy(), layout, 32)
    array = np.load(io.BytesIO(file), allow_pickle=False)
    expected = array["values"].astype(np.float32) * array["scale"].astype(np.float32)[:, None]
    assert np.array_equal(there_and_back(values[:, :5], "int8")[0].numpy(), expected)


def test_a_token_of_zeros_stays_one() -> None:
    assert not there_and_back(torch.zeros(2, 3, WIDTH), "int8").any()


@pytest.mark.parametrize(("dtype", "value"), [("fp16", 1e6), ("bf16", float("nan")), ("int8", 1e9)])
def test_what_a_dtype_cannot_hold_is_refused(dtype: str, value: float) -> None:
    values = tokens(2, 3)
    values[1, 2, 5] = value
    with pytest.raises(ValueError, match=f"values that {dtype} cannot hold"):
        pack_rows(values, dtype)


def as_bytes(file: bytes) -> np.ndarray:
    return np.frombuffer(file, np.uint8)


@pytest.mark.parametrize("dtype", DTYPES)
def test_other_arrays_are_refused(dtype: str) -> None:
    layout = Layout(WIDTH, dtype, (32, 48), 1)
    (file,) = npy_files(pack_rows(tokens(1, 5), dtype).numpy(), layout, 32)
    assert npy_rows(as_bytes(file), layout, 32).shape == (5, layout.row_bytes())

    def saved(array: np.ndarray, **options: bool) -> bytes:
        buffer = io.BytesIO()
        np.save(buffer, array, **options)
        return buffer.getvalue()

    objects = np.array([[print]], dtype=object)
    others = [saved(np.zeros((5, WIDTH), np.float32)), saved(objects, allow_pickle=True)]
    others += [
        saved(np.zeros((5, WIDTH), np.float16, order="F")),
        b"",
        file[:20],
        b"PK" + file[2:],
        bytes(200),
    ]
    cases = {"bytes, not": [file[:-1], file + b"\0"], "begins with": others}
    for words, files in cases.items():
        for bad in files:
            with pytest.raises(ValueError, match=words):
                npy_rows(as_bytes(bad), layout, 32)
    with pytest.raises(ValueError, match="begins with"):
        npy_rows(as_bytes(file), layout, 48)
