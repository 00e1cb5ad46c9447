"""What `precision: auto` comes to, and that float32 is what it was."""

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
import yaml
from lightning.pytorch.callbacks import Callback
from torch.nn import functional as F

from tests.data.shards import write_dataset
from tests.runs import outcome, same, write_recipe
from tests.training import make_data, make_model, make_trainer
from veca import Veca
from veca.checkpoint import load_model
from veca.cli import main
from veca.features import features, read_features
from veca.model.attention import attend
from veca.train.checkpointing import last_path
from veca.utils.precision import computing_in, cpu_multiplies_bf16, recorded_precision, resolve_precision

# The losses of ten steps in float32, as they were before there was a choice.
TEN_STEPS = [
    3.007262706756592,
    2.4781975746154785,
    2.2678027153015137,
    2.2059645652770996,
    1.881974458694458,
    1.9310346841812134,
    1.83457350730896,
    1.9008948802947998,
    1.5516602993011475,
    1.696621298789978,
]


class KeepLosses(Callback):
    def __init__(self) -> None:
        self.values: list[float] = []

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.values.append(float(outputs["loss"]))


def ten_steps(shards: Path, folder: Path, precision: str) -> tuple[list[float], Any]:
    model, losses = make_model(), KeepLosses()
    trainer = make_trainer(folder, max_steps=10, callbacks=[losses], precision=precision)
    trainer.fit(model, datamodule=make_data(shards))
    return losses.values, model


def pretend(monkeypatch: pytest.MonkeyPatch, *, cpu: bool, gpu: bool | None = None) -> None:
    """A machine whose CPU multiplies bf16 or not, with a GPU (None: without) that does or not."""
    for module in ("veca.utils.precision", "veca.train.callbacks"):
        monkeypatch.setattr(f"{module}.cpu_multiplies_bf16", lambda: cpu)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu is not None)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **options: gpu)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)


@pytest.mark.parametrize(
    ("accelerator", "cpu", "gpu", "expected"),
    [
        ("auto", True, None, "bf16-mixed"),
        ("auto", False, None, "32-true"),
        ("auto", False, True, "bf16-mixed"),
        ("auto", True, False, "32-true"),
        ("gpu", False, True, "bf16-mixed"),
        ("cuda", True, False, "32-true"),
        ("cpu", False, True, "32-true"),
        ("cpu", True, False, "bf16-mixed"),
        ("mps", True, None, "32-true"),
        ("tpu", True, None, "32-true"),
    ],
)
def test_auto_is_decided_by_the_device(
    accelerator: str, cpu: bool, gpu: bool | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, cpu=cpu, gpu=gpu)
    assert resolve_precision("auto", accelerator=accelerator) == expected
    assert resolve_precision("16-mixed", accelerator=accelerator) == "16-mixed"


@pytest.mark.parametrize("amx", [True, False])
@pytest.mark.parametrize("avx512", [True, False])
def test_amx_or_avx512_bf16_is_enough(amx: bool, avx512: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: avx512)
    assert cpu_multiplies_bf16() == (amx or avx512)


@pytest.mark.parametrize(
    "text", [None, "", "trainer: {precision: auto}", "trainer: {}", "trainer: [", "\xff"]
)
def test_no_recorded_precision_where_a_config_does_not_tell(text: str | None, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "config.yaml").write_bytes(text.encode("latin-1"))
    assert recorded_precision(tmp_path / "checkpoints" / "last.ckpt") is None


