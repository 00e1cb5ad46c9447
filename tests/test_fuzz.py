"""Damaged and hostile files: a named cause or a result, never anything else, and no code from a file.

Every reader of the project is here: tars, zips and images, indices and offsets, stored targets, checkpoints,
saved models, probe results, recipes. Mutations are functions of a seed. Half of them damage bytes; the other
half know the format: they write a file that is well-formed, with checksums that hold, and lies somewhere in
it. `make test` tries some, drawn by hypothesis; `make torture` all 5,000 and more, each within 10 seconds and
a gigabyte.
"""

import copy
import io
import json
import pickle
import random
import sys
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from tests.data import hostile
from tests.data.caches import write_cache
from tests.data.shards import sample_members, tiny_jpeg, write_dataset, write_shard
from tests.runs import write_recipe
from veca import Veca, create_model, load_model
from veca.cli.fit import VecaCLI
from veca.cli.main import main
from veca.data.decode import BadImage, decode
from veca.data.index import (
    Shard,
    check_shards,
    index_to_json,
    load_index,
    load_offsets,
    open_sources,
    shard_name,
)
from veca.data.loader import BatchDataset, FreshViews
from veca.data.order import Request
from veca.data.reader import ShardReader
from veca.data.stored_targets import TargetsSource
from veca.data.stored_views import StoredViews, check_replay
from veca.probes.results import Cell, Results, elastic_picture, markdown, read_results, table, write_results
from veca.train.checkpointing import SafeCheckpointIO, newest_intact
from veca_data.source import open_source, read_entry

CASES = 500  # of each kind
KINDS = ("tar", "archive", "image", "index", "offsets", "cache", "checkpoint", "model", "probe", "config")
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

NASTY = [
    None,
    True,
    -1,
    0,
    1.5,
    2**31,
    2**63,
    2**200,
    1e308,
    float("nan"),
    float("inf"),
    "",
    "../x",
    "\0",
    "ä" * 999,
]

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


def changed(body: Any, chance: random.Random) -> Any:
    """The same lists and dicts with one thing in them left out, doubled, renamed or awkward."""
    if isinstance(body, dict | list) and body and chance.random() < 0.9:
        key: Any = chance.choice(list(body)) if isinstance(body, dict) else chance.randrange(len(body))
        match chance.randrange(12):
            case 0:
                del body[key]
            case 1 if isinstance(body, dict):
                body[chance.choice(["", "x", 3])] = body.pop(key)
            case 1:
                body.insert(key, body[key])
            case _:
                body[key] = changed(body[key], chance)
        return body
    if isinstance(body, torch.Tensor) and chance.random() < 0.7:
        return _changed_tensor(body, chance)
    return copy.deepcopy(chance.choice([*NASTY, [], {}, [[]], {"": {}}, [None], {"x": 1}]))


def _changed_tensor(tensor: torch.Tensor, chance: random.Random) -> torch.Tensor:
    makers: list[Callable[[torch.Tensor], torch.Tensor]] = [
        lambda it: it * torch.nan,
        lambda it: it[None],
        lambda it: it.reshape(-1)[:0],
        lambda it: it.to(torch.complex64),
        lambda it: it.to(torch.int8),
        lambda it: it.to_sparse(),
        lambda it: it.to(torch.float64),
        lambda it: it.reshape(-1)[:1].expand(2**40),  # 8 terabytes that are 4 bytes
    ]
    return chance.choice(makers)(tensor)


def changed_json(text: bytes, seed: int) -> bytes:
    return json.dumps(changed(json.loads(text), random.Random(seed))).encode()


def must_name(error: Exception, word: str) -> None:
    if word not in str(error):
        pytest.fail(f"does not name {word}: {error!r}")


@pytest.fixture(scope="module")
def reader_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Callable[[int], None]]:
    """For each kind, a function of a seed that makes a damaged file and reads it."""
    makers = {
        "tar": _tars,
        "archive": _archives,
        "image": _images,
        "index": _indexes,
        "offsets": _offsets,
        "cache": _caches,
        "checkpoint": _checkpoints,
        "model": _models,
        "probe": _probes,
        "config": _configs,
    }
    return cache(lambda kind: makers[kind](tmp_path_factory.mktemp(kind)))


@pytest.mark.parametrize(
    ("kind", "examples"),
    [
        ("tar", 40),
        ("archive", 40),
        ("image", 60),
        ("index", 60),
        ("offsets", 60),
        ("cache", 20),
        ("checkpoint", 20),
        ("model", 30),
        ("probe", 60),
        ("config", 4),
    ],
)
def test_some_damaged_files(
    kind: str, examples: int, reader_of: Callable[[str], Callable[[int], None]]
) -> None:
    read = reader_of(kind)

    @settings(max_examples=examples, deadline=10_000, suppress_health_check=list(HealthCheck), database=None)
    @given(st.integers(0, 2**31))
    def run(seed: int) -> None:
        read(seed)

    with no_code_run():
        run()


