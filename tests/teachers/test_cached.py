"""Training from a cache: the live run again, without its teacher."""

import copy
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint

from tests.data.caches import write_cache
from tests.data.shards import write_dataset
from tests.training import STAGE2, make_data, make_model, make_trainer
from veca.cli.main import main
from veca.data.datamodule import ShardDataModule
from veca.data.loader import ViewSource
from veca.data.stored_targets import TargetsSource, open_cache
from veca.data.stored_views import StoredViews
from veca.teachers import CachedTargets, OfflineTeacher
from veca.train.distill import Distill
from veca.types import Targets


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three views of each of 50 images at 32 and 48 px, and the centres of 9."""
    return write_cache(write_dataset(tmp_path_factory.mktemp("cached") / "shards", [20, 13, 17], [9]))


class Losses(Callback):
    """The loss of every step."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, *args: Any) -> None:
        self.values.append(float(outputs["loss"]))


class SameViews(ShardDataModule):
    """Replays the views of a cache and leaves the targets to a live teacher."""

    def train_views(self) -> ViewSource:
        (folder,) = Path(str(self.sources)).glob("targets-*")
        stored = StoredViews(open_cache(folder), "train", seed=self.seed, max_open=4)

        class WithoutTargets:
            def choose(self, sample: Any, **where: int) -> Any:
                return stored.choose(sample, **where)[0], None

        return WithoutTargets()


def cached_model(cache: Path, **options: Any) -> Distill:
    """The toy model with the cache in place of its teacher."""
    return make_model(stored=open_cache(cache), **options)


def cached_data(cache: Path, **options: Any) -> ShardDataModule:
    return make_data(cache.parent, targets=str(cache), **options)


def fit(
    model: Distill, data: ShardDataModule, folder: Path, *, max_steps: int, **options: Any
) -> list[float]:
    losses = Losses()
    ckpt_path = options.pop("ckpt_path", None)
    callbacks = [losses, *options.pop("callbacks", [])]
    trainer = make_trainer(folder, max_steps=max_steps, callbacks=callbacks, **options)
    trainer.fit(model, datamodule=data, ckpt_path=ckpt_path, weights_only=True)
    return losses.values


def test_the_data_know_what_the_teacher_was(cache: Path) -> None:
    original = OfflineTeacher()
    stored = make_data(
        cache.parent, targets=TargetsSource(str(cache.parent), "OfflineTeacher", views=3)
    ).stored
    assert stored is not None
    assert (stored.width, stored.spec.weights) == (original.width, original.fingerprint())
    projection, expected = stored.patch_projection(), original.patch_projection()
    assert projection is not None
    assert expected is not None
    assert all(torch.equal(one, two) for one, two in zip(projection, expected, strict=True))
    assert make_data(cache.parent).stored is None


def test_a_student_begins_with_the_same_weights(cache: Path) -> None:
    live, student = make_model().student, cached_model(cache).student
    for name, tensor in live.state_dict().items():
        assert torch.equal(student.state_dict()[name], tensor), name


def test_targets_come_from_one_place(cache: Path, tmp_path: Path) -> None:
    stored = open_cache(cache)
    with pytest.raises(ValueError, match=r"both given: .*Leave one out"):
        Distill(OfflineTeacher(), stored=stored, budgets={8: 1}, optimization=make_model().optimization)
    with pytest.raises(ValueError, match=r"a student needs targets\. Name a teacher, .* or stored targets"):
        Distill(budgets={8: 1}, optimization=make_model().optimization)
    for model, data in (
        (cached_model(cache), make_data(cache.parent)),
        (make_model(), cached_data(cache)),
    ):
        with pytest.raises(ValueError, match=r"made for the stored targets .*Give both the same"):
            fit(model, data, tmp_path, max_steps=1)
    with pytest.raises(ValueError, match=r"CachedTargets\(shards\) is no teacher: .*by data\.targets"):
        CachedTargets("shards")


