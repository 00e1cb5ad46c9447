"""`veca features` against the model called by hand, and what happens on the second call."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import veca.features as command
from tests.data import hostile
from tests.data.shards import write_dataset
from veca import Veca, create_model, preprocess
from veca.data.views import normalise
from veca.features import features, read_features, read_parts, whole_size

SIZES = {"a.png": (80, 64), "deep/b.jpg": (64, 100), "deep/c.png": (80, 64), "d.webp": (70, 70)}


@pytest.fixture(scope="module")
def student() -> Veca:
    torch.manual_seed(0)
    return create_model("tiny", width=32, depth=2, num_heads=2, num_cores=16).eval()


@pytest.fixture(scope="module")
def model(student: Veca, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("model")
    student.save_pretrained(path)
    return str(path)


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    folder = tmp_path / "pictures"
    (folder / "deep").mkdir(parents=True)
    rng = np.random.default_rng(0)
    for name, (width, height) in SIZES.items():
        small = Image.fromarray(rng.integers(0, 255, (6, 6, 3), dtype=np.uint8))
        small.resize((width, height)).save(folder / name)
    return folder


def by_hand(student: Veca, path: Path, budget: int | None = None) -> np.ndarray:  # type: ignore[type-arg]
    with torch.no_grad():
        cls: torch.Tensor = student(preprocess(path, resolution=48), budget=budget).cls
    return cls[0].numpy()


@pytest.mark.parametrize("format", ["npy", "safetensors"])
def test_global_features_are_the_models(
    student: Veca, model: str, pictures: Path, tmp_path: Path, format: str
) -> None:
    features(model, [str(pictures)], out=tmp_path / "out", resolution=48, budget=8, format=format)  # type: ignore[arg-type]
    names, cls = read_features(tmp_path / "out")
    assert sorted(names) == sorted(str(pictures / name) for name in SIZES)
    for name, row in zip(names, cls, strict=True):
        np.testing.assert_allclose(row, by_hand(student, Path(name), 8), atol=1e-5)
    assert all(part.patches is None for part in read_parts(tmp_path / "out"))


@torch.no_grad()
@pytest.mark.parametrize("format", ["npy", "safetensors"])
def test_whole_images_keep_their_proportions(
    student: Veca, model: str, pictures: Path, tmp_path: Path, format: str
) -> None:
    out = tmp_path / "out"
    features(model, [str(pictures)], out=out, resolution=64, view="whole", dense=True, format=format)  # type: ignore[arg-type]
    grids = {}
    for part in read_parts(out):
        assert part.patches is not None
        grids |= dict.fromkeys((Path(name).name for name in part.names), part.patches.shape[1:3])
    assert grids == {"a.png": (4, 5), "c.png": (4, 5), "b.jpg": (6, 4), "d.webp": (4, 4)}
    # 80×64 is a whole number of patches already, so the view is the image itself.
    pixels = np.asarray(Image.open(pictures / "a.png"), dtype=np.float32) / 255
    mean, std = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    images = torch.from_numpy((pixels - mean) / std).permute(2, 0, 1)[None].float()
    wanted = student(images).patches.unflatten(1, (4, 5))[0].numpy()
    (row,) = [
        part.patches[i]
        for part in read_parts(out)
        for i, name in enumerate(part.names)
        if part.patches is not None and name.endswith("a.png")
    ]
    np.testing.assert_allclose(row, wanted, atol=1e-4)


def test_sides_are_the_nearest_whole_patches() -> None:
    assert whole_size((640, 427), resolution=256, patch_size=16) == (384, 256)
    assert whole_size((427, 640), resolution=256, patch_size=16) == (256, 384)
    assert whole_size((1000, 10), resolution=16, patch_size=16) == (1600, 16)


@pytest.mark.parametrize("format", ["npy", "safetensors"])
def test_a_second_call_does_what_is_left(
    model: str,
    pictures: Path,
    tmp_path: Path,
    format: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The first call dies in its second window; the second reads only what that window had."""
    monkeypatch.setattr(command, "WINDOW_PIXELS", 0)
    monkeypatch.setattr(command, "MIN_WINDOW", 2)
    out, run = tmp_path / "out", command._run
    seen: list[int] = []

    def dies(*args, **options):  # type: ignore[no-untyped-def]
        seen.append(1)
        if len(seen) == 2:
            raise KeyboardInterrupt
        return run(*args, **options)

    monkeypatch.setattr(command, "_run", dies)
    with pytest.raises(KeyboardInterrupt):
        features(model, [str(pictures)], out=out, resolution=48, format=format)  # type: ignore[arg-type]
    first, _ = read_features(out)
    assert len(first) == 2
    assert not list(out.glob("*.tmp"))
    features(model, [str(pictures)], out=out, resolution=48, format=format)  # type: ignore[arg-type]
    names, cls = read_features(out)
    assert names[:2] == first
    assert sorted(names) == sorted(str(pictures / name) for name in SIZES)
    assert cls.shape == (4, 32)
    assert "2 images written, 2 were there before" in capsys.readouterr().out


