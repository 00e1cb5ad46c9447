"""From images to a finished dataset: content, determinism, interruptions, refusals."""

import gc
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import veca.utils.files
from veca.data.decode import BadImage, decode
from veca.data.index import load_index, load_offsets
from veca_data.check import check
from veca_data.pack import (
    Job,
    format_of,
    make_shards,
    merge_parts,
    pack_image,
    probe,
    sample_key,
    write_shard,
)
from veca_data.plan import ImageEncoding
from veca_data.records import PARTS, read_record
from veca_data.source import Entry

SHARDS = {"shard_samples": 7, "val_share": 0.1, "workers": 1}


class Crash(BaseException):
    """Stands for the power cut: nothing may catch it."""


def _tar_gz(path: Path, files: dict[str, bytes]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz", compresslevel=1) as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def _objects365(root: Path, jpegs: list[bytes]) -> Path:
    """Objects365 as downloaded, with 8 images per archive."""
    names = ["train/patch0", "train/patch1", "train/patch2", "val/images/v1/patch0", "val/images/v2/patch16"]
    for a, name in enumerate(names):
        members = {f"{Path(name).name}/objects365_v1_{8 * a + i:08d}.jpg": jpegs[8 * a + i] for i in range(8)}
        _tar_gz(root / f"{name}.tar.gz", members)
    return root


def test_samples_are_the_files_and_their_facts(photos, tmp_path, read_samples):
    out = tmp_path / "out"
    summary = make_shards(photos, out, **SHARDS)
    files = {path.relative_to(photos).as_posix(): path.read_bytes() for path in photos.rglob("*.jpg")}
    found = {}
    for samples in read_samples(out).values():
        for sample in samples.values():
            about = json.loads(sample["json"])
            found[about["source"]] = sample["jpg"]
            assert set(about) == {"source", "width", "height"}
    assert found == files
    index = load_index(out)
    assert index.num_samples("train") == 36
    assert index.num_samples("val") == 4
    assert summary.samples == 40
    assert (out / "rejects.jsonl").read_text() == ""
    assert check(out, decode_images=True, workers=1) == []


def test_offsets_point_at_samples(photos, tmp_path):
    out = tmp_path / "out"
    make_shards(photos, out, **SHARDS)
    for shard in load_index(out).splits["train"]:
        data = (out / shard.name).read_bytes()
        offsets = load_offsets(out / shard.name.replace(".tar", ".offsets.npy"), samples=shard.samples)
        for start, stop in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
            with tarfile.open(fileobj=io.BytesIO(data[start:stop])) as tar:
                names = tar.getnames()
            assert len(names) == 2
            assert len({name.partition(".")[0] for name in names}) == 1


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_webdataset_reads_the_shards(photos, tmp_path, jpegs):
    import webdataset

    out = tmp_path / "out"
    make_shards(photos, out, **SHARDS)
    urls = [str(out / shard.name) for shards in load_index(out).splits.values() for shard in shards]
    samples = list(webdataset.WebDataset(urls, shardshuffle=False))
    assert sorted(sample["jpg"] for sample in samples) == sorted(jpegs)
    gc.collect()  # it leaves its files open; the warnings belong here, not to the next test


@pytest.mark.parametrize("kind", ["files", "streams"])
def test_workers_do_not_change_a_byte(photos, jpegs, tmp_path, digests, kind):
    source = photos if kind == "files" else _objects365(tmp_path / "objects365", jpegs)
    options = {"shard_samples": 3, "max_short_side": 32, "quality": 80}
    make_shards(source, tmp_path / "one", **options, workers=1)
    make_shards(source, tmp_path / "two", **options, workers=2)
    assert digests(tmp_path / "one") == digests(tmp_path / "two")


def test_objects365_archives_are_read_without_unpacking(jpegs, tmp_path, sources_of):
    root = _objects365(tmp_path / "objects365", jpegs)
    make_shards(root, tmp_path / "out", shard_samples=3, workers=1)
    found = sources_of(tmp_path / "out")
    assert {split: len(names) for split, names in found.items()} == {"train": 24, "val": 16}
    assert all(name.startswith(f"{split}/") for split, names in found.items() for name in names)
    # Shuffled inside the archive: the numbers of one archive do not simply rise.
    first = [name[-12:] for name in found["train"][:8]]
    assert len({name.split("/")[1] for name in found["train"][:8]}) == 1
    assert first != sorted(first)
    assert len(load_index(tmp_path / "out").splits["train"]) == 9
    assert check(tmp_path / "out", decode_images=True, workers=1) == []
    assert not list((tmp_path / "out" / ".parts").glob("*.tmp"))


@pytest.mark.parametrize("kind", ["tar.gz", "tar", "zip"])
def test_one_archive_gets_a_val_share(jpegs, tmp_path, sources_of, kind):
    files = {f"a/{i}.jpg": data for i, data in enumerate(jpegs)}
    path = tmp_path / f"photos.{kind}"
    if kind == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            for name, data in files.items():
                archive.writestr(name, data)
    else:
        with tarfile.open(path, "w:gz" if kind == "tar.gz" else "w") as tar:
            for name, data in files.items():
                info = tarfile.TarInfo(name)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    make_shards(path, tmp_path / "out", shard_samples=10, workers=1)
    found = sources_of(tmp_path / "out")
    assert len(found["val"]) == 1
    assert sorted(found["train"] + found["val"]) == sorted(files)


def test_a_compressed_archive_with_its_own_splits(jpegs, tmp_path, sources_of):
    files = {f"{'val' if i % 4 == 0 else 'train'}/{i}.jpg": data for i, data in enumerate(jpegs)}
    make_shards(_tar_gz(tmp_path / "x.tar.gz", files), tmp_path / "out", workers=1)
    found = sources_of(tmp_path / "out")
    assert {split: len(names) for split, names in found.items()} == {"train": 30, "val": 10}
    assert all(name.startswith("val/") for name in found["val"])


def test_parts_then_merge_equal_one_run(photos, tmp_path, digests):
    make_shards(photos, tmp_path / "whole", **SHARDS)
    for number in (2, 0, 1):
        out = tmp_path / "parts"
        with pytest.raises((ValueError, FileNotFoundError), match=r"not made yet|no shards"):
            merge_parts(out)
        assert make_shards(photos, out, **SHARDS, part=(number, 3)) is None
    merge_parts(out)
    assert digests(tmp_path / "whole") == digests(out)


def _crash_at(monkeypatch, wanted: int) -> None:
    """Crash at the `wanted`-th rename: just before a file gets its final name."""
    calls = 0
    replace = Path.replace

    def counted(self: Path, target: Path) -> Path:
        nonlocal calls
        calls += 1
        if calls == wanted:
            raise Crash
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", counted)


@pytest.mark.parametrize("kind", ["files", "streams"])
def test_a_crash_before_any_rename_is_healed_by_running_again(
    photos, jpegs, tmp_path, digests, monkeypatch, kind
):
    source = photos if kind == "files" else _objects365(tmp_path / "objects365", jpegs)
    options = {"shard_samples": 16, "workers": 1}
    make_shards(source, tmp_path / "whole", **options)
    expected = digests(tmp_path / "whole")
    for wanted in range(1, 100):
        out = tmp_path / f"crash{wanted}"
        with monkeypatch.context() as patch:
            _crash_at(patch, wanted)
            try:
                make_shards(source, out, **options)
                break  # all renames were reached
            except Crash:
                pass
        for name, digest in digests(out).items():
            assert digest == expected[name], f"{name} is wrong after a crash at rename {wanted}"
        make_shards(source, out, **options)
        assert digests(out) == expected
        shutil.rmtree(out)
    assert wanted > 10


def test_finished_shards_are_not_made_again(photos, tmp_path, digests):
    out = tmp_path / "out"
    make_shards(photos, out, **SHARDS)
    expected = digests(out)
    times = {path.name: path.stat().st_mtime_ns for path in out.glob("*.tar")}
    (out / "train-000001.tar").unlink()
    make_shards(photos, out, **SHARDS)
    assert digests(out) == expected
    changed = {path.name for path in out.glob("*.tar") if path.stat().st_mtime_ns != times[path.name]}
    assert changed == {"train-000001.tar"}


def _children(pid: int) -> list[int]:
    """Descendants by /proc."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, task.read_text().split()):
            found += [child, *_children(child)]
    return found


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks for processes in /proc")
def test_kill_9_leaves_no_workers_and_no_lasting_trace(photos, tmp_path, digests):
    """Killed in the middle of the work, with two workers, and started again."""
    options = {"shard_samples": 1, "val_share": 0.1, "max_short_side": 32}
    make_shards(photos, tmp_path / "whole", **options, workers=1)
    out = tmp_path / "out"
    flags = ["--shard-samples=1", "--val-share=0.1", "--max-short-side=32", "--workers=2"]
    code = "from veca_data.cli import main; main()"
    command = [sys.executable, "-c", code, "shards", str(photos), "--out", str(out), *flags]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while len(list(out.glob("*.tar"))) < 3 and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.005)
    workers = _children(process.pid)
    process.send_signal(signal.SIGKILL)
    process.wait()
    (out / ".train-000030.tar.99999.tmp").write_bytes(b"left over")
    finished = set(digests(out)) - {".train-000030.tar.99999.tmp"}
    assert len(finished) >= 3
    make_shards(photos, out, **options, workers=1)
    assert digests(out) == digests(tmp_path / "whole")
    while any(Path(f"/proc/{pid}/cwd").exists() for pid in workers) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [pid for pid in workers if Path(f"/proc/{pid}/cwd").exists()]


def test_another_dataset_in_the_folder_is_refused_by_name(photos, tmp_path, digests):
    out = tmp_path / "out"
    make_shards(photos, out, **SHARDS)
    before = digests(out)
    for changed, words in [
        ({"seed": 5}, "seed is 0 there and 5 here"),
        ({"shard_samples": 9}, "shard_samples is 7 there and 9 here"),
        ({"quality": 90}, "quality is None there and 90 here"),
        ({"val_share": 0.2}, r"val_share is 0\.1 there and 0\.2 here"),
    ]:
        with pytest.raises(ValueError, match=words):
            make_shards(photos, out, **{**SHARDS, **changed})
    (photos / "new.jpg").write_bytes((photos / "day0" / "img_000.jpg").read_bytes())
    with pytest.raises(ValueError, match="fingerprint is"):
        make_shards(photos, out, **SHARDS)
    assert digests(out) == before


def test_a_finished_dataset_without_its_working_folder_is_still_recognised(photos, tmp_path):
    out = tmp_path / "out"
    make_shards(photos, out, **SHARDS)
    shutil.rmtree(out / ".parts")
    with pytest.raises(ValueError, match="another dataset: seed"):
        make_shards(photos, out, **SHARDS, seed=1)
    (out / "index.json").unlink()
    with pytest.raises(ValueError, match="unknown origin"):
        make_shards(photos, out, **SHARDS)


def test_an_output_folder_inside_the_source_is_refused(photos):
    with pytest.raises(ValueError, match="lies inside the source"):
        make_shards(photos, photos / "shards")
    assert not (photos / "shards").exists()


def test_too_many_rejects_end_in_failure_but_leave_the_list(photos, tmp_path, rejects_of):
    (photos / "bad.jpg").write_bytes(b"words")
    out = tmp_path / "out"
    with pytest.raises(RuntimeError, match=r"1 of 41 images were rejected .*rejects\.jsonl"):
        make_shards(photos, out, **SHARDS)
    assert list(rejects_of(out)) == ["bad.jpg"]
    assert not (out / "index.json").exists()
    made = {path: path.stat().st_mtime_ns for path in out.glob("*.tar")}
    summary = make_shards(photos, out, **SHARDS, max_rejects=0.03)
    assert summary.rejects == 1
    assert (out / "index.json").exists()
    assert {path: path.stat().st_mtime_ns for path in out.glob("*.tar")} == made


def test_bad_files_are_rejects_with_reasons_and_the_rest_survives(
    photos, jpegs, tmp_path, rejects_of, sources_of
):
    bad = {
        "zero.jpg": (b"", "empty"),
        "cut.jpg": (jpegs[0][: len(jpegs[0]) // 2], "truncated"),
        "words.jpg": (b"these are words" * 50, "not-an-image"),
    }
    for name, (data, _) in bad.items():
        (photos / name).write_bytes(data)
    good = ["a.b.c.jpg", "two words.jpg", "日本.jpg", "é.jpg"]
    for name in good:
        (photos / name).write_bytes(jpegs[1])
    (photos / os.fsdecode(b"caf\xe9.jpg")).write_bytes(jpegs[2])
    (photos / "gone.jpg").symlink_to(photos / "nowhere")
    out = tmp_path / "out"
    make_shards(photos, out, **SHARDS, max_rejects=0.2)
    rejects = rejects_of(out)
    assert set(rejects) == {*bad, "gone.jpg"}
    for name, (_, reason) in bad.items():
        assert rejects[name].startswith(reason)
    assert rejects["gone.jpg"] == "unreadable: No such file or directory"
    names = {name for names in sources_of(out).values() for name in names}
    assert names >= {*good, os.fsdecode(b"caf\xe9.jpg")}
    assert len(names) == 45
    assert check(out, workers=1, decode_images=True) == []


def test_a_shard_of_rejects_only_leaves_no_tar(tmp_path, jpegs):
    source = tmp_path / "s"
    source.mkdir()
    for i in range(4):
        (source / f"{i}.jpg").write_bytes(jpegs[i] if i == 0 else b"words")
    out = tmp_path / "out"
    make_shards(source, out, shard_samples=1, val_share=0, workers=1, max_rejects=1)
    assert sum(len(shards) for shards in load_index(out).splits.values()) == len(list(out.glob("*.tar"))) == 1
    assert check(out, workers=1) == []


def test_a_truncated_archive_is_named_and_can_be_replaced(jpegs, tmp_path, digests, sources_of):
    root = _objects365(tmp_path / "objects365", jpegs)
    victim = root / "train" / "patch1.tar.gz"
    whole = victim.read_bytes()
    victim.write_bytes(whole[: len(whole) // 2])
    out = tmp_path / "out"
    with pytest.raises(RuntimeError, match=r"patch1\.tar\.gz: damaged archive \(.* after \d files\)"):
        make_shards(root, out, shard_bytes=10**6, workers=1)
    assert not (out / "index.json").exists()
    assert len(list(out.glob("*.tar"))) == 4
    victim.write_bytes(whole)
    make_shards(root, out, shard_bytes=10**6, workers=1)
    assert len(sources_of(out)["train"]) == 24
    make_shards(root, tmp_path / "fresh", shard_bytes=10**6, workers=1)
    assert digests(out) == digests(tmp_path / "fresh")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"shard_samples": 0}, "shard_samples must be at least 1; got 0"),
        ({"shard_samples": 5, "shard_bytes": 5}, "not both"),
        ({"shard_bytes": -1}, "shard_bytes must be at least 1; got -1"),
        ({"quality": 101}, "quality must be from 1 to 95; got 101"),
        ({"max_short_side": 3}, "max_short_side must be at least 16"),
        ({"max_rejects": 2}, "max_rejects must be a share"),
        ({"part": (4, 4)}, "got 4/4.*the last is 3/4"),
        ({"workers": 0}, "workers must be at least 1"),
    ],
)
def test_wrong_options_are_named_before_anything_is_written(photos, tmp_path, options, words):
    with pytest.raises(ValueError, match=words):
        make_shards(photos, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


@pytest.fixture
def small_disk(tmp_path):
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=100k", "tmpfs", str(disk)], capture_output=True
    )
    if mount.returncode:
        pytest.skip("mounting is not allowed here")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk_is_named_and_finished_shards_stay(photos, small_disk, tmp_path, digests):
    make_shards(photos, tmp_path / "whole", **SHARDS)
    expected = digests(tmp_path / "whole")
    out = small_disk / "out"
    (small_disk / "filler").write_bytes(b"x" * 50_000)
    with pytest.raises(RuntimeError, match="is full"):
        make_shards(photos, out, **SHARDS)
    for name, digest in digests(out).items():
        assert digest == expected[name]
    assert not list(out.rglob("*.tmp"))
    (small_disk / "filler").unlink()
    subprocess.run(["mount", "-o", "remount,size=4m", str(small_disk)], check=True)
    make_shards(photos, out, **SHARDS)
    assert digests(out) == expected


def test_real_photos(shared_data, tmp_path):
    out = tmp_path / "out"
    summary = make_shards(shared_data / "photos", out, shard_bytes=8_000_000, workers=2)
    assert summary.samples == 128
    assert len(summary.splits["train"]) == 3
    assert check(out, decode_images=True, workers=2) == []


def test_renames_are_what_the_crash_test_counts():
    """The crash test intercepts Path.replace; were atomic_path to rename otherwise, it would test nothing."""
    assert "replace" in veca.utils.files.atomic_path.__wrapped__.__code__.co_names


SHARD = "train-000000.tar"


@pytest.fixture
def job(tmp_path) -> Job:
    (tmp_path / PARTS).mkdir()
    return Job(root=Path(), out=tmp_path, encoding=ImageEncoding(), seed=0)


def test_a_bad_image_is_a_reject_and_the_rest_goes_on(job, jpegs, read_samples):
    def read(entry: Entry) -> bytes:
        if entry.size == 1:
            raise BadImage("unreadable", "no")
        return jpegs[entry.size]

    entries = [Entry(f"{i}.jpg", i, 0, "") for i in range(4)]
    write_shard(job, SHARD, entries, read, source_bytes=9)
    record = read_record(job.out, SHARD)
    assert (record.samples, record.source_bytes) == (3, 9)
    assert [tuple(reject) for reject in record.rejects] == [("1.jpg", "unreadable: no")]
    [samples] = read_samples(job.out).values()
    assert [json.loads(sample["json"])["source"] for sample in samples.values()] == [
        "0.jpg",
        "2.jpg",
        "3.jpg",
    ]


def test_an_error_leaves_nothing_behind(job, jpegs):
    def read(entry: Entry) -> bytes:
        if entry.size == 2:
            raise MemoryError
        return jpegs[entry.size]

    with pytest.raises(MemoryError):
        write_shard(job, SHARD, [Entry(f"{i}.jpg", i, 0, "") for i in range(4)], read, source_bytes=0)
    assert [path.name for path in job.out.iterdir()] == [PARTS]
    assert not list((job.out / PARTS).iterdir())


def test_all_wrong_options_are_named_at_once(photos, tmp_path):
    with pytest.raises(ValueError, match=r"(?s)quality must be .*max_rejects must be .*part must be "):
        make_shards(photos, tmp_path / "out", quality=0, max_rejects=2, part=(4, 4))
    assert not (tmp_path / "out").exists()


@given(
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=80).filter(lambda s: "\0" not in s)
)
def test_keys_are_safe_in_a_tar(name):
    key = sample_key(name)
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,40}-[0-9a-f]{12}", key)


@pytest.mark.parametrize(
    ("name", "start"),
    [
        ("a/b c.d.jpg", "b_c_d-"),
        ("Ünïcode.png", "Unicode-"),
        ("图片.jpg", "image-"),
        ("x" * 90 + ".jpg", "x" * 40 + "-"),
        ("patch8/objects365_v1_00420917.jpg", "objects365_v1_00420917-"),
    ],
)
def test_keys_are_readable(name, start):
    assert sample_key(name).startswith(start)


def test_equal_stems_in_different_folders_have_different_keys():
    assert len({sample_key(name) for name in ("a/1.jpg", "b/1.jpg", "a/1.png")}) == 3


KEEP = ImageEncoding()


def test_a_jpeg_is_kept_byte_for_byte(picture, encode):
    data = encode(picture(0, 64, 48))
    assert pack_image(data, KEEP) == ("jpg", data, 64, 48)


@pytest.mark.parametrize("mode", ["1", "L", "P", "LA", "RGBA", "I;16"])
def test_png_of_any_mode_is_kept_and_readable(picture, encode, mode):
    base = picture(1, 64, 48)
    if mode == "I;16":
        image = Image.fromarray(np.asarray(base.convert("L")).astype(np.uint16) * 257)
    else:
        image = base.convert(mode)
    data = encode(image, "PNG")
    packed = pack_image(data, KEEP)
    assert packed == ("png", data, 64, 48)
    assert decode(packed.data).shape == (48, 64, 3)


@pytest.mark.parametrize("mode", ["L", "CMYK"])
def test_jpeg_of_any_mode_is_kept_and_readable(picture, encode, mode):
    data = encode(picture(2, 64, 48).convert(mode))
    packed = pack_image(data, KEEP)
    assert packed.data == data
    assert decode(packed.data).shape == (48, 64, 3)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_size_is_as_displayed(picture, encode, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encode(picture(3, 64, 48), exif=exif)
    shown = (48, 64) if orientation >= 5 else (64, 48)
    assert probe(data) == shown
    assert decode(data).shape[1::-1] == shown


@pytest.mark.parametrize("name", ["BMP", "GIF", "TIFF"])
def test_other_formats_become_png_without_loss(picture, encode, name):
    data = encode(picture(4, 64, 48), name)
    packed = pack_image(data, KEEP)
    assert packed.suffix == "png"
    assert format_of(data) == name
    expected = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(packed.data))), expected)


@pytest.mark.parametrize("name", ["GIF", "WEBP"])
def test_an_animation_gives_its_first_frame(picture, encode, name):
    frames = [picture(i, 64, 48) for i in range(3)]
    options = {"lossless": True} if name == "WEBP" else {}
    data = encode(frames[0], name, save_all=True, append_images=frames[1:], duration=50, **options)
    packed = pack_image(data, KEEP)
    assert packed.suffix == "png"
    shown = np.asarray(Image.open(io.BytesIO(packed.data))).astype(int)
    # GIF has 256 colours, so its frames are near the originals, but nearest to their own.
    errors = [np.abs(shown - np.asarray(frame)).mean() for frame in frames]
    assert int(np.argmin(errors)) == 0


def test_a_still_webp_is_kept(picture, encode):
    data = encode(picture(5, 64, 48), "WEBP")
    assert pack_image(data, KEEP) == ("webp", data, 64, 48)


@pytest.mark.parametrize("name", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF"])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_truncated_files_are_refused(picture, encode, name, share):
    data = encode(picture(6, 64, 48), name)
    with pytest.raises(BadImage):
        pack_image(data[: int(len(data) * share)], KEEP)


def test_a_truncated_jpeg_with_a_whole_thumbnail_is_refused(picture, encode):
    """The thumbnail has an end marker of its own; looking for any would be fooled."""
    thumbnail = encode(picture(7, 16, 16))
    data = encode(picture(7, 64, 48))
    segment = b"\xff\xe2" + (len(thumbnail) + 2).to_bytes(2, "big") + thumbnail
    whole = data[:2] + segment + data[2:]
    assert probe(whole) == (64, 48)
    with pytest.raises(BadImage, match=r"truncated|damaged"):
        probe(whole[:-200])


def test_data_after_the_end_marker_is_no_truncation(picture, encode):
    data = encode(picture(8, 64, 48)) + b"camera's own notes" * 10
    assert pack_image(data, KEEP).data == data


@pytest.mark.parametrize("data", [b"", b"these are words, not pixels\n" * 20, b"\0" * 4096])
def test_what_is_no_image_is_refused(data):
    with pytest.raises(BadImage, match=r"empty|not-an-image"):
        pack_image(data, KEEP)


def test_a_decompression_bomb_is_refused_without_decoding():
    import struct
    import zlib

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">2I5B", 60_000, 60_000, 8, 2, 0, 0, 0)
    png = (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(b"\0" * 100))
        + chunk(b"IEND", b"")
    )
    with pytest.raises(BadImage, match="too-large"):
        pack_image(png, KEEP)


def test_reencoding_shrinks_and_never_enlarges(picture, encode):
    encoding = ImageEncoding(max_short_side=40, quality=90)
    small = pack_image(encode(picture(9, 64, 32)), encoding)
    large = pack_image(encode(picture(9, 320, 160)), encoding)
    assert small[2:] == (64, 32)
    assert large[2:] == (80, 40)
    for packed in (small, large):
        assert packed.suffix == "jpg"
        assert decode(packed.data).shape == (packed.height, packed.width, 3)


def test_reencoding_turns_upright_and_drops_the_exif(picture, encode):
    exif = Image.Exif()
    exif[0x0112] = 6
    image = picture(10, 64, 48)
    packed = pack_image(encode(image, exif=exif, quality=95), ImageEncoding(quality=95))
    assert packed[2:] == (48, 64)
    shown = decode(packed.data).astype(int)
    turns = [Image.Transpose.ROTATE_270, Image.Transpose.ROTATE_90, Image.Transpose.TRANSPOSE]
    errors = [np.abs(shown - np.asarray(image.transpose(turn))).mean() for turn in turns]
    assert errors[0] < 15 < min(errors[1:])
    assert not Image.open(io.BytesIO(packed.data)).getexif()


def test_reencoding_is_antialiased(encode):
    """A fine checkerboard averages to gray; picking pixels would keep black or white."""
    board = (np.indices((512, 512)).sum(axis=0) % 2 * 255).astype(np.uint8)
    packed = pack_image(encode(Image.fromarray(board), "PNG"), ImageEncoding(max_short_side=64, quality=95))
    assert np.abs(decode(packed.data).astype(int) - 127).max() < 12


def test_reencoding_lays_alpha_over_white(encode):
    clear = Image.new("RGBA", (32, 32), (0, 0, 0, 0))
    packed = pack_image(encode(clear, "PNG"), ImageEncoding(quality=92))
    assert decode(packed.data).min() > 250
