"""Damaged and hostile files: a named cause or a result, never anything else, and no code from a file.

Mutations are functions of a seed. `make test` tries some, drawn by hypothesis; `make torture` all 2,000.
"""

import io
import json
import pickle
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from tests.data.shards import sample_members, tiny_jpeg, write_dataset, write_shard
from tests.runs import write_recipe
from veca import create_model, load_model
from veca.cli.fit import VecaCLI
from veca.cli.main import main
from veca.data.decode import BadImage, decode
from veca.data.index import Shard, check_shards, load_index, open_sources, shard_name
from veca.data.loader import BatchDataset, FreshViews
from veca.data.order import Request
from veca.data.reader import ShardReader
from veca.train.checkpointing import SafeCheckpointIO, newest_intact

CASES = 400  # of each of the five kinds
RUNS_CODE = {"os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess.Popen", "pickle.find_class"}
MAGIC = (
    b"\0" * 8,
    b"\xff" * 8,
    b"\x7f\xff\xff\xff",
    b"-1",
    b"99999999999",
    b"[" * 4000,
    b"..",
    b"/",
    b"${x}",
)

executed: list[str] = []
sys.addaudithook(lambda event, _: executed.append(event) if event in RUNS_CODE else None)


def mutate(data: bytes, seed: int) -> bytes:
    """One to four small damages: flipped bits, bytes cut out, doubled, replaced by awkward values, an end."""
    chance, body = random.Random(seed), bytearray(data)
    for _ in range(chance.randint(1, 4)):
        start = chance.randrange(len(body) + 1)
        end = min(len(body), start + chance.choice([1, 4, 64, 512]))
        kind = chance.randrange(5)
        if kind == 0 and start < len(body):
            body[start] ^= 1 << chance.randrange(8)
        elif kind == 1:
            del body[start:end]
        elif kind == 2:
            body[start:start] = body[start:end]
        elif kind == 3:
            body[start:start] = chance.choice(MAGIC)
        else:
            del body[chance.randrange(len(body) // 2, len(body) + 1) :]
    return bytes(body)


def must_name(error: Exception, word: str) -> None:
    if word not in str(error):
        pytest.fail(f"does not name {word}: {error!r}")


@pytest.fixture(scope="module")
def try_one(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Callable[[int], None]]:
    """For each kind, a function of a seed that makes a damaged file and reads it."""
    folder = tmp_path_factory.mktemp("fuzz")
    makers = {
        "tar": _tars,
        "image": _images,
        "index": _indexes,
        "checkpoint": _checkpoints,
        "config": _configs,
    }
    return {kind: make(folder / kind) for kind, make in makers.items() if not (folder / kind).mkdir()}


@pytest.mark.parametrize(
    ("kind", "examples"), [("tar", 40), ("image", 60), ("index", 60), ("checkpoint", 20), ("config", 4)]
)
def test_some_damaged_files(
    kind: str, examples: int, try_one: dict[str, Callable[[int], None]], no_code: None
) -> None:
    @settings(max_examples=examples, deadline=10_000, suppress_health_check=list(HealthCheck), database=None)
    @given(st.integers(0, 2**31))
    def run(seed: int) -> None:
        try_one[kind](seed)

    run()


@pytest.mark.torture
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", ["tar", "image", "index", "checkpoint", "config"])
def test_the_campaign(kind: str, try_one: dict[str, Callable[[int], None]], no_code: None) -> None:
    for seed in range(CASES):
        try_one[kind](seed)


@pytest.fixture
def no_code() -> Iterator[None]:
    """Fails when a process is started or a class looked up by a pickle."""
    executed.clear()
    yield
    assert executed == []


def _tars(folder: Path) -> Callable[[int], None]:
    """A damaged tar with the offsets of the intact one, read sample by sample as a worker does."""
    name = shard_name("train", 0)
    info = write_shard(folder / name, [sample_members(f"s{n}", n) for n in range(3)])
    intact = (folder / name).read_bytes()
    refs = np.array([[0, n, 0] for n in range(3)])

    def run(seed: int) -> None:
        (folder / name).write_bytes(mutate(intact, seed))
        reader = ShardReader([Shard(str(folder), info)], cache=None, max_open=1)
        dataset = BatchDataset(reader, FreshViews(0), replace_bad=False)
        try:
            built = dataset.__getitems__(Request(refs, 32, []))
        except OSError as error:
            must_name(error, name)
        else:
            assert len(built.batch.keys) + len(built.skipped) == 3
            assert all(skipped.reason and name in skipped.shard for skipped in built.skipped)

    return run


def _images(folder: Path) -> Callable[[int], None]:
    pixels = Image.open(io.BytesIO(tiny_jpeg(0)))
    files = []
    for kind in ("JPEG", "PNG", "WEBP", "GIF", "TIFF", "BMP"):
        file = io.BytesIO()
        pixels.save(file, kind)
        files.append(file.getvalue())

    def run(seed: int) -> None:
        try:
            assert decode(mutate(files[seed % len(files)], seed)).shape[2] == 3
        except BadImage as error:
            must_name(error, error.reason)

    return run


def _indexes(folder: Path) -> Callable[[int], None]:
    """index.json and the offsets by turns."""
    write_dataset(folder, [3, 2], [2])
    names = ("index.json", "train-000000.offsets.npy")
    intact = {name: (folder / name).read_bytes() for name in names}

    def run(seed: int) -> None:
        name = names[seed % 2]
        (folder / name).write_bytes(mutate(intact[name], seed))
        try:
            (source,) = open_sources(str(folder))
            check_shards(source.shards("train") + source.shards("val"))
        except (ValueError, FileNotFoundError) as error:
            must_name(error, str(folder))
        finally:
            (folder / name).write_bytes(intact[name])

    return run


def _checkpoints(folder: Path) -> Callable[[int], None]:
    """A run's checkpoint, and the two files of a saved model, by turns."""
    torch.manual_seed(0)
    model = create_model("tiny", width=32, depth=1, num_heads=1, num_cores=8)
    state = {f"student.{name}": tensor for name, tensor in model.state_dict().items()}
    size = model.size.as_dict()
    torch.save({"state_dict": state, "student_size": size, "global_step": 3}, folder / "last.ckpt")
    model.save_pretrained(folder)
    names = ("last.ckpt", "model.safetensors", "config.json")
    intact = {name: (folder / name).read_bytes() for name in names}

    def run(seed: int) -> None:
        name = names[seed % 3]
        (folder / name).write_bytes(mutate(intact[name], seed))
        readers: list[Callable[[], Any]] = [lambda: load_model(folder)]
        if name == "last.ckpt":
            readers = [lambda: load_model(folder / name), lambda: newest_intact(folder)]
            readers.append(lambda: SafeCheckpointIO().load_checkpoint(folder / name))
        try:
            for reader in readers:
                try:
                    reader()
                except ValueError as error:
                    must_name(error, str(folder))
        finally:
            (folder / name).write_bytes(intact[name])

    return run


class _Parsed(Exception):
    """The recipe was accepted; nothing was built."""


def _configs(folder: Path) -> Callable[[int], None]:
    write_dataset(folder / "shards", [8], [2])
    intact = write_recipe(folder, folder / "shards", max_steps=1).read_bytes()

    def accept(self: VecaCLI) -> None:
        raise _Parsed

    def run(seed: int) -> None:
        (folder / "damaged.yaml").write_bytes(mutate(intact, seed))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(VecaCLI, "before_instantiate_classes", accept)
            patch.setattr(sys, "argv", ["veca"])
            with pytest.raises((SystemExit, _Parsed)) as ended:
                main(["fit", "--config", str(folder / "damaged.yaml")])
        assert ended.type is _Parsed or ended.value.code == 2  # type: ignore[union-attr]

    return run


class Bomb:
    """Unpickled, it leaves a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (self.path,))


@pytest.mark.parametrize("name", ["last.ckpt", "best.ckpt"])
def test_a_hostile_checkpoint_in_the_runs_folder_is_not_run(tmp_path: Path, name: str) -> None:
    torch.save({"global_step": 3, "state_dict": Bomb(tmp_path / "executed")}, tmp_path / name)
    with pytest.raises(ValueError, match="could run code"):
        newest_intact(tmp_path)
    with pytest.raises(ValueError, match="could run code"):
        SafeCheckpointIO().load_checkpoint(tmp_path / name, weights_only=False)
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("kind", ["pkl", "pickle", "pyd", "pth", "pt"])
def test_a_pickled_member_is_refused(tmp_path: Path, kind: str, no_code: None) -> None:
    members = [*sample_members("s", 1), (f"s.{kind}", pickle.dumps(Bomb(tmp_path / "executed")))]
    info = write_shard(tmp_path / shard_name("train", 0), [members])
    reader = ShardReader([Shard(str(tmp_path), info)], cache=None, max_open=1)
    built = BatchDataset(reader, FreshViews(0), replace_bad=False).__getitems__(
        Request(np.array([[0, 0, 0]]), 32, [])
    )
    assert [skipped.reason for skipped in built.skipped] == ["refused-member"]
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    "name", ["pipe:touch executed", "../train-000000.tar", "train-000000.tar;touch executed"]
)
def test_a_shard_name_that_is_a_command_or_a_path_is_refused(
    tmp_path: Path, name: str, no_code: None
) -> None:
    write_dataset(tmp_path, [2])
    index = json.loads((tmp_path / "index.json").read_text())
    index["splits"]["train"][0]["name"] = name
    (tmp_path / "index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match=r"must look like 'train-000000.tar'"):
        load_index(tmp_path)


@pytest.mark.parametrize("source", ["pipe:cat shards", "file:///etc", "ftp://host/shards"])
def test_a_source_that_is_a_command_is_refused(source: str, no_code: None) -> None:
    with pytest.raises((ValueError, FileNotFoundError)):
        open_sources(source)


def test_a_recipe_cannot_build_python_objects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_code: None
) -> None:
    monkeypatch.setattr(sys, "argv", ["veca"])
    recipe = yaml.safe_load(write_recipe(tmp_path, tmp_path, max_steps=1).read_text())
    text = yaml.safe_dump(recipe) + f"wandb_project: !!python/object/apply:os.mkdir ['{tmp_path}/executed']\n"
    (tmp_path / "evil.yaml").write_text(text)
    with pytest.raises(SystemExit):
        main(["fit", "--config", str(tmp_path / "evil.yaml")])
    assert not (tmp_path / "executed").exists()


def test_an_offsets_file_with_objects_is_refused(tmp_path: Path, no_code: None) -> None:
    write_dataset(tmp_path, [2])
    np.save(tmp_path / "train-000000.offsets.npy", np.array([Bomb(tmp_path / "executed")], dtype=object))
    shard = Shard(str(tmp_path), load_index(tmp_path).splits["train"][0])
    with pytest.raises(FileNotFoundError, match=r"offsets.npy"):
        check_shards([shard])
    assert not (tmp_path / "executed").exists()
