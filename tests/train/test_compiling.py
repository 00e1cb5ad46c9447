"""Static graphs: made before the first step, one per budget and resolution, none later."""

import logging
from collections.abc import Iterator
from functools import partialmethod
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._inductor import cpp_builder, exc

from tests.training import Diary, make_data, make_model, make_trainer
from veca.train import callbacks
from veca.train.callbacks import has_cpp_compiler


@pytest.fixture
def graphs() -> Iterator[Any]:
    """How many graphs were compiled since the last reset."""
    torch._dynamo.reset()
    counters = torch._dynamo.utils.counters
    counters.clear()
    yield lambda: counters["stats"]["unique_graphs"]
    torch._dynamo.reset()


class CountGraphs(Diary):
    """The number of graphs before every step."""

    def __init__(self, graphs: Any) -> None:
        super().__init__()
        self._graphs = graphs
        self.numbers: list[int] = []

    def on_train_batch_start(self, *args: Any, **kwargs: Any) -> None:
        super().on_train_batch_start(*args, **kwargs)
        self.numbers.append(self._graphs())


@pytest.mark.filterwarnings("ignore")  # of the compiler, about itself
def test_one_graph_per_budget_and_none_later(
    graphs: Any,
    tmp_path: Path,
    tiny_shards: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Graphs are counted as they are traced: making C++ of them takes minutes and changes no number."""
    trace = partialmethod(torch.nn.Module.compile, backend="eager")
    monkeypatch.setattr(torch.nn.Module, "compile", trace)
    monkeypatch.setattr(callbacks, "cpu_multiplies_bf16", lambda: True)
    model, counts = make_model(compile_student=True, budgets={4: 1.0, 16: 1.0}), CountGraphs(graphs)
    trainer = make_trainer(
        tmp_path,
        max_steps=12,
        precision="bf16-mixed",
        callbacks=[counts],
        val_check_interval=6,
        limit_val_batches=2,
    )
    with caplog.at_level(logging.INFO, logger="lightning.pytorch"):
        trainer.fit(model, datamodule=make_data(tiny_shards))
    assert {page[1] for page in counts.pages} == {4, 16}, "names a budget that no step had"
    assert counts.numbers[0] > 0
    assert set(counts.numbers) == {counts.numbers[0]} == {graphs()}
    assert counts.numbers[0] == 2
    assert "compiling the student, 2 budgets at 1 resolutions" in caplog.text


@pytest.mark.parametrize(
    ("compile_student", "worth", "compiled"),
    [
        (None, True, ["student", "teacher"]),
        (None, False, []),
        (False, True, ["teacher"]),
        (True, False, ["student"]),
    ],
)
def test_what_is_compiled_follows_from_recipe_and_length(
    compile_student: bool | None,
    worth: bool,
    compiled: list[str],
    tmp_path: Path,
    tiny_shards: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[str] = []
    monkeypatch.setattr(callbacks, "cpu_multiplies_bf16", lambda: True)
    monkeypatch.setattr(callbacks, "WORTH_COMPILING", 8 if worth else 9)
    monkeypatch.setattr(callbacks, "has_cpp_compiler", lambda: True)
    monkeypatch.setattr(callbacks, "compile_static", lambda *of: done.append("student"))
    monkeypatch.setattr(callbacks, "compile_teacher", lambda *of: done.append("teacher"))
    trainer = make_trainer(tmp_path, max_steps=2, precision="bf16-mixed")  # of 4 images
    trainer.fit(make_model(compile_student=compile_student), datamodule=make_data(tiny_shards))
    assert done == compiled


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_a_cpu_without_bf16_compiles_nothing_by_itself(
    precision: str, tmp_path: Path, tiny_shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(callbacks, "cpu_multiplies_bf16", lambda: False)
    monkeypatch.setattr(callbacks, "WORTH_COMPILING", 1)
    model = make_model()
    make_trainer(tmp_path, max_steps=1, precision=precision).fit(model, datamodule=make_data(tiny_shards))
    assert all(block._compiled_call_impl is None for block in model.student.blocks)
    assert model.teacher.model._compiled_call_impl is None


def test_a_teacher_with_passes_of_one_size_answers_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    teacher = make_model().teacher
    sizes: list[int] = []
    monkeypatch.setattr("veca.teachers.base.CPU_PASS_PIXELS", 4 * 32 * 32)
    monkeypatch.setattr(teacher.model, "compile", lambda **options: None)
    encode, name = teacher.encode, teacher.fingerprint()
    monkeypatch.setattr(teacher, "encode", lambda pixels: (sizes.append(len(pixels)), encode(pixels))[1])
    images = torch.randint(0, 256, (6, 3, 32, 32), dtype=torch.uint8)
    teacher.micro_batch = 4
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = teacher(images)
        teacher.compile_fixed()
        found = teacher(images)
    assert sizes == [4, 2, 4, 4]
    assert found.cls.shape == expected.cls.shape
    torch.testing.assert_close(found.patches, expected.patches, rtol=0.05, atol=0.05)
    assert teacher.fingerprint() == name


def _no_compiler() -> str:
    raise exc.InvalidCxxCompiler


@pytest.mark.parametrize("missing", ["g++", "Python.h"])
def test_without_a_compiler_it_says_what_to_install(
    missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    found = _no_compiler if missing == "g++" else lambda: "g++"
    monkeypatch.setattr(cpp_builder, "get_cpp_compiler", found)
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    assert not has_cpp_compiler()
    assert missing in caplog.text
    (tmp_path / "Python.h").touch()
    assert has_cpp_compiler() == (missing != "g++")