def test_another_setting_wants_another_folder(model: str, pictures: Path, tmp_path: Path) -> None:
    features(model, [str(pictures)], out=tmp_path / "out", resolution=48)
    with pytest.raises(ValueError, match=r"made with budget 16, not 8; resolution 48, not 64"):
        features(model, [str(pictures)], out=tmp_path / "out", resolution=64, budget=8)


def test_bad_images_are_named_and_counted(
    model: str, pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (pictures / "broken.jpg").write_bytes((pictures / "deep" / "b.jpg").read_bytes()[:300])
    (pictures / "text.png").write_text("no image")
    (pictures / "notes.txt").write_text("no image, and does not say it is one")
    features(model, [str(pictures)], out=tmp_path / "out", resolution=48)
    said = capsys.readouterr().out
    assert "1 files are no images and are ignored" in said
    assert "features of 4 images written" in said
    assert "2 could not be read" in said
    lines = (tmp_path / "out" / "rejects.jsonl").read_text().splitlines()
    reasons = {Path(row["name"]).name: row["reason"] for row in map(json.loads, lines)}
    assert reasons["text.png"].startswith("not-an-image")
    assert reasons["broken.jpg"].startswith(("truncated", "damaged"))
    with pytest.raises(ValueError, match="none of the images could be read"):
        features(model, [str(pictures / "text.png")], out=tmp_path / "none", resolution=48)


def test_shards_give_their_keys(model: str, tmp_path: Path) -> None:
    shards = write_dataset(tmp_path / "shards", [3, 2], [1])
    features(model, [str(shards)], out=tmp_path / "out", resolution=32)
    names, cls = read_features(tmp_path / "out")
    assert len(set(names)) == 6
    assert {name.partition("/")[0] for name in names} == {"train-000000", "train-000001", "val-000000"}
    features(model, [str(shards)], out=tmp_path / "out", resolution=32)
    again, rows = read_features(tmp_path / "out")
    assert again == names
    np.testing.assert_array_equal(rows, cls)


@pytest.mark.parametrize(
    ("images", "options", "message"),
    [
        (["missing.jpg"], {}, "neither a file nor a folder"),
        ([], {}, "at least one file"),
        (None, {"budget": 12}, "budget must be one of 8, 16; got 12"),
        (None, {"resolution": 50}, "resolution must be a multiple of 16; got 50. Try 48"),
    ],
)
def test_mistakes_are_told_before_the_work(
    model: str,
    pictures: Path,
    tmp_path: Path,
    images: list[str] | None,
    options: dict[str, int],
    message: str,
) -> None:
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        features(model, [str(pictures)] if images is None else images, out=tmp_path / "out", **options)  # type: ignore[arg-type]
    assert not (tmp_path / "out").exists()


def test_a_file_named_twice_is_a_mistake(model: str, pictures: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="named twice"):
        features(model, [str(pictures), str(pictures / "a.png")], out=tmp_path / "out")


def test_what_is_no_regular_file_is_listed_with_its_reason(
    model: str, pictures: Path, tmp_path: Path
) -> None:
    for kind, (_, make) in hostile.SPECIAL.items():
        make(pictures / f"{kind}.jpg")
    (pictures / "deep" / "up").symlink_to(pictures)
    (pictures / "deep" / "same").symlink_to(pictures / "deep")
    (pictures / "linked.png").symlink_to(pictures / "a.png")
    with hostile.bounds(seconds=20, memory=2**31):
        features(model, [str(pictures)], out=tmp_path / "out", resolution=48)
    assert sorted(read_features(tmp_path / "out")[0]) == sorted(str(pictures / name) for name in SIZES)
    lines = (tmp_path / "out" / "rejects.jsonl").read_text().splitlines()
    rejects = {Path(reject["name"]).name: reject["reason"] for reject in map(json.loads, lines)}
    assert set(rejects) == {*(f"{kind}.jpg" for kind in hostile.SPECIAL), "up", "same"}
    for kind, (what, _) in hostile.SPECIAL.items():
        assert what in rejects[f"{kind}.jpg"]
    assert "link to a folder it lies in" in rejects["up"]


@pytest.mark.parametrize("kind", hostile.SPECIAL)
def test_a_named_file_that_is_none_is_told_before_the_work(model: str, tmp_path: Path, kind: str) -> None:
    what, make = hostile.SPECIAL[kind]
    make(tmp_path / "a.jpg")
    with hostile.bounds(), pytest.raises(ValueError, match=rf"a\.jpg is {what}"):
        features(model, [str(tmp_path / "a.jpg")], out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_mistakes_are_found_before_the_model_is_loaded(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"device must be one that torch finds here.*got 'banana'.* Try c"):
        features("no-model", [str(tmp_path)], out=tmp_path / "out", device="banana")
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"out cannot be written: .*file: it is no folder\. Choose another"):
        features("no-model", [str(tmp_path)], out=tmp_path / "file" / "out")


def box_file(folder: Path, *lines: str) -> Path:
    path = folder / "boxes.csv"
    path.write_text("\n".join(["image,left,top,right,bottom", *lines]) + "\n")
    return path


def test_boxes_are_the_patches_they_touch(model: str, pictures: Path, tmp_path: Path) -> None:
    a, b = pictures / "a.png", pictures / "deep/b.jpg"
    lines = [f"{a},0,0,10,10", f"{a},30,20,50,64", f"{a},17,17,31,31", f"{b},0,0,64,100", f"{a},30,20,50,64"]
    boxes = box_file(tmp_path, *lines)
    whole, out = tmp_path / "whole", tmp_path / "out"
    options = {"resolution": 64, "view": "whole", "dense": True}
    features(model, [str(pictures)], out=whole, **options)  # type: ignore[arg-type]
    features(model, [str(pictures)], out=out, boxes=boxes, **options)  # type: ignore[arg-type]
    dense = {
        name: part.patches[i]
        for part in read_parts(whole)
        for i, name in enumerate(part.names)
        if part.patches is not None
    }
    wanted = {
        f"{a}#0,0,10,10": dense[str(a)][:1, :1],
        f"{a}#30,20,50,64": dense[str(a)][1:, 1:4],
        f"{a}#17,17,31,31": dense[str(a)][1:2, 1:2],
        f"{b}#0,0,64,100": dense[str(b)],
    }
    found = {}
    for part in read_parts(out):
        assert part.patches is not None
        for name, cls, patches in zip(part.names, part.cls, part.patches, strict=True):
            np.testing.assert_allclose(cls, patches.mean((0, 1)), atol=1e-5)
            found[name] = patches
    assert found.keys() == wanted.keys()
    for name, patches in wanted.items():
        np.testing.assert_allclose(found[name], patches, atol=1e-5)


def test_boxes_go_on_and_those_outside_are_rejected(
    model: str, pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a = pictures / "a.png"
    boxes = box_file(tmp_path, f"{a},0,0,10,10", f"{a},200,0,300,10")
    for written in (1, 0):
        features(model, [str(pictures)], out=tmp_path / "out", resolution=64, view="whole", boxes=boxes)
        said = capsys.readouterr().out
        assert f"features of {written} boxes written, {1 - written} were there before" in said
        assert "1 could not be read" in said
        assert "no patch of 16 px lies in the box" in said
    box_file(tmp_path, f"{a},0,0,10,11")
    with pytest.raises(ValueError, match="made with boxes"):
        features(model, [str(pictures)], out=tmp_path / "out", resolution=64, view="whole", boxes=boxes)


def test_a_box_of_no_image_is_a_mistake(model: str, pictures: Path, tmp_path: Path) -> None:
    boxes = box_file(tmp_path, "a.png,0,0,10,10")
    with pytest.raises(ValueError, match=r"1 of its images are not among the given ones, first a.png. Write"):
        features(model, [str(pictures)], out=tmp_path / "out", resolution=64, view="whole", boxes=boxes)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"boxes": Path("b.csv")}, "got view crop. Add --view whole"),
        ({"boxes": Path("b.csv"), "view": "whole", "max_memory": "2GB"}, "do not go together"),
        ({"max_memory": "2GB", "resolution": 512}, "Leave out --resolution and --view"),
        ({"max_memory": "2GB", "dense": True, "format": "safetensors"}, "Add --format npy"),
        ({"max_memory": "2"}, "Try 2GB"),
    ],
)
def test_requests_that_contradict_themselves(
    model: str, pictures: Path, tmp_path: Path, options: dict[str, object], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        features(model, [str(pictures)], out=tmp_path / "out", **options)  # type: ignore[arg-type]


@torch.no_grad()
def test_images_at_their_own_size_within_a_memory(
    student: Veca,
    model: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    tifffile = pytest.importorskip("tifffile")
    pixels = np.random.default_rng(0).integers(0, 255, (100, 150, 3), dtype=np.uint8)
    scans = tmp_path / "scans"
    scans.mkdir()
    for name in ("a.tif", "b.tif"):
        tifffile.imwrite(scans / name, pixels, photometric="rgb", tile=(32, 32))
        pixels = 255 - pixels
    (scans / "c.tif").write_bytes(b"II*\0 and no more")
    out, calls = tmp_path / "out", 0
    real = command.stream_file

    def dies_once(*args, **options):  # type: ignore[no-untyped-def]
        nonlocal calls
        calls += 1
        found = real(*args, **options)
        if calls == 2:
            raise KeyboardInterrupt
        return found

    monkeypatch.setattr(command, "stream_file", dies_once)
    with pytest.raises(KeyboardInterrupt):
        features(model, [str(scans)], out=out, max_memory="8GB", dense=True)
    features(model, [str(scans)], out=out, max_memory="8GB", dense=True)
    said = capsys.readouterr().out
    assert "features of 1 images written, 1 were there before" in said
    assert "damaged" in said
    parts = list(read_parts(out))
    assert [part.names for part in parts] == [[str(scans / "a.tif")], [str(scans / "b.tif")]]
    for part in parts:
        kept = torch.from_numpy(pixels[:96, :144]).permute(2, 0, 1)[None]
        expected = student(normalise(kept))
        assert part.patches is not None
        np.testing.assert_allclose(part.cls, expected.cls.numpy(), atol=1e-5)
        wanted = expected.patches.unflatten(1, (6, 9)).numpy()
        np.testing.assert_allclose(part.patches, wanted, atol=1e-5)
        pixels = 255 - pixels
    assert not [path for path in out.iterdir() if path.name.startswith(".")]
    with pytest.raises(ValueError, match="max_memory must be at least"):
        features(model, [str(scans)], out=tmp_path / "other", max_memory="10MB")


def test_samples_of_shards_are_no_huge_images(model: str, tmp_path: Path) -> None:
    shards = write_dataset(tmp_path / "shards", [2], [])
    with pytest.raises(ValueError, match=r"reads files, not samples of shards such as .*sample 0"):
        features(model, [str(shards)], out=tmp_path / "out", max_memory="2GB")
