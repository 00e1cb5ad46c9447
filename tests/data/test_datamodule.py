"""The data module with Lightning's own Trainer: an interrupted run sees what a whole run sees."""

import json
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.cli import LightningCLI
from lightning.pytorch.demos.boring_classes import BoringModel

from tests.data.conftest import MakeShards
from tests.data.run_fit import SCHEDULE, Recorder, SaveEverywhere, data_module, fit
from tests.data.server import serve
from veca.data.datamodule import ShardDataModule
from veca.data.order import Ranks
from veca.data.resolutions import Phase, ResolutionSchedule

RUN_FIT = Path(__file__).with_name("run_fit.py")

# Lightning uses a name that this torch is about to rename.
pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")

RUNS: dict[str, dict[str, Any]] = {
    "epochs": {"max_epochs": 3},
    "steps": {"max_epochs": -1, "max_steps": 12},
    "no validation": {"max_epochs": -1, "max_steps": 12, "limit_val_batches": 0},
    "accumulation": {"max_epochs": -1, "max_steps": 7, "accumulate_grad_batches": 2, "limit_val_batches": 0},
    "accumulation, epochs": {"max_epochs": 2, "accumulate_grad_batches": 3},
    "odd limit": {"max_epochs": 2, "accumulate_grad_batches": 2, "limit_train_batches": 3},
    "validation within epochs": {
        "max_epochs": -1,
        "max_steps": 12,
        "val_check_interval": 3,
        "check_val_every_n_epoch": None,
    },
}


@pytest.fixture
def folder(make_shards: MakeShards) -> Path:
    return make_shards([8, 4, 7], val=[4, 3])  # 19 samples: 6 batches of 3, and 1 left


@pytest.mark.timeout(120)
@pytest.mark.parametrize("options", RUNS.values(), ids=RUNS.keys())
def test_a_run_resumed_anywhere_sees_what_the_whole_run_saw(
    options: dict[str, Any], folder: Path, tmp_path: Path
) -> None:
    """Same keys, pixels, resolution, step, batch number and epoch, from a checkpoint at any place."""
    whole = fit(data_module(folder), callbacks=[SaveEverywhere(tmp_path)], **options)
    for epoch, _, step, size, _, _ in whole.seen:
        assert size == SCHEDULE.resolution(step), epoch
    checkpoints = sorted(tmp_path.glob("*.ckpt"))
    assert len(checkpoints) >= len(whole.seen)
    for path in checkpoints:
        resumed = fit(data_module(folder), ckpt_path=path, **options)
        assert resumed.seen == whole.seen[int(path.stem[:3]) :], path.stem


@pytest.mark.timeout(120)
def test_batch_sizes_that_differ_resume_too(folder: Path, tmp_path: Path) -> None:
    schedule = ResolutionSchedule([Phase(0, {32: 0.5, 48: 0.5})], batch_size={32: 3, 48: 2})
    options: dict[str, Any] = {"max_epochs": -1, "max_steps": 20, "limit_val_batches": 0}
    whole = fit(data_module(folder, resolutions=schedule), callbacks=[SaveEverywhere(tmp_path)], **options)
    assert {(size, len(keys)) for _, _, _, size, keys, _ in whole.seen} == {(32, 3), (48, 2)}
    for path in sorted(tmp_path.glob("*.ckpt"))[::3]:
        resumed = fit(data_module(folder, resolutions=schedule), ckpt_path=path, **options)
        assert resumed.seen == whole.seen[int(path.stem[:3]) :], path.stem