@pytest.mark.filterwarnings("ignore")  # of Lightning, about tiny data
def test_a_run_records_what_auto_came_to_and_keeps_it(
    tmp_path: Path, make_tiny_shards: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = write_recipe(tmp_path, make_tiny_shards([8], [4]), max_steps=4, precision="auto")
    first, other = tmp_path / "run", tmp_path / "other"

    def fit(folder: Path, max_steps: int, checkpoint: str) -> str:
        where = ["--trainer.default_root_dir", str(folder), "--ckpt_path", checkpoint]
        main(["fit", "--config", str(recipe), *where, "--trainer.max_steps", str(max_steps)])
        config = yaml.safe_load((folder / "config.yaml").read_text())
        return str(config["trainer"]["precision"])

    pretend(monkeypatch, cpu=True)
    assert fit(first, 1, "last") == "bf16-mixed"
    pretend(monkeypatch, cpu=False)
    assert fit(first, 2, "last") == "bf16-mixed"  # resumed
    assert fit(other, 3, str(last_path(first / "checkpoints"))) == "bf16-mixed"  # resumed in another folder
    assert fit(tmp_path / "new", 1, "last") == "32-true"


def test_float32_trains_as_before_and_bf16_within_a_percent(tmp_path: Path, tiny_shards: Path) -> None:
    float32, model = ten_steps(tiny_shards, tmp_path, "32-true")
    assert not any(block.attn.plain for block in model.student.blocks)
    # Another CPU or number of threads adds up in another order; bf16 is off by far more from the first step.
    assert float32 == pytest.approx(TEN_STEPS, rel=1e-5)
    bf16, model = ten_steps(tiny_shards, tmp_path, "bf16-mixed")
    assert bf16 == pytest.approx(TEN_STEPS, rel=0.01)
    assert bf16 != float32
    assert all(block.attn.plain == cpu_multiplies_bf16() for block in model.student.blocks)


@pytest.mark.parametrize("cpu", [True, False])
def test_only_a_cpu_that_multiplies_bf16_takes_the_other_path(
    cpu: bool, tmp_path: Path, tiny_shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, cpu=cpu)
    losses, model = ten_steps(tiny_shards, tmp_path, "bf16-mixed")
    assert losses == pytest.approx(TEN_STEPS, rel=0.01)
    assert all(block.attn.plain == cpu for block in model.student.blocks)
    assert model.trainer.optimizers[0]._bf16_on_cpu == cpu


def test_attention_is_torchs_own_unless_it_is_to_be_plain() -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 2, tokens, 8, requires_grad=True) for tokens in (5, 7, 7))
    expected = F.scaled_dot_product_attention(q, k, v)
    assert torch.equal(attend(q, k, v, plain=False), expected)
    torch.testing.assert_close(attend(q, k, v, plain=True), expected)


def test_plain_attention_is_for_training_alone(tiny_student: Veca) -> None:
    images = torch.randn(1, 3, 32, 32)
    with torch.no_grad():
        expected = tiny_student.eval()(images)
        tiny_student.attend_plainly()
        assert torch.equal(tiny_student(images).patches, expected.patches)


@pytest.mark.filterwarnings("ignore")  # of Lightning, about tiny data
def test_a_resumed_bf16_run_repeats_the_uninterrupted_one(
    tmp_path: Path, make_tiny_shards: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = write_recipe(tmp_path, make_tiny_shards([12], [4]), max_steps=6, precision="auto")
    pretend(monkeypatch, cpu=True)
    folders = tmp_path / "whole", tmp_path / "parts"
    for folder, stops in zip(folders, ((6,), (3, 6)), strict=True):
        for stop in stops:
            # The schedule is that of the recipe: only the batches of this start are limited.
            words = ["--trainer.default_root_dir", str(folder), "--ckpt_path", "last"]
            limit = [] if stop == 6 else ["--trainer.callbacks+=tests.utils.test_precision.StopAt"]
            main(["fit", "--config", str(recipe), *words, *limit])
    whole, parts = map(outcome, folders)
    assert whole["step"] == parts["step"] == 6
    assert same(whole["weights"], parts["weights"])
    assert same(whole["optimizers"], parts["optimizers"])


class StopAt(Callback):
    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        trainer.should_stop = trainer.global_step >= 3


def test_features_are_float32_unless_asked(
    tmp_path: Path, tiny_student: Veca, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, shards = tmp_path / "model", write_dataset(tmp_path / "shards", [3], [])
    tiny_student.eval().save_pretrained(model)
    assert isinstance(load_model(str(model)), Veca)
    found = {}
    for cpu, asked in ((True, "32-true"), (True, "auto"), (False, "auto")):
        pretend(monkeypatch, cpu=cpu)
        out = tmp_path / f"{asked}-{cpu}"
        features(str(model), [str(shards)], out=out, resolution=32, device="cpu", precision=asked)
        found[asked, cpu] = torch.from_numpy(read_features(out)[1])
        settings = yaml.safe_load((out / "features.json").read_text())
        assert settings.get("precision") == ("bf16-mixed" if (cpu, asked) == (True, "auto") else None)
    exact = found["32-true", True]
    assert torch.equal(found["auto", False], exact)
    assert not torch.equal(found["auto", True], exact)
    assert F.cosine_similarity(found["auto", True], exact).min() > 0.999


def test_computing_in_bf16_reaches_the_products() -> None:
    ones = torch.ones(2, 2)
    with computing_in("bf16-mixed", torch.device("cpu")):
        assert (ones @ ones).dtype == torch.bfloat16
    with computing_in("32-true", torch.device("cpu")):
        assert (ones @ ones).dtype == torch.float32
