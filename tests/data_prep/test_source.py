"""What is found in folders, archives and lists."""

import json
import os
import pickle
import random
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from veca.data.decode import BadImage
from veca.data.folders import MAX_FILE_BYTES
from veca_data import source as objects365
from veca_data.pack import sample_key
from veca_data.source import ImageSource, Listing, open_source, read_entry


def _contents(source: ImageSource) -> dict[str, bytes]:
    return {entry.name: read_entry(source.root, entry) for entry in source.listing.entries()}


def _files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*.jpg")}


def test_a_folder_tree(photos):
    (photos / "notes.txt").write_text("x")
    (photos / ".hidden.jpg").write_text("x")
    (photos / "day0" / "._img_000.jpg").write_text("x")
    source = open_source(photos)
    wanted = {name: data for name, data in _files(photos).items() if "/." not in f"/{name}"}
    assert _contents(source) == wanted
    assert dict(source.ignored) == {".txt": 1}
    assert source.total_bytes == sum(map(len, wanted.values()))


@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_an_archive_and_a_folder_of_archives(photos, tmp_path, kind):
    files = _files(photos)
    path = tmp_path / "archives" / "sub" / f"a.{kind}"
    path.parent.mkdir(parents=True)
    if kind == "zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in files.items():
                archive.writestr(name, data)
    else:
        with tarfile.open(path, "w") as tar:
            tar.add(photos, arcname=".")
    assert _contents(open_source(path)) == files
    prefixed = {f"sub/a.{kind}/{name}": data for name, data in files.items()}
    assert _contents(open_source(tmp_path / "archives")) == prefixed


def test_a_list_of_paths(photos, tmp_path):
    names = sorted(_files(photos))
    lines = [f"photos/{name}" for name in names[:10]] + [str(photos / name) for name in names[10:]]
    path = tmp_path / "list.txt"
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n".join([*lines, "", "photos/absent.jpg"]).encode())
    source = open_source(path)
    assert len(source.listing) == len(names) + 1
    with pytest.raises(BadImage, match="unreadable: No such file"):
        _contents(source)
    assert source.listing.name(len(names)) == "photos/absent.jpg"


def test_loose_images_win_over_the_archives_they_came_from(photos):
    with tarfile.open(photos / "day0.tar.gz", "w:gz") as tar:
        tar.add(photos / "day0")
    source = open_source(photos)
    assert not source.streams
    assert dict(source.ignored) == {".tar.gz": 1}


def test_symlinks_are_followed_and_loops_are_named(photos):
    (photos / "day1" / "up").symlink_to(photos)
    (photos / "elsewhere").symlink_to(photos / "day2", target_is_directory=True)
    (photos / "self.jpg").symlink_to(photos / "self.jpg")
    (photos / "gone.jpg").symlink_to(photos / "nowhere")
    source = open_source(photos)
    assert [reject.path for reject in source.rejects] == ["day1/up"]
    assert source.ignored["links to folders read already"] == 1
    names = [entry.name for entry in source.listing.entries()]
    assert len(names) == 40 + 2
    assert {"day2/img_000.jpg", "self.jpg", "gone.jpg"} < set(names)


def test_a_missing_source_an_empty_one_and_an_unknown_one(tmp_path):
    with pytest.raises(FileNotFoundError, match="does not exist"):
        open_source(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "a.csv").touch()
    with pytest.raises(ValueError, match=r"holds no images \(ignored: \.csv 1\)"):
        open_source(tmp_path / "empty")
    with pytest.raises(ValueError, match="unknown kind"):
        open_source(tmp_path / "empty" / "a.csv")


def test_a_huge_file_is_refused_before_it_is_read(tmp_path):
    path = tmp_path / "p" / "huge.jpg"
    path.parent.mkdir()
    path.touch()
    os.truncate(path, MAX_FILE_BYTES + 1)
    with pytest.raises(BadImage, match="too-large"):
        _contents(open_source(path.parent))


def test_an_unreadable_file_is_named(photos, monkeypatch):
    """Simulated: a test that runs as root may read everything."""
    source = open_source(photos)

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("os.open", refuse)
    with pytest.raises(BadImage, match="unreadable: Permission denied"):
        read_entry(source.root, next(source.listing.entries()))


def test_an_unreadable_folder_is_named(photos, monkeypatch):
    scandir = os.scandir

    def refuse(path):
        if str(path).endswith("day3"):
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    source = open_source(photos)
    assert [tuple(reject) for reject in source.rejects] == [("day3", "unreadable: Permission denied")]
    assert len(source.listing) == 30


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
    assert list(objects365._file_names(tmp_path / "a.json")) == [f"images/v1/{name}" for name in names]


def test_another_json_is_named(tmp_path, photos):
    (tmp_path / "b.json").write_text("{}")
    with pytest.raises(ValueError, match=r"b\.json list no images"):
        open_source(photos, annotations=(tmp_path / "b.json",))


names = st.lists(
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1), max_size=20
)


@given(names)
def test_a_listing_gives_back_what_was_added(wanted):
    listing = Listing()
    for i, name in enumerate(wanted):
        listing.add(name, size=i, place=10 * i)
    assert len(listing) == len(wanted)
    assert [listing.name(i) for i in range(len(wanted))] == wanted
    assert [tuple(entry) for entry in listing.entries()] == [
        (name, i, 10 * i, "") for i, name in enumerate(wanted)
    ]


def test_take_gives_entries_in_the_order_asked():
    listing = Listing()
    for i in range(5):
        if i == 3:
            listing.archives.append("a.tar")
        listing.add("n" * i + ".jpg", size=i, place=i)
    entries = list(listing.entries())
    assert entries[3].archive == "a.tar"
    some = pickle.loads(pickle.dumps(listing.take(np.array([4, 0, 2]))))
    assert list(some.entries()) == [entries[i] for i in (4, 0, 2)]
    assert len(listing.take(np.zeros(0, dtype=np.int64))) == 0


def test_undecodable_names_survive():
    listing = Listing()
    listing.add(b"caf\xe9.jpg", size=1)
    name = listing.name(0)
    assert sample_key(name)
    assert name.encode("utf-8", "surrogateescape") == b"caf\xe9.jpg"