def test_an_epoch_is_complete(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    whole = fit(data_module(folder), max_epochs=2)
    lines = [record.getMessage() for record in caplog.records if "an epoch has" in record.getMessage()]
    assert lines == ["an epoch has 19 samples: 6 batches per rank; 1 samples are left out, others each epoch"]
    epochs = [[key for e, _, _, _, keys, _ in whole.seen if e == epoch for key in keys] for epoch in range(2)]
    assert [len(set(keys)) for keys in epochs] == [18, 18] == [len(keys) for keys in epochs]
    assert epochs[0] != epochs[1]


def kill_and_resume(folder: Path, tmp_path: Path, step: int) -> None:
    """Train in a process with workers, kill it some time after a checkpoint at `step`, resume here."""
    checkpoint = tmp_path / f"{step}.ckpt"
    command = [sys.executable, str(RUN_FIT), str(folder), "2", str(step), str(checkpoint)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "saved\n"
        finally:
            process.kill()  # SIGKILL
    options: dict[str, Any] = {"max_steps": step + 8, "max_epochs": -1, "limit_val_batches": 0}
    whole = fit(data_module(folder), **options)
    resumed = fit(data_module(folder), ckpt_path=checkpoint, **options)
    assert len(resumed.seen) == 8
    assert resumed.seen == whole.seen[step:]


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "number", [0, 1, *(pytest.param(n, marks=pytest.mark.torture) for n in range(2, 20))]
)
def test_a_killed_run_resumes_as_if_nothing_had_happened(number: int, folder: Path, tmp_path: Path) -> None:
    kill_and_resume(folder, tmp_path, step=random.Random(number).randint(1, 30))


@pytest.mark.torture
@pytest.mark.timeout(180)
def test_ranks_of_a_trainer_share_the_data(make_shards: MakeShards, tmp_path: Path) -> None:
    """Lightning's own DDP: no sampler of its own, no hang, training and validation each complete."""
    folder = make_shards([13, 7, 25], val=[4, 4])
    command = [sys.executable, "-m", "tests.data.run_ddp", str(folder), str(tmp_path)]
    subprocess.run(command, check=True, timeout=160, cwd=Path(__file__).parents[2], stdout=subprocess.DEVNULL)
    trained, validated = zip(*(json.loads((tmp_path / f"{r}.json").read_text()) for r in (0, 1)), strict=True)
    assert [len(batches) for batches in trained] == [14, 14]  # 2 epochs of 7 × 2 ranks × 3, 3 samples left
    for epoch in range(2):
        keys = [key for batches in trained for batch in batches[7 * epoch : 7 * epoch + 7] for key in batch]
        assert len(set(keys)) == len(keys) == 42
    for resolution in range(2):
        keys = [
            key for batches in validated for number, batch in batches if number == resolution for key in batch
        ]
        assert Counter(Counter(keys).values()) == {2: 8}  # each image once per epoch


class FailAt(Callback):
    def __init__(self, step: int, path: Path) -> None:
        self.step = step
        self.path = path

    def on_before_optimizer_step(self, trainer: Trainer, *args: Any) -> None:
        if trainer.global_step == self.step:
            trainer.save_checkpoint(self.path)
            raise KeyError("in the middle of a step")


def test_a_checkpoint_within_a_step_repeats_that_step(folder: Path, tmp_path: Path) -> None:
    whole = fit(data_module(folder), max_epochs=2)
    with pytest.raises(KeyError, match="in the middle"):
        fit(data_module(folder), max_epochs=2, callbacks=[FailAt(4, tmp_path / "c.ckpt")])
    resumed = fit(data_module(folder), max_epochs=2, ckpt_path=tmp_path / "c.ckpt")
    assert [row[3:] for row in resumed.seen] == [row[3:] for row in whole.seen[4:]]


def test_a_new_trainer_begins_at_the_beginning(folder: Path) -> None:
    data = data_module(folder)
    assert fit(data, max_steps=4).seen == fit(data, max_steps=4).seen


def saved_state(folder: Path | dict[str, float], **settings: Any) -> dict[str, Any]:
    data = ShardDataModule(
        sources=folder if isinstance(folder, dict) else str(folder),
        num_workers=0,
        resolutions=SCHEDULE,
        **settings,
    )
    data.setup("fit")
    next(iter(data.train_loader()))
    return data.state_dict()


def test_other_data_stops_with_a_message(folder: Path, make_shards: MakeShards) -> None:
    state = saved_state(folder)
    data = ShardDataModule(
        sources=str(make_shards([8, 4], folder="other")),
        seed=7,
        window_shards=3,
        num_workers=0,
        resolutions=SCHEDULE,
    )
    data.setup("fit")
    with pytest.raises(ValueError, match="other data settings") as error:
        data.load_state_dict(state)
    for part in ("seed: 42 then, 7 now", "window_shards: 8 then, 3 now", "fingerprint: "):
        assert part in str(error.value)


def test_another_world_size_sees_each_sample_of_the_epoch_once(folder: Path) -> None:
    seen: list[str] = []
    for rank in range(2):
        data = data_module(folder)
        data.setup("fit")
        batches = iter(data.train_loader(ranks=Ranks(rank, 2)))
        seen += [key for _ in range(2) for key in next(batches).keys]
    state = data.state_dict()
    assert state["samples"] == 12
    resumed = data_module(folder)
    resumed.setup("fit")
    resumed.load_state_dict(state)
    seen += [key for batch in resumed.train_loader() for key in batch.keys]
    assert Counter(Counter(seen).values()) == {1: 18}


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 1)])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_another_batch_size_and_accumulation_lose_and_repeat_nothing(
    before: int, after: int, accumulate: int, folder: Path, tmp_path: Path
) -> None:
    """Lightning counts its epoch in batches, which now mean something else; the samples go on."""
    options: dict[str, Any] = {"max_epochs": -1, "limit_val_batches": 0}
    sizes = {size: ResolutionSchedule([Phase(0, {32: 1.0})], batch_size=size) for size in (before, after)}
    first = data_module(folder, resolutions=sizes[before])
    whole = fit(first, max_steps=15 // before, callbacks=[SaveEverywhere(tmp_path)], **options)
    checkpoint = tmp_path / f"{15 // before:03d}-batch.ckpt"
    resumed = fit(
        data_module(folder, resolutions=sizes[after]),
        ckpt_path=checkpoint,
        max_steps=15 // before + 40,
        accumulate_grad_batches=accumulate,
        **options,
    )
    keys = [key for recorder in (whole, resumed) for *_, batch, _ in recorder.seen for key in batch]
    assert len(whole.seen) * before == 15
    alone = data_module(folder, resolutions=ResolutionSchedule([Phase(0, {32: 1.0})], batch_size=1))
    alone.setup("fit")
    loader = alone.train_loader()
    for _ in range(2):
        order = [batch.keys[0] for batch in loader]  # the whole epoch, sample by sample
        taken = next((n for n in range(19) if order[n] != keys[n]), 19)
        assert taken > 19 - after * accumulate
        keys = keys[taken:]


def test_state_is_plain_enough_for_weights_only_loading(folder: Path, tmp_path: Path) -> None:
    torch.save(saved_state(folder), tmp_path / "state.pt")
    assert torch.load(tmp_path / "state.pt", weights_only=True) == saved_state(folder)


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_validation_sees_the_same_images_on_any_world_size(world_size: int, folder: Path) -> None:
    data = data_module(folder, val_batches={32: 1, 48: 100})
    data.setup("validate")
    found: list[list[tuple[str, bytes]]] = [[], []]
    for rank in range(world_size):
        for number, loader in enumerate(data.eval_loaders("val", ranks=Ranks(rank, world_size))):
            batches = list(loader)
            assert len(batches) == len(loader)
            assert all(batch.images.shape[-1] == (32, 48)[number] for batch in batches)
            rows = [(k, i.numpy().tobytes()) for b in batches for k, i in zip(b.keys, b.images, strict=True)]
            assert rows == [
                (k, i.numpy().tobytes()) for b in loader for k, i in zip(b.keys, b.images, strict=True)
            ]
            found[number] += rows
    keys = [f"s{number:05d}" for number in range(19, 26)]
    assert sorted(key for key, _ in found[0]) == keys[:3]  # one batch of 3 over all ranks
    assert sorted(key for key, _ in found[1]) == keys
    alone = data.eval_loaders("val")[1]
    assert dict(found[1]) == {
        k: i.numpy().tobytes() for b in alone for k, i in zip(b.keys, b.images, strict=True)
    }


def test_a_bad_image_is_left_out_of_validation(make_shards: MakeShards) -> None:
    """Also where it is alone in its batch."""
    data = data_module(make_shards([3], val=[7], replace={"s00009": [("s00009.jpg", b"?")]}))
    data.setup("validate")
    assert [[batch.keys for batch in loader] for loader in data.val_dataloader()] == [
        [["s00003", "s00004", "s00005"], ["s00006", "s00007", "s00008"], []]
    ] * 2
    assert data.metrics() == {"val/skipped": 2.0, "val/skipped_not-an-image": 2.0}


def test_the_trainer_validates_every_resolution(folder: Path) -> None:
    recorder = fit(data_module(folder), max_epochs=1)
    assert {number for _, number, _ in recorder.validated} == {0, 1}
    assert len([key for _, _, keys in recorder.validated for key in keys]) == 14


def test_a_checkpoint_may_be_validated_on_other_data(
    folder: Path, make_shards: MakeShards, tmp_path: Path
) -> None:
    fit(data_module(folder), max_steps=3, callbacks=[SaveEverywhere(tmp_path)])
    recorder = Recorder()
    trainer = Trainer(accelerator="cpu", logger=False, enable_progress_bar=False, enable_checkpointing=False)
    other = data_module(make_shards([2], val=[5], folder="other"))
    trainer.validate(
        recorder, other, ckpt_path=str(tmp_path / "003-batch.ckpt"), verbose=False, weights_only=True
    )
    assert len(recorder.validated) == 4


def test_without_a_val_split_one_has_to_say_so(make_shards: MakeShards) -> None:
    folder = make_shards([6, 6])
    with pytest.raises(ValueError, match=r"there are no val samples.*or set limit_val_batches=0"):
        fit(data_module(folder), max_epochs=1)
    assert len(fit(data_module(folder), max_epochs=1, limit_val_batches=0).seen) == 4


def test_a_bad_dataset_stops_the_run_and_says_where(make_shards: MakeShards) -> None:
    bad = {f"s{number:05d}": [(f"s{number:05d}.jpg", b"?")] for number in range(0, 80, 5)}
    schedule = ResolutionSchedule([Phase(0, {32: 1.0})], batch_size=8)
    data = data_module(make_shards([40, 40], replace=bad), resolutions=schedule)
    with pytest.raises(RuntimeError, match=r"max_bad_share = 0.01 .*key 's000\d\d' in .*train-00000\d.tar"):
        fit(data, max_epochs=1, limit_val_batches=0)
    assert data.metrics()["train/skipped"] >= 10
    data = data_module(make_shards([40, 40], replace=bad), resolutions=schedule, max_bad_share=0.6)
    recorder = fit(data, max_epochs=1, limit_val_batches=0)
    assert all(len(keys) == 8 for *_, keys, _ in recorder.seen)
    metrics = data.metrics()
    assert (
        metrics["train/skipped"] == sum(v for k, v in metrics.items() if k.startswith("train/skipped_")) > 10
    )


def test_sources_are_mixed_by_weight(make_shards: MakeShards) -> None:
    sources = {
        str(make_shards([6, 6], folder="a", name="a")): 0.5,
        str(make_shards([5], folder="b", name="b")): 2.0,
    }
    data = ShardDataModule(
        sources=sources, num_workers=0, resolutions=ResolutionSchedule([Phase(0, {32: 1.0})], batch_size=4)
    )
    data.setup("fit")
    loader = data.train_loader()
    epochs = [Counter(key for batch in loader for key in batch.keys) for _ in range(2)]
    assert all(epoch.total() == 16 for epoch in epochs)
    assert all(sum(n for key, n in epoch.items() if key[0] == "a") == 6 for epoch in epochs)
    assert max((epochs[0] + epochs[1])[f"a{n:05d}"] for n in range(12)) == 1
    assert all(epoch[f"b{n:05d}"] == 2 for epoch in epochs for n in range(5))


@pytest.mark.timeout(60)
def test_a_remote_source_gives_what_the_folder_gives(folder: Path, tmp_path: Path) -> None:
    local = data_module(folder)
    local.setup("fit")
    with serve(folder) as (url, _):
        remote = data_module(url, cache_dir=str(tmp_path / "cache"), cache_bytes=10**7)
        remote.setup("fit")
        for ours, theirs in zip(remote.train_loader(), local.train_loader(), strict=True):
            assert ours.keys == theirs.keys
            assert torch.equal(ours.images, theirs.images)
        assert remote.state_dict()["data"] == local.state_dict()["data"]
        with pytest.raises(ValueError, match="cache_bytes = 10: must hold three windows of 2 shards"):
            data_module(url, cache_dir=str(tmp_path / "cache"), cache_bytes=10).setup("fit")


def test_missing_shards_stop_before_training(folder: Path) -> None:
    (folder / "train-000001.tar").unlink()
    (folder / "val-000000.tar").unlink()
    with pytest.raises(FileNotFoundError, match="2 problems with 5 shards"):
        fit(data_module(folder), max_epochs=1)


YAML = """
data:
  sources: {SOURCE: 1.0}
  resolutions:
    phases:
      - {start_step: 0, probabilities: {256: 0.35, 384: 0.35, 512: 0.30}}
      - {start_step: 7000, probabilities: {256: 0.15, 384: 0.25, 512: 0.30, 768: 0.30}}
    batch_size: 64
    teacher_micro_batch: {256: 128, 384: 64, 512: 32, 768: 8}
  val_batches: {256: 100, 384: 100, 512: 100, 768: 50}
"""


def test_the_constructor_is_the_yaml_schema(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["veca"])
    monkeypatch.setenv("JSONARGPARSE_DEPRECATION_WARNINGS", "off")  # of calls that LightningCLI makes
    (tmp_path / "recipe.yaml").write_text(YAML.replace("SOURCE", str(folder)), encoding="utf-8")
    command = [
        "--config",
        str(tmp_path / "recipe.yaml"),
        "--data.resolutions.batch_size",
        "32",
        "--data.seed=5",
    ]
    cli = LightningCLI(
        BoringModel,
        ShardDataModule,
        run=False,
        args=command,
        save_config_callback=None,
        seed_everything_default=False,
    )
    data = cli.datamodule
    assert data.resolutions.batch_sizes == dict.fromkeys((256, 384, 512, 768), 32)
    assert data.resolutions.teacher_micro_batches[768] == 8
    assert data.resolutions.phases[1] == Phase(7000, {256: 0.15, 384: 0.25, 512: 0.30, 768: 0.30})
    assert data.seed == 5
    assert data.val_batches == {256: 100, 384: 100, 512: 100, 768: 50}


def test_every_mistake_is_reported_at_once() -> None:
    with pytest.raises(ValueError, match="cannot be used") as error:
        ShardDataModule(
            sources={"a": -1.0, "https://host/b": 1.0, "pipe:cat c": 1.0, "s3://d": 1.0},
            seed=-1,
            window_shards=0,
            num_workers=-2,
            max_bad_share=1.5,
            val_batches={256: 0, 100: 1},
        )
    for part in (
        "sources[a] = -1.0: must be above 0",
        "cache_dir = null: must be a folder on a local disk, as https://host/b is remote",
        "source 'pipe:cat c': must be a folder, or a URL with one of http://, https://",
        "source 's3://d'",
        "seed = -1",
        "window_shards = 0: must be at least 1",
        "num_workers = -2",
        "max_bad_share = 1.5",
        "resolutions [100] are not among [256]",
        "must be at least 1; limit_val_batches=0 turns validation off",
    ):
        assert part in str(error.value)


def test_no_source_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="must name at least one"):
        ShardDataModule(sources={})