@pytest.mark.torture
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", KINDS)
def test_the_campaign(kind: str, reader_of: Callable[[str], Callable[[int], None]]) -> None:
    read = reader_of(kind)
    with no_code_run():
        for seed in range(CASES):
            try:
                with hostile.bounds():
                    read(seed)
            except BaseException as error:
                error.add_note(f"{kind}, seed {seed}")
                raise


@contextmanager
def no_code_run() -> Iterator[None]:
    """Fails when a process is started or a class looked up by a pickle."""
    executed.clear()
    yield
    assert executed == []


@pytest.fixture
def no_code() -> Iterator[None]:
    with no_code_run():
        yield


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


def _archives(folder: Path) -> Callable[[int], None]:
    """A tar or a zip as the data stage reads them; half of the zips and tars have wrong fields in headers."""
    jpegs = [tiny_jpeg(number) for number in range(3)]
    names = {f"{'deep/' * 30}{number}.jpg": jpeg for number, jpeg in enumerate(jpegs)}
    intact = {
        "x.tar": hostile.plain_tar({"a.jpg": jpegs[2], **names, "b.txt": b"x"}),
        "y.tar": hostile.plain_tar({"a.jpg": jpegs[2], **names}, tar_format=1),
        "z.zip": hostile.whole_zip(*jpegs),
    }

    def run(seed: int) -> None:
        name, chance = list(intact)[seed % 3], random.Random(seed)
        lies = hostile.mutated_zip if name.endswith("zip") else hostile.mutated_tar
        damaged = lies(chance, intact[name]) if chance.random() < 0.5 else mutate(intact[name], seed)
        (folder / name).write_bytes(damaged)
        try:
            source = open_source(folder / name)
            source.check_whole()
            for entry in source.listing.entries():
                try:
                    read_entry(source.root, entry)
                except BadImage as error:
                    must_name(error, error.reason)
        except (ValueError, OSError) as error:
            must_name(error, name)

    return run


def _indexes(folder: Path) -> Callable[[int], None]:
    write_dataset(folder, [3, 2], [2])
    path = folder / "index.json"
    intact = path.read_bytes()

    def run(seed: int) -> None:
        path.write_bytes(changed_json(intact, seed) if seed % 2 else mutate(intact, seed))
        try:
            (source,) = open_sources(str(folder))
            check_shards(source.shards("train") + source.shards("val"))
        except (ValueError, FileNotFoundError) as error:
            must_name(error, str(folder))

    return run


def _offsets(folder: Path) -> Callable[[int], None]:
    """Headers that state another array than the one that follows, and arrays with other numbers."""
    write_dataset(folder, [3])
    path = folder / "train-000000.offsets.npy"
    intact, numbers = path.read_bytes(), np.load(path)
    kinds = ["<u8", "<i8", "<f8", "|O", "|V8", "<U9", [("a", "<u8")], "<M8[s]", "x", 3]
    lengths = [0, 3, 4, 5, 2**31, 2**40, 2**63, -4]

    def lie(chance: random.Random) -> bytes:
        if chance.random() < 0.5:
            numbers_now = numbers.copy()
            numbers_now[chance.randrange(4)] = chance.choice([0, 1, 511, 2**31, 2**63, 2**64 - 1])
            file = io.BytesIO()
            np.save(file, numbers_now)
            return file.getvalue()
        shape = tuple(chance.choice(lengths) for _ in range(chance.choice([0, 1, 1, 2])))
        header = {
            "descr": chance.choice(kinds),
            "fortran_order": chance.choice([False, True, 1]),
            "shape": shape,
        }
        text = repr(header).encode()
        return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + numbers.tobytes()

    def run(seed: int) -> None:
        path.write_bytes(lie(random.Random(seed)) if seed % 2 else mutate(intact, seed))
        try:
            load_offsets(path, samples=3)
            (source,) = open_sources(str(folder))
            check_shards(source.shards("train"))
            reader = ShardReader(source.shards("train"), cache=None, max_open=1)
            BatchDataset(reader, FreshViews(0), replace_bad=False).__getitems__(
                Request(np.array([[0, number, 0] for number in range(3)]), 32, [])
            )
        except (ValueError, OSError) as error:
            must_name(error, str(folder))

    return run


