"""The training step under a real Trainer, at toy size."""

import csv
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint

from tests.training import STAGE1, STAGE2, Diary, InactiveCores, make_data, make_model, make_trainer
from veca import load_model
from veca.backbones import open_model
from veca.data.views import normalise
from veca.optim import combined
from veca.train.distill import Distill
from veca.train.losses import distillation_loss
from veca.train.run_dir import MetricsLog


def fit(model: Distill, shards: Path, folder: Path, *, max_steps: int, **options: object) -> pl.Trainer:
    data_keys = ("resolutions", "batch_size", "seed")
    data = make_data(shards, **{key: options.pop(key) for key in data_keys if key in options})
    ckpt_path = options.pop("ckpt_path", None)
    trainer = make_trainer(folder, max_steps=max_steps, **options)
    trainer.fit(model, datamodule=data, ckpt_path=ckpt_path, weights_only=True)
    return trainer


def saver(folder: Path, every: int) -> ModelCheckpoint:
    return ModelCheckpoint(folder, filename="{step}", every_n_train_steps=every, save_top_k=-1)


def same_state(one: object, two: object) -> bool:
    if isinstance(one, torch.Tensor):
        return isinstance(two, torch.Tensor) and torch.equal(one, two)
    if isinstance(one, dict):
        return (
            isinstance(two, dict)
            and one.keys() == two.keys()
            and all(same_state(one[k], two[k]) for k in one)
        )
    if isinstance(one, list | tuple):
        return len(one) == len(two) and all(same_state(a, b) for a, b in zip(one, two, strict=True))
    return one == two


@pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty")
@pytest.mark.parametrize("resolutions", [STAGE1, STAGE2], ids=["stage1", "stage2"])
def test_a_resumed_run_repeats_the_uninterrupted_one_bit_for_bit(
    tiny_shards: Path, tmp_path: Path, resolutions: dict[int, float]
) -> None:
    runs = {}
    start = None
    for name in ("whole", "resumed"):
        diary, model = Diary(), make_model()
        fit(
            model,
            tiny_shards,
            tmp_path,
            max_steps=9,
            resolutions=resolutions,
            ckpt_path=start,
            callbacks=[diary, saver(tmp_path, 4)],
            enable_checkpointing=True,
        )
        start = tmp_path / "step=4.ckpt"
        last = torch.load((tmp_path / "step=8.ckpt").replace(tmp_path / name), weights_only=True)
        runs[name] = (diary.pages, model.state_dict(), last["optimizer_states"], last["lr_schedulers"])
    whole, resumed = runs["whole"], runs["resumed"]
    assert [page[0] for page in resumed[0]] == [4, 5, 6, 7, 8]
    assert whole[0][4:] == resumed[0]
    assert all(same_state(a, b) for a, b in zip(whole[1:], resumed[1:], strict=True))


