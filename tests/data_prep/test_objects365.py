"""Objects365's annotations against what lies on disk."""

import json
import random

import pytest

import veca_data.objects365 as objects365
from veca_data.sources import open_source

NAMES = [f"patch{i % 3}/objects365_v{1 + i % 2}_{i:08d}.jpg" for i in range(30)]


def _annotate(path, names):
    images = [
        {"id": i, "file_name": f"images/v1/{name}", "width": 5, "url": ""} for i, name in enumerate(names)
    ]
    path.write_text(json.dumps({"images": images, "annotations": [{"bbox": [1, 2, 3, 4]}] * 50}))


@pytest.mark.parametrize("flat", [False, True])
def test_listed_but_missing_images_are_rejects(tmp_path, jpegs, flat):
    missing = {NAMES[4], NAMES[17]}
    root = tmp_path / "objects365"
    for i, name in enumerate(NAMES):
        path = root / "images/train" / name.split("/")[1] if flat else root / "train" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name not in missing:
            path.write_bytes(jpegs[i])
    _annotate(root / "zhiyuan_objv2_train.json", NAMES)
    source = open_source(root)
    assert {reject.path for reject in source.rejects} == missing
    assert all("zhiyuan_objv2_train.json" in reject.reason for reject in source.rejects)
    assert len(source.listing) == 28
    assert not source.ignored


def test_annotations_may_lie_elsewhere(tmp_path, photos):
    _annotate(tmp_path / "a.json", ["patch0/x.jpg", "day0/img_000.jpg"])
    source = open_source(photos, annotations=(tmp_path / "a.json",))
    assert [reject.path for reject in source.rejects] == ["patch0/x.jpg"]


@pytest.mark.parametrize("chunk", [64, 97, 1000])
def test_names_are_found_across_chunks(tmp_path, monkeypatch, chunk):
    names = [f"patch{i}/{'é' * random.Random(i).randrange(5)}_{i}.jpg" for i in range(200)]
    _annotate(tmp_path / "a.json", names)
    monkeypatch.setattr(objects365, "_CHUNK", chunk)
    monkeypatch.setattr(objects365, "_OVERLAP", 80)
    assert list(objects365.file_names(tmp_path / "a.json")) == [f"images/v1/{name}" for name in names]


def test_another_json_is_named(tmp_path, photos):
    (tmp_path / "b.json").write_text("{}")
    with pytest.raises(ValueError, match=r"b\.json list no images"):
        open_source(photos, annotations=(tmp_path / "b.json",))
