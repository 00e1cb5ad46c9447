"""A run that is asked to stop, at every moment there is."""

import contextlib
import os
import signal
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Callback

from tests.runs import same
from tests.training import Diary, make_data, make_model, make_trainer
from veca.train.checkpointing import LastCheckpoint, SafeCheckpointIO
from veca.train.preemption import STOPPED, Stopped, StopWhenAsked
from veca.train.slurm import requeue
from veca.utils.lightning_compat import leave_signals_alone
from veca.utils.process import STOP, stop_signals

STEPS = 6
pytestmark = pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty")


class SignalAt(Callback):
    """Sends this process a signal when a hook is called for the n-th time."""

    def __init__(self, hook: str, count: int, numbers: tuple[signal.Signals, ...]) -> None:
        self.left = count
        self.numbers = numbers
        setattr(self, hook, self._count)

    def _count(self, *args: Any, **kwargs: Any) -> None:
        self.left -= 1
        if self.left == 0:
            for number in self.numbers:
                os.kill(os.getpid(), number)


class Validations(Callback):
    def __init__(self) -> None:
        self.steps: list[int] = []

    def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
        if not trainer.sanity_checking:
            self.steps.append(trainer.global_step)


class Outcome:
    """What one or two fits saw, and the student they left."""

    def __init__(self) -> None:
        self.pages: list[Any] = []
        self.validations: list[int] = []
        self.student: dict[str, torch.Tensor] = {}


def fit(
    folder: Path, shards: Path, seen: Outcome, *extra: Callback, ckpt_path: Path | None = None, **options: Any
) -> None:
    model, diary, validations = make_model(), Diary(), Validations()
    checkpoints = folder / "checkpoints"
    trainer = make_trainer(
        folder,
        **{"max_steps": STEPS, **options},
        accumulate_grad_batches=2,
        val_check_interval=4,
        check_val_every_n_epoch=None,
        limit_val_batches=2,
        num_sanity_val_steps=1,
        enable_checkpointing=True,
        plugins=[SafeCheckpointIO()],
        callbacks=[
            *extra,
            diary,
            validations,
            LastCheckpoint(checkpoints, every=3),
            StopWhenAsked(checkpoints / "last.ckpt"),
        ],
    )
    leave_signals_alone(trainer)
    weights_only = None if ckpt_path is None else True
    try:
        with stop_signals.caught(ends_process=False):
            trainer.fit(model, datamodule=make_data(shards), ckpt_path=ckpt_path, weights_only=weights_only)
    finally:
        seen.pages += diary.pages
        seen.validations += validations.steps
        seen.student = {name: tensor.clone() for name, tensor in model.student.state_dict().items()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, tiny_shards: Path) -> Outcome:
    seen = Outcome()
    fit(tmp_path_factory.mktemp("whole"), tiny_shards, seen)
    return seen


ONCE, OTHER, TWICE = (signal.SIGUSR1,), (signal.SIGTERM,), (signal.SIGTERM, signal.SIGUSR1, signal.SIGTERM)
MOMENTS = [  # hook, its call, signals, the optimizer step after which the run ends
    ("setup", 1, ONCE, 1),
    ("on_sanity_check_start", 1, OTHER, 1),
    ("on_train_batch_start", 4, ONCE, 2),  # the second half of an accumulation; a validation follows
    ("on_train_batch_start", 5, TWICE, 3),
    ("on_before_optimizer_step", 1, OTHER, 1),
    ("on_validation_batch_end", 2, ONCE, 2),  # the first is the sanity check's
    ("on_validation_end", 2, OTHER, 2),
    ("on_save_checkpoint", 1, ONCE, 3),
]