def test_one_counter_exact_checkpoints_and_the_learning_rate(
    tiny_shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Rates(Callback):
        def __init__(self) -> None:
            self.rates: list[list[float]] = []

        def on_before_optimizer_step(self, trainer, pl_module, optimizer) -> None:  # type: ignore[no-untyped-def]
            self.rates.append([group["lr"] for group in optimizer.param_groups])

    updates = Counter()
    for name in ("_step_normuon", "_step_adamw"):
        counted = getattr(combined.NorMuonAdamW, name)
        monkeypatch.setattr(
            combined.NorMuonAdamW,
            name,
            lambda self, group, counted=counted, name=name: (counted(self, group), updates.update([name])),
        )
    rates, model = Rates(), make_model(optimization={"warmup_steps": 30, "backend": "veca"})
    trainer = fit(
        model,
        tiny_shards,
        tmp_path,
        max_steps=100,
        callbacks=[rates, saver(tmp_path, 40)],
        enable_checkpointing=True,
    )
    assert trainer.global_step == 100
    assert updates == {"_step_normuon": 100, "_step_adamw": 100}
    assert sorted(path.name for path in tmp_path.glob("*.ckpt")) == ["step=40.ckpt", "step=80.ckpt"]
    always = model.student.patch_embed.weight
    assert int(trainer.optimizers[0].state[always]["step"]) == 100
    expected = [model.optimization.rate(step, warmup=30, max_steps=100) for step in range(100)]
    for both, rate in zip(rates.rates, expected, strict=True):
        assert both == pytest.approx([rate, rate], rel=1e-12)


def test_inactive_cores_keep_weight_and_moments_bit_for_bit(tiny_shards: Path, tmp_path: Path) -> None:
    watch = InactiveCores()
    fit(make_model(), tiny_shards, tmp_path, max_steps=8, callbacks=[watch])
    assert watch.checked > 0


def test_accumulation_equals_the_doubled_batch(tiny_shards: Path, tmp_path: Path) -> None:
    states = []
    for batch_size, accumulate in ((8, 1), (4, 2)):
        model = make_model(augment_rope=False, global_batch_size=8)
        trainer = fit(model, tiny_shards, tmp_path, max_steps=5, batch_size=batch_size)
        assert trainer.accumulate_grad_batches == accumulate
        states.append(model.state_dict())
    for name, tensor in states[0].items():
        torch.testing.assert_close(tensor, states[1][name], rtol=1e-3, atol=2e-5, msg=name)


def test_a_global_batch_that_does_not_divide_is_said(
    tiny_shards: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = make_model(global_batch_size=11)
    trainer = fit(model, tiny_shards, tmp_path, max_steps=1, batch_size=4)
    assert trainer.accumulate_grad_batches == 3
    assert "global_batch_size=11 is not a multiple of 4" in caplog.text
    assert "using 12, with accumulate_grad_batches=3" in caplog.text


def test_clipping_bounds_the_norm_of_all_gradients(tiny_shards: Path, tmp_path: Path) -> None:
    norms = []

    class Norms(Callback):
        def on_before_zero_grad(self, trainer, pl_module, optimizer) -> None:  # type: ignore[no-untyped-def]
            grads = [p.grad for p in pl_module.student.parameters() if p.grad is not None]
            if grads:
                norms.append(float(torch.linalg.vector_norm(torch.stack([g.norm() for g in grads]))))

    fit(make_model(), tiny_shards, tmp_path, max_steps=4, gradient_clip_val=0.01, callbacks=[Norms()])
    assert norms
    assert max(norms) <= 0.01 * 1.001


def test_a_checkpoint_holds_student_and_optimizer_only(tiny_shards: Path, tmp_path: Path) -> None:
    model = make_model()
    fit(model, tiny_shards, tmp_path, max_steps=4, callbacks=[saver(tmp_path, 4)], enable_checkpointing=True)
    path = tmp_path / "step=4.ckpt"
    checkpoint = torch.load(path, weights_only=True)
    assert all(name.startswith("student.") for name in checkpoint["state_dict"])
    parameters = sum(p.numel() for p in model.student.parameters()) * 4
    assert path.stat().st_size < 3 * parameters * 1.3 + 200_000  # weights and at most two moments each
    loaded, x = load_model(path), torch.randn(1, 3, 32, 32)
    assert torch.equal(loaded(x, 8).patches, model.student.eval()(x, 8).patches)


def test_stage_two_starts_from_weights_only(tiny_shards: Path, tmp_path: Path) -> None:
    first = make_model()
    fit(first, tiny_shards, tmp_path, max_steps=3, callbacks=[saver(tmp_path, 3)], enable_checkpointing=True)
    second = make_model(init_from=str(tmp_path / "step=3.ckpt"))
    assert same_state(dict(first.student.state_dict()), dict(second.student.state_dict()))
    with pytest.raises(FileNotFoundError, match="no model at"):
        make_model(init_from=str(tmp_path / "missing.ckpt"))
    with pytest.raises(ValueError, match="does not fit this student"):
        make_model(
            init_from=str(tmp_path / "step=3.ckpt"),
            size_overrides={"width": 32, "depth": 1, "num_heads": 2, "num_cores": 16, "core_group": 4},
        )


def test_validation_runs_every_budget_on_the_same_images(tiny_shards: Path, tmp_path: Path) -> None:
    model = make_model(val_budgets=[4, 16])
    calls: Counter[str] = Counter()
    teach = model.teacher.forward
    model.teacher.forward = lambda images: calls.update(["teacher"]) or teach(images)  # type: ignore[method-assign,func-returns-value]
    log = MetricsLog(tmp_path)
    trainer = fit(
        model,
        tiny_shards,
        tmp_path,
        max_steps=2,
        resolutions=STAGE2,
        limit_val_batches=1.0,
        val_check_interval=2,
        check_val_every_n_epoch=None,
        logger=log,
        log_every_n_steps=1,
    )
    data = make_data(tiny_shards, resolutions=STAGE2)
    data.setup("validate")
    batches = [batch for loader in data.eval_loaders("val") for batch in loader]
    assert calls["teacher"] == 2 + len(batches)  # one pass per batch, not one per budget

    metrics = trainer.callback_metrics
    model.eval()
    for budget in (4, 16):
        total, count = 0.0, 0
        for batch in batches:
            if batch.images.shape[-1] == 48:
                with torch.no_grad():
                    features = model.student(normalise(batch.images), budget=budget)
                    loss = distillation_loss(features, teach(batch.images)).loss
                total, count = total + float(loss) * len(batch.images), count + len(batch.images)
        assert float(metrics[f"val/r48/b{budget}/loss"]) == pytest.approx(total / count, rel=1e-5)
    grid = [float(metrics[f"val/r{r}/b{b}/loss"]) for r in (32, 48) for b in (4, 16)]
    assert float(metrics["val/loss"]) == pytest.approx(sum(grid) / 4, rel=1e-5)
    assert "val/r32/constant/loss_dense" in metrics
    assert "val/r32/b8/loss" not in metrics

    with (tmp_path / "metrics.csv").open() as file:
        names = {row["name"] for row in csv.DictReader(file)}
    assert {"train/loss_cls", "train/budget", "train/resolution", "lr/normuon", "lr/adamw"} <= names


def test_validate_runs_the_whole_grid(tiny_shards: Path, tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, max_steps=1, limit_val_batches=1.0)
    (found,) = trainer.validate(make_model(), datamodule=make_data(tiny_shards), verbose=False)
    assert {name for name in found if name.endswith("/loss") and "/b" in name} == {
        f"val/r32/b{budget}/loss" for budget in (4, 8, 12, 16)
    }


def test_a_loss_that_is_not_finite_stops_the_run_by_name(tiny_shards: Path, tmp_path: Path) -> None:
    class Break(Callback):
        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx) -> None:  # type: ignore[no-untyped-def]
            if trainer.global_step == 5:
                pl_module.student.final_norm.weight.data.fill_(float("nan"))

    with pytest.raises(FloatingPointError, match=r"not finite since step 5.*step=4.ckpt"):
        fit(
            make_model(),
            tiny_shards,
            tmp_path,
            max_steps=20,
            callbacks=[Break(), saver(tmp_path, 4)],
            enable_checkpointing=True,
            log_every_n_steps=4,
        )
    assert not (tmp_path / "step=8.ckpt").exists()  # a checkpoint with bad weights is never written


def test_no_scalar_is_read_between_logging_intervals(
    tiny_shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: Counter[int] = Counter()
    where = {"step": -1}
    adamw = combined.adamw

    def uncounted(*args, **options) -> None:  # type: ignore[no-untyped-def]
        # AdamW keeps its step counts on the CPU and reads them there: not a device sync.
        step, where["step"] = where["step"], -1
        adamw(*args, **options)
        where["step"] = step

    monkeypatch.setattr(combined, "adamw", uncounted)

    class Place(Callback):
        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx) -> None:  # type: ignore[no-untyped-def]
            where["step"] = trainer.global_step

    for name in ("item", "tolist", "__float__", "__int__", "__bool__"):
        original = getattr(torch.Tensor, name)

        def counted(self, *args, original=original):  # type: ignore[no-untyped-def]
            if self.numel() == 1 and where["step"] >= 0:
                reads[where["step"]] += 1
            return original(self, *args)

        monkeypatch.setattr(torch.Tensor, name, counted)
    fit(
        make_model(),
        tiny_shards,
        tmp_path,
        max_steps=8,
        callbacks=[Place()],
        logger=MetricsLog(tmp_path),
        log_every_n_steps=4,
    )
    assert [reads[step] for step in (0, 1, 2, 4, 5, 6)] == [0] * 6
    assert reads[3] > 0


def test_the_student_learns_eight_images_at_every_budget(make_tiny_shards, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """Far beyond the best constant, on targets with their mean removed."""
    shards = make_tiny_shards([8])
    model = make_model(
        optimization={"lr": 1e-2, "min_lr": 1e-3, "weight_decay": 0.0, "warmup_steps": 10},
        size_overrides={"width": 64, "depth": 3, "num_heads": 2},
        budgets={8: 1, 16: 1, 24: 2, 32: 2, 40: 3, 48: 3, 56: 4, 64: 4},
        augment_rope=False,
    )
    data = make_data(shards, batch_size=8)
    data.setup("fit")
    images = next(iter(data.train_loader())).images
    raw = model.teacher(images)
    targets = type(raw)(*(part - part.mean(0) for part in raw))
    optimizer, scheduler = model.optimization.make(model.student, max_steps=300, steps_per_epoch=1)
    for step in range(300):
        optimizer.zero_grad()
        features = model.student(normalise(images), budget=model.schedule.budget(step))
        distillation_loss(features, targets).loss.backward()
        optimizer.step()
        scheduler.step()
    model.eval()
    for budget, wanted in ((64, 0.95), (8, 0.9)):
        features = model.student(normalise(images), budget=budget)
        for ours, theirs in ((features.patches, targets.patches), (features.cls, targets.cls)):
            cosine = torch.nn.functional.cosine_similarity(ours, theirs, dim=-1).mean()
            assert float(cosine.detach()) > wanted


def test_two_ranks_agree_and_equal_one_rank_with_the_doubled_batch(tiny_shards: Path, tmp_path: Path) -> None:
    """Real processes, 20 steps over all budgets; no RoPE augmentation, as each forward draws its own."""
    script = Path(__file__).parents[1] / "rank_fit.py"
    for devices, batch_size in ((2, 4), (1, 8)):
        command = [sys.executable, script, tiny_shards, tmp_path, str(devices), str(batch_size)]
        subprocess.run(command, check=True, timeout=240, capture_output=True)
    one, other, alone = (
        torch.load(tmp_path / name, weights_only=True) for name in ("2-0.pt", "2-1.pt", "1-0.pt")
    )
    assert same_state(one["student"], other["student"])
    assert one["budgets"] == other["budgets"] == alone["budgets"]
    assert set(one["budgets"]) == {4, 8, 12, 16}
    assert one["inactive_checked"] == other["inactive_checked"] > 0
    keys = zip(one["keys"], other["keys"], alone["keys"], strict=True)
    for left, right, both in keys:
        assert not set(left) & set(right)
        assert set(left) | set(right) == set(both)
    for name, start in alone["start"].items():
        update, expected = one["student"][name] - start, alone["student"][name] - start
        assert float((update - expected).norm()) <= 2e-3 * float(expected.norm()), name


@pytest.mark.parametrize("samples", [1, 5])
def test_ranks_with_fewer_images_than_others_validate_to_the_values_of_one_rank(
    samples: int, make_tiny_shards: Callable[..., Path], tmp_path: Path
) -> None:
    """With one image the second rank has none; five are two and two, then one and none."""
    script, shards = Path(__file__).parents[1] / "rank_validate.py", make_tiny_shards([20], [samples])
    for devices in (2, 1):
        command = [sys.executable, script, shards, tmp_path, str(devices)]
        subprocess.run(command, check=True, timeout=100, capture_output=True)
    both, alone = (torch.load(tmp_path / name, weights_only=True) for name in ("2.pt", "1.pt"))
    assert {"in training", "val/loss", "val/r32/b4/loss", "val/r32/constant/loss"} <= both.keys()
    assert both == pytest.approx(alone, rel=1e-5)


def test_every_problem_of_the_recipe_is_named_at_once() -> None:
    with pytest.raises(ValueError) as error:
        make_model(
            budgets={12: 1.0, 13: 1.0, 8: -1.0},
            val_budgets=[5],
            dense_weight=-1.0,
            optimization={"warmup_epochs": 3},
            global_batch_size=0,
        )
    text = str(error.value)
    for word in (
        "budget 13",
        "weights[8] = -1.0",
        "val_budgets: budget 5",
        "dense_weight = -1.0",
        "warmup_epochs",
        "global_batch_size = 0",
    ):
        assert word in text, text


def test_bf16_mixed_runs_on_the_cpu(tiny_shards: Path, tmp_path: Path) -> None:
    model = make_model()
    trainer = fit(model, tiny_shards, tmp_path, max_steps=2, precision="bf16-mixed")
    assert trainer.global_step == 2
    assert all(p.dtype == torch.float32 and bool(p.isfinite().all()) for p in model.student.parameters())


def test_the_full_attention_control_trains_by_one_flag(tiny_shards: Path, tmp_path: Path) -> None:
    model = make_model(attention="full", size_overrides=None, budgets={5: 1.0})
    trainer = fit(model, tiny_shards, tmp_path, max_steps=2)
    assert trainer.global_step == 2
    trainer.save_checkpoint(tmp_path / "control.ckpt")
    images = torch.zeros(1, 3, 32, 32, dtype=torch.uint8)
    with torch.no_grad():
        expected = model.student.eval()(normalise(images))
    torch.testing.assert_close(open_model(str(tmp_path / "control.ckpt")).at()(images).cls, expected.cls)
    with pytest.raises(ValueError, match="`veca probe` and init_from open"):
        load_model(tmp_path / "control.ckpt")
    second = make_model(
        attention="full", size_overrides=None, budgets={5: 1.0}, init_from=str(tmp_path / "control.ckpt")
    )
    with torch.no_grad():
        torch.testing.assert_close(second.student.eval()(normalise(images)).cls, expected.cls)
    with pytest.raises(ValueError, match="does not fit this student"):
        make_model(init_from=str(tmp_path / "control.ckpt"))


def test_the_control_takes_the_shape_of_a_size_and_no_more() -> None:
    smaller = make_model(attention="full", size_overrides={"depth": 1}, budgets={5: 1.0})
    assert smaller.student.size.depth == 1
    with pytest.raises(ValueError, match=r"are width, depth and num_heads; got num_cores"):
        make_model(attention="full", size_overrides={"num_cores": 16}, budgets={5: 1.0})


def test_a_second_fit_validates_as_often_as_the_first(tiny_shards: Path, tmp_path: Path) -> None:
    """A trainer that fits again keeps its interval in optimizer steps, and its other settings."""
    model, data = make_model(global_batch_size=8), make_data(tiny_shards, batch_size=4)
    options = {"limit_val_batches": 1, "check_val_every_n_epoch": None, "val_check_interval": 3}
    trainer = make_trainer(tmp_path, max_steps=3, **options)
    for max_steps in (3, 6):
        trainer.fit_loop.epoch_loop.max_steps = max_steps
        trainer.fit(model, datamodule=data)
        assert trainer.global_step == max_steps
        assert (trainer.accumulate_grad_batches, trainer.val_check_interval) == (2, 6)
        assert trainer.val_check_batch == 6
