"""What a cache is: its fingerprint, its layout, and how it is found."""

import io
import json
import tarfile
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.data.caches import write_cache
from tests.data.conftest import MakeShards
from veca.data.index import load_index, load_offsets, offsets_name
from veca.data.stored_targets import DTYPES, Cache, CacheSpec, Layout, TargetsSource, open_cache

SPEC = CacheSpec(
    teacher="a",
    weights="0123",
    width=8,
    resolutions=(32,),
    views=2,
    dtype="fp16",
    seed=42,
    precision="32-true",
    images={"train-000000.tar": "aa"},
)


@pytest.mark.parametrize(
    "change",
    [
        {"weights": "4567"},
        {"width": 9},
        {"resolutions": (48,)},
        {"views": 3},
        {"dtype": "bf16"},
        {"seed": 1},
        {"precision": "bf16-mixed"},
        {"images": {"train-000000.tar": "bb"}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_everything_that_decides_the_bytes_is_in_the_fingerprint(change: dict[str, Any]) -> None:
    assert replace(SPEC, **change).fingerprint != SPEC.fingerprint
    assert replace(SPEC, teacher="another name").fingerprint == SPEC.fingerprint
    assert set(asdict(SPEC)) - {"teacher"} >= set(change)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [1, 8, 96, 1280])
def test_arrays_have_the_header_numpy_reads(dtype: str, width: int) -> None:
    layout = Layout(width, dtype, (16, 64), 1)
    for resolution, tokens in ((16, 2), (64, 17)):
        header = layout.npy_headers[resolution]
        array = np.load(io.BytesIO(header + bytes(tokens * layout.row_bytes())), allow_pickle=False)
        assert len(header) % 64 == 0
        if dtype == "int8":
            assert (array["values"].dtype, array["values"].shape) == (np.int8, (tokens, width))
            assert (array["scale"].dtype, array["scale"].shape) == (np.float16, (tokens,))
        else:
            assert (array.dtype, array.shape) == ("<f2" if dtype == "fp16" else "<u2", (tokens, width))
        assert array.nbytes == tokens * layout.row_bytes()


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_layout_is_where_the_tar_has_it(make_shards: MakeShards, dtype: str) -> None:
    folder = write_cache(make_shards([3], val=[2]), views=11, dtype=dtype, resolutions=(16, 112))
    cache = open_cache(folder)
    for split, views in (("train", 11), ("val", 1)):
        (info,) = cache.index.splits[split]
        layout = cache.spec.layout(split)
        offsets = load_offsets(folder / offsets_name(info.name), samples=info.samples).tolist()
        with tarfile.open(folder / info.name) as tar:
            entries = list(tar)
        assert len(layout.members) == 2 * views
        for begin, end in pairwise(offsets):
            about, *arrays = [entry for entry in entries if begin <= entry.offset < end]
            assert about.name.endswith(".json")
            found = {entry.name.partition(".")[2]: (end - entry.offset, entry.size) for entry in arrays}
            assert found == {name: (layout.from_end(name), size) for name, size in layout.members.items()}
            assert end - begin == layout.sample_bytes(json_bytes=about.size)


def found(path: Path, **stated: Any) -> Cache:
    return TargetsSource(str(path), **stated).open()


def test_a_cache_is_found_beside_its_shards(make_shards: MakeShards, tmp_path: Path) -> None:
    shards = make_shards([3])
    with pytest.raises(FileNotFoundError, match=r"there is no cache in .*veca data cache"):
        found(shards)
    half = write_cache(shards, dtype="fp16")
    fine = write_cache(shards, dtype="bf16", views=2)
    assert found(half).folder == half
    assert found(shards, dtype="bf16").folder == fine
    assert found(shards, views=3, teacher="OfflineTeacher").folder == half
    assert found(shards, views=3, teacher=open_cache(half).spec.weights).folder == half
    with pytest.raises(ValueError, match=r"holds 2 caches: targets-.*Give the path of one"):
        found(shards)
    with pytest.raises(ValueError, match=r"teacher is OfflineTeacher / \w+, not dinov3; dtype is fp16, not"):
        found(half, teacher="dinov3", dtype="int8")
    (half / "index.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"is not finished.*goes on where it stopped"):
        found(half)


def test_an_index_that_was_changed_is_refused(make_shards: MakeShards) -> None:
    shards = make_shards([3])
    folder = write_cache(shards)
    with pytest.raises(ValueError, match="holds shards of images"):
        open_cache(shards)
    path = folder / "index.json"
    body = json.loads(path.read_text())
    changes = ({"weights": "0" * 16}, {"views": 5}, {"dtype": "fp8"}, {"more": 1})
    for changed in (*({**body["options"]["targets"], **change} for change in changes), 0.5, []):
        path.write_text(json.dumps({**body, "options": {**body["options"], "targets": changed}}))
        with pytest.raises(ValueError, match="does not fit its fingerprint"):
            open_cache(folder)
    changed = {**body["options"]["targets"], "view_rule": 0}
    path.write_text(json.dumps({**body, "options": {**body["options"], "targets": changed}}))
    with pytest.raises(ValueError, match="made with view rule 0"):
        open_cache(folder)
    assert load_index(folder)
