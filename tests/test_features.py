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