def _caches(folder: Path) -> Callable[[int], None]:
    """Stored targets: their index, their tar, and the JSON of one sample in it, with offsets that fit."""
    write_dataset(folder, [3])
    stored = write_cache(folder, resolutions=(32,), views=1)
    names = ("index.json", "train-000000.tar", "train-000000.offsets.npy")
    intact = {name: (stored / name).read_bytes() for name in names}
    with tarfile.open(stored / names[1]) as archive:
        members = [(entry.name, archive.extractfile(entry).read()) for entry in archive]  # type: ignore[union-attr]

    def lie(chance: random.Random) -> None:
        if chance.random() < 0.5:
            (stored / names[0]).write_bytes(changed_json(intact[names[0]], chance.randrange(2**31)))
            return
        samples = [list(members[place : place + 2]) for place in range(0, len(members), 2)]
        sample = chance.choice(samples)
        place = chance.randrange(2)
        name, content = sample[place]
        change = changed_json if name.endswith("json") else mutate
        sample[place] = (name, change(content, chance.randrange(2**31)))
        index = load_index(stored)
        index.splits["train"][0] = write_shard(stored / names[1], samples)
        (stored / names[0]).write_text(index_to_json(index))

    def run(seed: int) -> None:
        if seed % 2:
            lie(random.Random(seed))
        else:
            name = names[seed // 2 % 3]
            (stored / name).write_bytes(mutate(intact[name], seed))
        try:
            (source,) = open_sources(str(folder))
            found = TargetsSource(str(folder)).open()
            check_replay(found, {"train": source.shards("train")}, resolutions=[32])
            views = StoredViews(found, "train", seed=7, max_open=2)
            dataset = BatchDataset(
                ShardReader(source.shards("train"), cache=None, max_open=2), views, replace_bad=False
            )
            dataset.__getitems__(Request(np.array([[0, number, 0] for number in range(3)]), 32, []))
        except (ValueError, OSError) as error:
            if "the view is of an image" not in str(error):
                must_name(error, str(folder))
        finally:
            for name, content in intact.items():
                (stored / name).write_bytes(content)

    return run


def _checkpoints(folder: Path) -> Callable[[int], None]:
    """A run's checkpoint: damaged bytes, or a whole file with something else in it."""
    model = _tiny_model()
    state = {f"student.{name}": tensor for name, tensor in model.state_dict().items()}
    optimizer = {"state": {0: {"momentum": torch.ones(3)}}, "param_groups": [{"lr": 1.0}]}
    content = {"state_dict": state, "student_size": model.size.as_dict(), "global_step": 3}
    content["optimizer_states"] = [optimizer]
    path = folder / "last.ckpt"
    torch.save(content, path)
    intact = path.read_bytes()

    def run(seed: int) -> None:
        if seed % 2:
            torch.save(changed(copy.deepcopy(content), random.Random(seed)), path)
        else:
            path.write_bytes(mutate(intact, seed))
        readers: list[Callable[[], Any]] = [lambda: load_model(path), lambda: newest_intact(folder)]
        readers.append(lambda: SafeCheckpointIO().load_checkpoint(path))
        for reader in readers:
            try:
                reader()
            except ValueError as error:
                must_name(error, str(folder))

    return run


def _models(folder: Path) -> Callable[[int], None]:
    """The two files of a saved model; the header of safetensors is JSON behind its length."""
    _tiny_model().save_pretrained(folder)
    names = ("model.safetensors", "config.json")
    intact = {name: (folder / name).read_bytes() for name in names}
    start = 8 + int.from_bytes(intact[names[0]][:8], "little")

    def lie(name: str, seed: int) -> bytes:
        chance, whole = random.Random(seed), intact[name]
        if name == "config.json":
            return changed_json(whole, seed)
        header = changed_json(whole[8:start], seed)
        length = len(header) if chance.random() < 0.8 else chance.choice([0, 1, 2**31, 2**63, 2**64 - 1])
        return length.to_bytes(8, "little") + header + whole[start:]

    def run(seed: int) -> None:
        name = names[seed // 2 % 2]
        (folder / name).write_bytes(lie(name, seed) if seed % 2 else mutate(intact[name], seed))
        try:
            load_model(folder)
        except ValueError as error:
            must_name(error, str(folder))
        finally:
            (folder / name).write_bytes(intact[name])

    return run


def _tiny_model() -> Veca:
    torch.manual_seed(0)
    return create_model("tiny", width=32, depth=1, num_heads=1, num_cores=8)


def _probes(folder: Path) -> Callable[[int], None]:
    """The JSON of a probe, read as the report reads it."""
    cells = [
        Cell("model", 8, 256, {"top-1": 0.5}, chosen={"learning rate": 0.1}),
        *(Cell("random weights", 8, 256, {"top-1": 0.2}, seed=seed) for seed in (0, 1)),
    ]
    paper = [Cell("paper: VECA-B", 64, 256, {"top-1": 0.8})]
    path = folder / "linear.json"
    write_results(
        path, Results("linear", "m", "d", ["top-1"], cells, counts={"train": {"ä": 3}}, paper=paper)
    )
    intact = path.read_bytes()

    def run(seed: int) -> None:
        path.write_bytes(changed_json(intact, seed) if seed % 2 else mutate(intact, seed))
        try:
            if (results := read_results(path)) is not None:
                markdown(table(results))
                elastic_picture(results)
        except ValueError as error:
            must_name(error, str(path))

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
