"""`veca mini`: its statistics on numbers done by hand, its plan, and its claims, kept or not."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from veca import create_model
from veca.backbones.control import TransformersStudent
from veca.backbones.models import open_model
from veca.checkpoint import CONTROL_KEY, SIZE_KEY
from veca.cli.main import main
from veca.data.views import normalise
from veca.mini.command import STEPS
from veca.mini.losses import Paired, Validation, over_seeds, paired
from veca.mini.plan import (
    BATCH_SIZE,
    RECIPE,
    Settings,
    checkpoint,
    fit_steps,
    keep_settings,
    probe_steps,
)
from veca.mini.steps import Step, run_step
from veca.mini.students import OVERRIDES, MeanPatch, open_student
from veca.mini.table import Measured, Page, claims, loss_rows, probe_rows, read_probes, write_page
from veca.probes.results import Cell, Results, write_results
from veca.train.losses import distillation_loss
from veca.types import Batch, Features, Targets

SETTINGS = Settings(photos=None, cifar="cifar", camvid="camvid", steps=20, seeds=(1, 2))


def losses(*values: float) -> Any:
    return np.array(values)


def measured(*, middle: float = 2.2, control: float = 1.9) -> Measured:
    spread = losses(-0.3, 0.0, 0.3)  # between images: cancels in paired differences
    step = losses(0.0, 0.01, -0.01)
    return Measured(
        are_photos=np.array([False, False, True]),
        constant=3.0 + spread,
        nested={8: 2.4 + spread, 16: middle + spread + step, 64: 2.0 + spread - step},
        fixed=2.0 + spread,
        full=control + spread,
    )


def probes(ours: float = 0.5) -> Any:
    camvid = {"nested, C = 64": ours + 0.2, "random weights": 0.5}
    cifar = {"nested, C = 64": ours, "raw pixels": 0.35}
    return {
        "CIFAR-10, mean patch": {name: {"top-1": [value, value]} for name, value in cifar.items()},
        "CamVid": {name: {"pixel accuracy": [value]} for name, value in camvid.items()},
    }


def test_a_paired_difference_by_hand() -> None:
    found = paired(losses(3.0, 5.0, 9.0), losses(2.0, 3.0, 6.0))  # differences 1, 2, 3
    assert found.mean == pytest.approx(2.0)
    assert found.error == pytest.approx(1 / 3**0.5)
    assert str(Paired(0.5, 0.25)) == "+0.5000 ± 0.2500"


def test_differences_between_images_do_not_count() -> None:
    far = losses(1.0, 100.0, 1000.0)
    assert paired(far + 0.5, far) == pytest.approx(Paired(0.5, 0.0))


def test_one_image_has_no_standard_error() -> None:
    with pytest.raises(ValueError, match="two images or more"):
        paired(losses(1.0), losses(2.0))


def test_seeds_are_averaged_per_image() -> None:
    assert over_seeds([losses(1.0, 4.0), losses(3.0, 8.0)]).tolist() == [2.0, 6.0]


def test_claims_that_hold_are_reached() -> None:
    found = claims(measured(), probes())
    assert [claim.verdict for claim in found] == ["reached"] * 5
    assert found[2].measured == "90.9%"  # (3.0 − 2.0) / (3.0 − 1.9)
    assert found[3].measured == "50.0 − 35.0 = +15.0"


def test_claims_that_fail_say_so() -> None:
    found = claims(measured(middle=2.5, control=1.5), probes(ours=0.3))
    assert [claim.verdict for claim in found] == [
        "NOT reached",  # 8 → 16 raises the loss
        "reached",
        "NOT reached",  # a margin of 1.0 of 1.5
        "NOT reached",
        "NOT reached",
    ]
    assert found[0].measured.startswith("C = 8 → 16: +0.1000")


def test_losses_are_also_told_apart_by_the_kind_of_image() -> None:
    rows = loss_rows(measured())
    assert rows[0][1:4] == ["mean", "photos", "scenes"]
    assert rows[1][1:4] == ["3.0000", "3.3000", "2.8500"]
    photos_alone = measured()._replace(are_photos=np.array([True, True, True]))
    assert loss_rows(photos_alone)[1][1:4] == ["3.0000", "3.0000", "–"]


def test_a_flat_curve_is_no_elastic_one() -> None:
    level = losses(2.0, 2.1, 2.2)
    flat = Measured(np.array([True, True, True]), level + 1, {8: level, 64: level}, level, level)
    assert [claim.verdict for claim in claims(flat, probes())][:2] == ["reached", "NOT reached"]


def test_absent_data_is_not_measured() -> None:
    assert [claim.verdict for claim in claims(measured(), {})][3:] == ["not measured"] * 2


def test_a_control_below_the_constant_reaches_nothing() -> None:
    claim = claims(measured(control=3.5), {})[2]
    assert (claim.measured, claim.verdict) == ("the control has no margin", "NOT reached")


def test_the_page_is_whole_in_itself(tmp_path: Path) -> None:
    page = Page(measured(control=1.5), probes(), [["model", "steps"], ["nested", "20"]], ["A note <here>."])
    text = write_page(tmp_path, page, {"steps": 20})
    assert (tmp_path / "mini.md").read_text(encoding="utf-8") == text + "\n"
    assert "NOT reached" in text
    assert "| nested, C = 16 | 2.2000 | 2.4900 | 2.0550 | nested, C = 8 | -0.2000 ± 0.0058 |" in text
    html = (tmp_path / "mini.html").read_text(encoding="utf-8")
    assert "A note &lt;here&gt;." in html
    assert 'class="missed">NOT reached' in html
    assert "http" not in html
    body = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    assert body["margin_share"] == pytest.approx(1 / 1.5)
    assert len(body["losses"]["constant"]) == 3


def test_probe_cells_become_rows_over_seeds(tmp_path: Path) -> None:
    def write(name: str, model: str, *cells: Cell) -> Path:
        path = tmp_path / f"{name}.json"
        write_results(path, Results("linear", model, "D", ["top-1"], cells=list(cells)))
        return path

    pixels = Cell("raw pixels", None, 16, {"top-1": 0.3})
    first = write("a", "n1", Cell("model", 8, 64, {"top-1": 0.5}), Cell("n2", 8, 64, {"top-1": 0.7}), pixels)
    random = [
        Cell("random weights", 64, 64, {"top-1": value}, seed=seed) for seed, value in enumerate((0.2, 0.4))
    ]
    second = write("b", "c1", Cell("model", None, 64, {"top-1": 0.6}), *random, pixels)
    found = read_probes([first, second], {"n1": "nested", "n2": "nested", "c1": "control"})
    assert probe_rows(found) == [
        ["features", "top-1"],
        ["nested, C = 8", "60.0 (50.0, 70.0)"],
        ["control", "60.0"],
        ["random weights", "30.0 (20.0, 40.0)"],
        ["raw pixels", "30.0"],
    ]


def test_the_three_fits_differ_in_what_they_are_about_only(tmp_path: Path) -> None:
    nested, fixed, full = (step.commands for step in fit_steps(tmp_path, SETTINGS, views=3))
    assert [len(commands) for commands in (nested, fixed, full)] == [2, 2, 2]

    def options(words: list[str]) -> dict[str, str]:
        found = dict(zip(words[4::2], words[5::2], strict=True))
        found.pop("--trainer.default_root_dir")
        return found

    assert options(nested[0]) | {"--model.budgets": "{64: 1}"} == options(fixed[0])
    control = {"--model.attention": "full", "--model.budgets": "{5: 1}"}
    assert options(nested[0]) | control == options(full[0])
    seeds = dict.fromkeys(("--seed_everything", "--model.seed", "--data.seed"), "2")
    assert options(nested[0]) | seeds == options(nested[1])


@pytest.mark.parametrize("model", [0, 1, 2], ids=["nested", "fixed", "full"])
def test_every_fit_of_the_plan_is_understood(
    model: int, tmp_path: Path, tiny_shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = fit_steps(tmp_path, SETTINGS, views=3)[model]
    words = step.commands[0][3:]
    given = dict(zip(words[1::2], words[2::2], strict=True))
    cached = [key for key in given if key.startswith("--model.teacher.")]
    given = {key: value for key, value in given.items() if key not in cached} | {
        "--model.teacher": "veca.teachers.OfflineTeacher",
        "--model.optimization.warmup_steps": "0",
        "--model.global_batch_size": "1",
        "--trainer.fast_dev_run": "true",
        "--trainer.enable_progress_bar": "false",
        "--trainer.enable_model_summary": "false",
        "--data.sources": str(tiny_shards),
        "--data.num_workers": "0",
        "--data.resolutions.batch_size": "1",
    }
    monkeypatch.setattr(sys, "argv", ["veca"])
    main(["fit", *(word for pair in given.items() for word in pair)])


def test_absent_sets_are_not_probed(tmp_path: Path) -> None:
    names = [step.name for step in probe_steps(tmp_path, SETTINGS)]
    assert names == ["probe-cifar", "probe-sample", "probe-camvid"]
    absent = Settings(photos=None, cifar=None, camvid=None, steps=20, seeds=(1,))
    assert [step.name for step in probe_steps(tmp_path, absent)] == ["probe-sample"]


def test_a_finished_step_is_not_run_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log"
    script = f"open({str(log)!r}, 'a').write('x')"
    step = Step("one", "a step", [[sys.executable, "-c", script]] * 2)
    first = run_step(step, tmp_path, place="1/2", started=0.0)
    assert run_step(step, tmp_path, place="1/2", started=0.0) == first
    assert log.read_text() == "xx"
    assert "[1/2] a step: finished before" in capsys.readouterr().out


def test_a_failed_step_shows_why_and_is_run_again(tmp_path: Path) -> None:
    bad = Step("one", "a step", [[sys.executable, "-c", "raise SystemExit('no such thing')"]])
    with pytest.raises(ValueError, match="no such thing"):
        run_step(bad, tmp_path, place="1/1", started=0.0)
    assert run_step(bad._replace(commands=[[sys.executable, "-c", ""]]), tmp_path, place="1/1", started=0.0)


def test_a_failure_ends_the_commands_beside_it(tmp_path: Path) -> None:
    commands = [
        [sys.executable, "-c", "import time; time.sleep(60)"],
        [sys.executable, "-c", "raise SystemExit(3)"],
    ]
    with pytest.raises(ValueError, match="status 3"):
        run_step(Step("two", "two", commands), tmp_path, place="1/1", started=0.0)


def test_a_stopped_plan_leaves_nothing_running(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from veca.mini.steps import Step, run_step\n"
        "child = [sys.executable, '-c', 'import os, time; print(os.getpid(), flush=True); time.sleep(60)']\n"
        f"run_step(Step('one', 'one', [child]), Path({str(tmp_path)!r}), place='1/1', started=0.0)"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.DEVNULL)
    log = tmp_path / "logs/one-0.log"
    while not (log.exists() and log.read_text()):
        time.sleep(0.05)
    parent.terminate()
    assert parent.wait() == 143
    with pytest.raises(ProcessLookupError):
        os.kill(int(log.read_text()), 0)


def test_a_folder_keeps_its_settings(tmp_path: Path) -> None:
    keep_settings(tmp_path / "out", SETTINGS)
    keep_settings(tmp_path / "out", SETTINGS)
    with pytest.raises(ValueError, match="steps: 20 then, 30 now"):
        keep_settings(
            tmp_path / "out", Settings(photos=None, cifar="cifar", camvid="camvid", steps=30, seeds=(1, 2))
        )


def test_the_recipe_has_the_size_of_the_control() -> None:
    recipe = yaml.safe_load(RECIPE.read_text(encoding="utf-8"))
    assert recipe["model"]["size_overrides"] == OVERRIDES
    assert recipe["trainer"]["max_steps"] == STEPS
    assert recipe["model"]["global_batch_size"] == BATCH_SIZE
    control = TransformersStudent("tiny", **OVERRIDES, out_width=320)
    ours = create_model("tiny", **OVERRIDES, out_width=320)
    counts = [sum(tensor.numel() for tensor in model.parameters()) for model in (control, ours)]
    assert counts[0] == pytest.approx(counts[1], rel=0.01)
    assert ours.budgets[-1] == 64


def save(path: Path, student: torch.nn.Module, **more: Any) -> Path:
    state = {f"student.{name}": tensor for name, tensor in student.state_dict().items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save({"state_dict": state, **more}, path)
    return path


def test_a_probe_opens_the_control_and_the_mean_of_patches(tmp_path: Path) -> None:
    control = TransformersStudent("tiny", **OVERRIDES, out_width=320).eval()
    path = save(checkpoint(tmp_path, "full", 1), control, **{CONTROL_KEY: control.arguments})
    student = create_model("tiny", **OVERRIDES, out_width=320).eval()
    other = save(checkpoint(tmp_path, "nested", 1), student, **{SIZE_KEY: student.size.as_dict()})
    images = torch.randint(0, 256, (2, 3, 32, 48), dtype=torch.uint8)
    with torch.no_grad():
        features, nested = control(normalise(images)), student(normalise(images), budget=8)
    found = open_model(str(path)).at()(images)
    torch.testing.assert_close(found.cls, features.cls, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(found.patches, features.patches, atol=1e-4, rtol=1e-4)
    mean = open_model(f"teacher:veca.mini.students.MeanPatch:{other}@8").at()(images)
    torch.testing.assert_close(mean.cls, nested.patches.mean(1), atol=1e-4, rtol=1e-4)
    assert MeanPatch(f"{other}@8").fingerprint() != MeanPatch(f"{other}@16").fingerprint()
    assert MeanPatch("random:0").fingerprint() != MeanPatch("random:1").fingerprint()
    assert not open_student(other).training
    assert not open_student(path).training


def test_losses_per_image_are_the_objective() -> None:
    torch.manual_seed(0)
    targets = Targets(torch.randn(4, 320), torch.randn(4, 4, 320))
    images = torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8)
    keys = ["photo-00000-1f", "scene-000001-2e", "scene-000002-3d", "photo-00001-4c"]
    validation = Validation.__new__(Validation)
    validation.batches = [
        Batch(images[part], keys[part], Targets(targets.cls[part], targets.patches[part]))
        for part in (slice(0, 3), slice(3, 4))
    ]
    student = create_model("tiny", **OVERRIDES, out_width=320).eval()
    with torch.no_grad():
        whole = distillation_loss(student(normalise(images), budget=16), targets)
    found = validation.losses(student, budget=16)
    assert found.shape == (4,)
    assert validation.are_photos().tolist() == [True, False, False, True]
    assert found.mean() == pytest.approx(float(whole.loss), rel=1e-5)
    mean = Features(
        targets.cls.mean(0).expand(4, -1),
        targets.patches.mean(0).expand(4, -1, -1),
        targets.cls[:, None],
        (2, 2),
    )
    assert validation.constant().mean() == pytest.approx(
        float(distillation_loss(mean, targets).loss), rel=1e-5
    )


def test_the_plan_names_what_the_makefile_runs() -> None:
    text = (RECIPE.parents[1] / "Makefile").read_text(encoding="utf-8")
    assert "veca mini" in text


def test_mistakes_are_named_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        main(["mini", "--out", "out", "--steps", "0", "--seeds", "1,1", "--photos", "nowhere"])
    error = capsys.readouterr().err
    assert "steps must be at least 1; got 0" in error
    assert "seeds must be different whole numbers" in error
    assert "photos = nowhere: there is no such folder" in error
    assert not (tmp_path / "out").exists()