def test_what_the_recipe_says_of_the_cache_must_be_true(cache: Path) -> None:
    for wrong, words in (
        ({"teacher": "facebook/dinov3"}, "teacher is OfflineTeacher / .*, not facebook/dinov3"),
        ({"views": 8}, "views is 3, not 8"),
        ({"dtype": "int8"}, "dtype is fp16, not int8"),
    ):
        with pytest.raises(ValueError, match=words):
            _ = make_data(cache.parent, targets=TargetsSource(str(cache), **wrong)).stored
    with pytest.raises(ValueError, match=r"read from a disk\. Copy the folder"):
        make_data(cache.parent, targets="https://host/targets-0")
    with pytest.raises(FileNotFoundError, match="there is no cache in"):
        _ = make_data(cache.parent, targets="nowhere").stored


def test_losses_follow_the_live_run_on_the_same_views(cache: Path, tmp_path: Path) -> None:
    schedule = make_data(cache.parent, resolutions=STAGE2).resolutions
    same_views = SameViews(sources=str(cache.parent), resolutions=schedule, num_workers=0)
    live = fit(make_model(), same_views, tmp_path, max_steps=50)
    data = cached_data(cache, resolutions=STAGE2)
    cached = fit(cached_model(cache), data, tmp_path, max_steps=50)
    assert len(live) == len(cached) == 50
    assert live[-1] < live[0]
    assert max(abs(one - two) for one, two in zip(live, cached, strict=True)) < 1e-3


@pytest.mark.filterwarnings("ignore:The dirpath has changed")
def test_a_resumed_run_is_bit_identical(cache: Path, tmp_path: Path) -> None:
    runs, start = [], None
    for name in ("whole", "resumed"):
        saver = ModelCheckpoint(tmp_path / name, filename="{step}", every_n_train_steps=5, save_top_k=-1)
        model = cached_model(cache)
        losses = fit(
            model,
            cached_data(cache, resolutions=STAGE2),
            tmp_path,
            max_steps=11,
            callbacks=[saver],
            enable_checkpointing=True,
            ckpt_path=start,
        )
        start = tmp_path / "whole" / "step=5.ckpt"
        runs.append((losses, model.state_dict()))
    assert runs[0][0][5:] == runs[1][0]
    assert all(torch.equal(tensor, runs[1][1][name]) for name, tensor in runs[0][1].items())


def test_a_run_is_not_resumed_with_other_targets(cache: Path, tmp_path: Path) -> None:
    saver = ModelCheckpoint(tmp_path, filename="last", every_n_train_steps=2, enable_version_counter=False)
    options: dict[str, Any] = {"callbacks": [saver], "enable_checkpointing": True}
    fit(cached_model(cache), cached_data(cache), tmp_path, max_steps=2, **options)
    shards = tmp_path / "shards"
    shutil.copytree(cache.parent, shards, ignore=shutil.ignore_patterns("targets-*"))
    other = write_cache(shards, teacher=OfflineTeacher(seed=1), views=2)
    last = copy.deepcopy(tmp_path / "last.ckpt")
    for model, data, words in (
        (
            cached_model(other),
            cached_data(other),
            r"targets\.weights: '\w+' then, '\w+' now\n +targets\.views: 3 then, 2 now",
        ),
        (make_model(), make_data(shards), r"targets\.weights: '\w+' then, None now"),
    ):
        with pytest.raises(ValueError, match=words):
            fit(model, data, tmp_path, max_steps=4, ckpt_path=last)


def test_the_run_refuses_a_cache_without_its_resolution(cache: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"resolution: the run needs \[64\], the cache has \[32, 48\]"):
        fit(cached_model(cache), cached_data(cache, resolutions={64: 1.0}), tmp_path, max_steps=1)
    with pytest.raises(ValueError, match="stored targets serve one source"):
        ShardDataModule(sources={str(cache.parent): 1.0, f"{cache.parent}/": 2.0}, targets=str(cache))


