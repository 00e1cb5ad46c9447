"""Making a cache: the same bytes however it is made, and mistakes named before the teacher runs."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import webdataset

from tests.data.caches import ON_CPU, RESOLUTIONS, write_cache
from tests.data.shards import tiny_jpeg, write_dataset
from veca.data.stored_targets import open_cache
from veca.teachers import OfflineTeacher
from veca_data.cache import NamedTeacher, TeacherPass, ViewBatch, cache, load_teacher, make_cache, read_recipe
from veca_data.cli import main

OFFLINE = "veca.teachers.OfflineTeacher"
COMMAND = [str(Path(sys.executable).with_name("veca-data")), "cache"]  # ranks are started by its name
OPTIONS = ["--teacher", OFFLINE, "--resolutions", "32,48", "--views", "3", "--accelerator", "cpu"]


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    return write_dataset(tmp_path / "shards", [6, 5, 7, 4], [3])


def copy_of(shards: Path, name: str) -> Path:
    return write_dataset(shards.parent / name, [6, 5, 7, 4], [3])


def run(arguments: list[str], *, kill_at: Path | None = None) -> str:
    """Run the command as a user does; with `kill_at`, kill it without a warning once that file is there."""
    launch = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "NODE_RANK", "LOCAL_RANK", "RANK")
    environment = {name: value for name, value in os.environ.items() if name not in launch}
    process = subprocess.Popen(
        [*COMMAND, *arguments],
        env={**environment, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    if kill_at is not None:
        while not kill_at.exists() and process.poll() is None:
            time.sleep(0.002)
        os.killpg(process.pid, signal.SIGKILL)
    output, _ = process.communicate(timeout=200)
    assert kill_at is not None or process.returncode == 0, output
    return output


def test_the_index_names_the_teacher_and_its_licence(shards: Path) -> None:
    named = NamedTeacher("facebook/dinov3-vits16-pretrain-lvd1689m", OfflineTeacher())
    made = make_cache(shards, named, resolutions=[32], views=1, dtype="int8", devices=ON_CPU, workers=0)
    assert made is not None
    record = open_cache(made.out).index.options["teacher_facts"]
    assert record["license_name"] == "dinov3-license"
    assert record["teacher"] == "facebook/dinov3-vits16-pretrain-lvd1689m, under Meta's DINOv3 licence"


def test_the_same_bytes_again_after_a_failure_and_with_workers(
    shards: Path, monkeypatch: pytest.MonkeyPatch, digests: Any
) -> None:
    whole = digests(write_cache(shards))
    assert "train-000003.tar" in whole
    again = copy_of(shards, "again")
    step = TeacherPass.predict_step

    def fail(self: TeacherPass, batch: ViewBatch, batch_idx: int) -> int:
        if batch.request.shard.name == "train-000002.tar" and batch.request.first:
            raise OSError("no space left")
        return step(self, batch, batch_idx)

    monkeypatch.setattr(TeacherPass, "predict_step", fail)
    with pytest.raises(OSError, match="no space left"):
        write_cache(again)
    monkeypatch.undo()
    (folder,) = again.glob("targets-*")
    left = {path.name for path in folder.iterdir()}
    assert {"train-000000.tar", "train-000001.tar"} < left
    assert not left & {"train-000002.tar", "index.json"}
    assert not [name for name in left if name.endswith(".tmp")]
    before = (folder / "train-000001.tar").stat().st_mtime_ns
    assert digests(write_cache(again, workers=1)) == whole
    assert (folder / "train-000001.tar").stat().st_mtime_ns == before  # not made twice


def test_killed_and_restarted_on_two_ranks_gives_the_same_cache(shards: Path, digests: Any) -> None:
    whole = write_cache(shards)
    copy = copy_of(shards, "copy")
    folder = copy / whole.name
    two = [str(copy), *OPTIONS, "--devices", "2", "--workers", "0"]
    run(two, kill_at=folder / ".parts" / "train-000000.json")
    assert not (folder / "index.json").exists()
    output = run(two)
    assert digests(folder) == digests(whole)
    assert "made in" in output  # said by the rank that finds everything there
    assert not list(folder.glob(".*.tmp"))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # it leaves files open
def test_plain_webdataset_and_numpy_read_it(shards: Path) -> None:
    folder = write_cache(shards, dtype="int8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WDS_SECURE", "1")
        plain = webdataset.WebDataset(str(folder / "train-000000.tar"), shardshuffle=False).decode()
        samples = list(plain)
    assert [sample["__key__"] for sample in samples] == [f"s{number:05d}" for number in range(6)]
    for sample in samples:
        arrays = {name: value for name, value in sample.items() if name.endswith(".npy")}
        assert sorted(arrays) == [f"r{size}v{view}.npy" for size in RESOLUTIONS for view in range(3)]
        assert arrays["r48v2.npy"]["values"].shape == (10, 96)
        assert sample["json"]["targets"] == open_cache(folder).spec.fingerprint


def test_bad_images_keep_their_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = [("s00001.jpg", tiny_jpeg(1)[:300]), ("s00001.json", b"{}")]
    shards = write_dataset(tmp_path / "shards", [3], replace={"s00001": broken})
    text = cache(shards, teacher=OFFLINE, resolutions=[32], views=2, dtype="fp16", devices="1", workers=0)
    assert "rejected 1 (" in text
    (folder,) = shards.glob("targets-*")
    offsets = np.load(folder / "train-000000.offsets.npy")
    assert np.diff(offsets)[1] == 1024 < np.diff(offsets)[0]


@pytest.mark.parametrize(("multiplies", "expected"), [(True, "bf16-mixed"), (False, "32-true")])
def test_auto_records_what_it_came_to_and_names_the_same_teacher(
    multiplies: bool, expected: str, shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("veca.utils.precision", "veca_data.cache"):
        monkeypatch.setattr(f"{module}.cpu_multiplies_bf16", lambda: multiplies)
    options: dict[str, Any] = {
        "teacher": OFFLINE,
        "resolutions": [32],
        "views": 1,
        "dtype": "fp16",
        "workers": 0,
    }
    for precision in ("32-true", "auto"):
        told = cache(shards, precision=precision, accelerator="cpu", devices="1", **options)
        assert told is not None
        assert "--model.teacher null --data.targets" in told
    specs = [open_cache(folder).spec for folder in shards.glob("targets-*")]
    assert {spec.precision for spec in specs} == {"32-true", expected}  # without bf16, one cache
    assert len(specs) == 1 + multiplies
    assert {spec.weights for spec in specs} == {OfflineTeacher().fingerprint()}


def test_a_recipe_gives_teacher_resolutions_and_precision(tmp_path: Path) -> None:
    recipe = read_recipe(Path(__file__).parents[2] / "recipes" / "multires_base.yaml")
    assert recipe.teacher["init_args"] == {"name_or_path": "facebook/dinov3-vitb16-pretrain-lvd1689m"}
    assert (recipe.resolutions, recipe.precision) == ([256, 384, 512, 768], "bf16-mixed")
    named = load_teacher({"class_path": OFFLINE, "init_args": {"seed": 5}})
    assert named.name == "OfflineTeacher"
    assert named.teacher.fingerprint() == OfflineTeacher(seed=5).fingerprint()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "name the teacher: --config RECIPE"),
        (["--config", "cached_pretrain_base"], "must have a model.teacher"),
        (["--config", "demo"], "must have a model.teacher"),
        (["--teacher", "veca.teachers.NoTeacher"], "Try veca.teachers.EfficientNetTeacher"),
        (["--teacher", OFFLINE, "--resolutions", "250"], "multiple of 16; got 250. Try 256"),
        (["--teacher", OFFLINE, "--views", "0"], "views must be at least 1"),
        (["--config", "nowhere.yaml"], "recipe nowhere.yaml: must be an existing file"),
        (["--teacher", OFFLINE, "--seed", "-1"], "seed must not be negative"),
        (["--teacher", OFFLINE, "--batch-size", "0"], "batch_size must be at least 1"),
    ],
)
def test_mistakes_are_one_line(
    shards: Path, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["cache", str(shards), *arguments])
    assert stop.value.code == 2
    assert words in capsys.readouterr().err
    assert not list(shards.glob("targets-*"))


def test_a_cache_is_no_teacher_for_another(shards: Path) -> None:
    folder = write_cache(shards)
    with pytest.raises(ValueError, match="is no teacher: stored targets"):
        load_teacher({"class_path": "veca.teachers.CachedTargets", "init_args": {"path": str(folder)}})
    with pytest.raises(ValueError, match="is remote"):
        write_cache("https://host/shards")  # type: ignore[arg-type]


def test_nothing_inside_needs_a_pickle(shards: Path, read_samples: Any) -> None:
    for samples in read_samples(write_cache(shards)).values():
        for members in samples.values():
            json.loads(members.pop("json"))
            assert all(data.startswith(b"\x93NUMPY") and b"O" not in data[10:80] for data in members.values())