@pytest.mark.parametrize(("hook", "count", "numbers", "step"), MOMENTS)
def test_a_signal_ends_the_run_at_a_step_and_it_goes_on_as_if_there_had_been_none(
    hook: str,
    count: int,
    numbers: tuple[signal.Signals, ...],
    step: int,
    whole: Outcome,
    tiny_shards: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    seen, last = Outcome(), tmp_path / "checkpoints" / "last.ckpt"
    with pytest.raises(Stopped) as stop:
        fit(tmp_path, tiny_shards, seen, SignalAt(hook, count, numbers))
    assert stop.value.code == STOPPED
    assert torch.load(last, weights_only=True)["global_step"] == step
    said = capfd.readouterr().err
    assert f"asked to stop by {numbers[0].name}: step {step} is saved" in said
    assert "--ckpt_path last" in said
    fit(tmp_path, tiny_shards, seen, ckpt_path=last)
    assert seen.pages == whole.pages  # the same samples, views and budgets, none twice, none left out
    assert seen.validations == whole.validations
    assert same(seen.student, whole.student)


@pytest.mark.parametrize(("hook", "count"), [("on_train_batch_start", 2 * STEPS), ("on_train_end", 1)])
def test_a_run_whose_last_step_is_under_way_finishes(
    hook: str, count: int, whole: Outcome, tiny_shards: Path, tmp_path: Path
) -> None:
    seen = Outcome()
    fit(tmp_path, tiny_shards, seen, SignalAt(hook, count, ONCE))
    assert same(seen.student, whole.student)


def test_handlers_are_ours_during_training_and_gone_after_it(tiny_shards: Path, tmp_path: Path) -> None:
    during: list[Any] = []

    class Look(Callback):
        def on_train_batch_end(self, *args: Any) -> None:
            during.append([signal.getsignal(number) for number in STOP])

    before = [signal.getsignal(number) for number in STOP]
    fit(tmp_path, tiny_shards, Outcome(), Look(), max_steps=1)
    assert during[-1] == [stop_signals._note] * 3
    assert [signal.getsignal(number) for number in STOP] == before


def test_a_validation_alone_never_writes_the_checkpoint(
    tiny_shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stop_signals, "received", signal.SIGUSR1)
    stop = StopWhenAsked(tmp_path / "last.ckpt")
    options = {"max_steps": STEPS, "limit_val_batches": 1, "enable_checkpointing": True}
    trainer = make_trainer(tmp_path, **options, callbacks=[stop])
    trainer.validate(make_model(), datamodule=make_data(tiny_shards), verbose=False)
    assert not stop.path.exists()


def test_at_the_end_of_a_process_late_signals_are_ignored() -> None:
    before = [signal.getsignal(number) for number in STOP]
    try:
        with stop_signals.caught(ends_process=True):
            os.kill(os.getpid(), signal.SIGUSR1)
            assert stop_signals.received == signal.SIGUSR1
        assert stop_signals.received is None  # else the next verb of this process would stop
        for number in STOP:
            os.kill(os.getpid(), number)  # at once, so one wish: it would end this process
    finally:
        signal.set_wakeup_fd(-1)
        for number, handler in zip(STOP, before, strict=True):
            signal.signal(number, handler)


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.torture)])
def test_loader_workers_outlive_the_signals_of_a_run(method: str, tiny_shards: Path) -> None:
    data = make_data(tiny_shards, num_workers=1, start_method=method)
    data.setup("fit")
    loader = data.train_loader()
    try:
        batches = iter(loader)
        next(batches)
        (worker,) = loader._data_loader._iterator._workers  # type: ignore[union-attr]
        for name in ("USR1", "TERM", "TERM"):  # from another process than its parent
            subprocess.run(["kill", f"-{name}", str(worker.pid)], check=True)
        for _ in range(5):
            next(batches)
        assert worker.is_alive()
        worker.terminate()
        worker.join(10)
        assert worker.exitcode == 0
    finally:
        with contextlib.suppress(RuntimeError):  # torch reports the worker that was ended
            loader.close()


def stand_in(folder: Path, *, state: str, status: int = 0) -> None:
    """A scontrol that reports a state, and writes down what it is asked."""
    script = folder / "scontrol"
    script.write_text(
        f'#!/bin/sh\necho "$@" >> {folder}/asked\n'
        f'[ "$1" = show ] && echo "JobId=7 JobState={state} Reason=None" && exit 0\n'
        f"[ {status} = 0 ] || echo 'Requested operation is presently disabled' >&2\nexit {status}\n"
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)


@pytest.mark.parametrize(
    ("state", "status", "again", "words"),
    [
        ("RUNNING", 0, True, "job 7 is requeued"),
        ("TIMEOUT", 0, True, "job 7 is requeued"),
        ("PENDING", 0, True, "SLURM has requeued job 7"),
        ("CANCELLED", 0, False, "was not asked to run it again"),
        ("COMPLETING", 0, False, "was not asked to run it again"),  # how 22.05 shows a cancelled one
        ("RUNNING", 1, False, "presently disabled"),
    ],
)
def test_a_job_is_requeued_unless_it_was_cancelled(
    state: str,
    status: int,
    again: bool,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stand_in(tmp_path, state=state, status=status)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    will, sentence = requeue({"SLURM_JOB_ID": "7"})
    assert will == again
    assert words in sentence
    asked = (tmp_path / "asked").read_text()
    assert ("requeue 7" in asked) == (state in ("RUNNING", "TIMEOUT"))


def test_without_scontrol_nothing_breaks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    will, sentence = requeue({"SLURM_JOB_ID": "7"})
    assert not will
    assert "did not requeue" in sentence