def test_validation_needs_no_teacher_and_gives_the_live_losses(cache: Path, tmp_path: Path) -> None:
    found = []
    for model, data in (
        (make_model(), make_data(cache.parent, resolutions=STAGE2)),
        (cached_model(cache), cached_data(cache, resolutions=STAGE2)),
    ):
        trainer = make_trainer(tmp_path, max_steps=1, limit_val_batches=1.0)
        (values,) = [trainer.validate(model, datamodule=data, verbose=False)[0]]
        found.append(values)
    assert found[0].keys() == found[1].keys()
    assert any(name.startswith("val/r48/b16/") for name in found[0])
    for name, value in found[0].items():
        assert found[1][name] == pytest.approx(value, abs=1e-3), name


FORMER = {"--model.teacher": "veca.teachers.CachedTargets", "--model.teacher.path": "SHARDS"}


@pytest.mark.parametrize(
    ("words", "warns"),
    [
        ({"--model.teacher": "null", "--data.targets": "SHARDS"}, False),
        ({"--model.teacher": "null", "--data.targets": "{path: SHARDS, teacher: OfflineTeacher}"}, False),
        ({"--model.teacher": "null", "--data.targets.path": "SHARDS", "--data.targets.views": "3"}, False),
        (FORMER, True),
        ({**FORMER, "--model.teacher": "veca.teachers.CachedTargets", "--model.teacher.views": "3"}, True),
    ],
)
def test_a_recipe_trains_from_stored_targets(
    words: dict[str, str], warns: bool, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = Path(__file__).parents[2] / "recipes" / "pretrain_small.yaml"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["veca"])
    monkeypatch.setattr(OfflineTeacher, "forward", lambda self, images: pytest.fail("a teacher ran"))
    options = {
        **{key: word.replace("SHARDS", str(cache.parent)) for key, word in words.items()},
        "--model.size": "tiny",
        "--model.size_overrides": str({"width": 32, "depth": 2, "num_heads": 1}),
        "--model.global_batch_size": "4",
        "--model.optimization.warmup_epochs": "0",
        "--data.sources": str(cache.parent),
        "--data.num_workers": "0",
        "--data.resolutions.phases": "[{start_step: 0, probabilities: {32: 1.0}}]",
        "--data.resolutions.batch_size": "4",
        "--data.resolutions.teacher_micro_batch": "null",
        "--trainer.accelerator": "cpu",
        "--trainer.precision": "32-true",
        "--trainer.fast_dev_run": "true",
        "--trainer.enable_progress_bar": "false",
        "--trainer.enable_model_summary": "false",
    }
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", FutureWarning)
        main(["fit", "--config", str(recipe), *(word for pair in options.items() for word in pair)])
    told = [str(warning.message) for warning in caught if warning.category is FutureWarning]
    assert len(told) == warns
    assert all("CachedTargets is now data.targets" in line for line in told)


def test_a_recipe_with_two_origins_or_none_is_refused(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["veca"])
    live = ["fit", "--config", "pretrain_small", "--data.sources", str(cache.parent)]
    Path("view.yaml").write_text("data: {targets: {path: nowhere, view: 1}}")
    for words, problems in (
        (
            ["--data.targets", "nowhere"],
            ["data.targets are both given", "data: there is no cache in nowhere"],
        ),
        (["--model.teacher", "null"], ["model.teacher = data.targets = null"]),
        (["--config", "view.yaml"], ["data.targets: has no view. Leave it out."]),
    ):
        with pytest.raises(SystemExit):
            main([*live, *words])
        told = capsys.readouterr().err
        assert all(f"- {problem}" in told.replace("model.teacher and ", "") for problem in problems), told


def test_packed_targets_reach_the_loss_as_numbers(tmp_path: Path) -> None:
    folder = write_cache(write_dataset(tmp_path / "shards", [8], [2]), dtype="int8", resolutions=(32,))
    losses = fit(cached_model(folder), cached_data(folder), tmp_path, max_steps=2)
    assert all(0 < loss < 10 for loss in losses)
    data = cached_data(folder)
    data.setup("fit")
    batch = next(iter(data.train_loader()))
    assert isinstance(batch.targets, Targets)
    assert batch.targets.patches.dtype == torch.uint8
