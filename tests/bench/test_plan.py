"""The plan's counter against the paper, and its totals against arithmetic by hand."""

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch.utils.flop_counter import FlopCounterMode

from veca import create_model, flops
from veca.bench.plan import (
    DEVICES,
    count_work,
    divide_batch,
    plan,
    read_recipe,
    resolution_shares,
    state_bytes,
)
from veca.model.sizes import SIZES, Size
from veca.optim.combined import NorMuonAdamW, split_parameters
from veca.optim.normuon import polar_express

RECIPES = Path(__file__).resolve().parents[2] / "recipes"
TOY = {"width": 32, "depth": 2, "num_heads": 2, "num_cores": 16, "core_group": 8}


def toy_recipe(folder: Path, **model: Any) -> Path:
    recipe = {
        "trainer": {"max_steps": 100, "check_val_every_n_epoch": None, "val_check_interval": 50},
        "model": {
            "size": "tiny",
            "size_overrides": TOY,
            "teacher": {"class_path": "veca.teachers.OfflineTeacher"},
            "budgets": {8: 1, 16: 3},
            "val_budgets": [8, 16],
            "global_batch_size": 24,
            **model,
        },
        "data": {
            "resolutions": {
                "phases": [
                    {"start_step": 0, "probabilities": {32: 1.0}},
                    {"start_step": 20, "probabilities": {32: 0.5, 64: 0.5}},
                ],
                "batch_size": 6,
            },
            "val_batches": 10,
        },
    }
    path = folder / "toy.yaml"
    path.write_text(yaml.safe_dump(recipe), encoding="utf-8")
    return path


def student_by_hand(resolution: int, budget: int) -> int:
    """Patch embedding, two layers, one coordinate head, the projection to the teacher's 96 channels."""
    width, hidden, patches = 32, int(32 * 2.66667), (resolution // 16) ** 2
    tokens = patches + budget
    attention = 8 * tokens * width**2 + 4 * width * (budget * tokens + patches * budget)
    feed_forward = 6 * tokens * width * hidden
    ends = 2 * patches * 768 * width + 2 * budget * width * 2 + 2 * tokens * width * 96
    return 2 * (attention + feed_forward) + ends


def teacher_by_hand(resolution: int) -> int:
    """DINOv3 at 96 channels: three gated layers of four times the width, five tokens beside the patches."""
    width, patches = 96, (resolution // 16) ** 2
    tokens = patches + 5
    layer = 8 * tokens * width**2 + 4 * width * tokens**2 + 6 * tokens * width * 4 * width
    return 3 * layer + 2 * patches * 768 * width


@pytest.mark.parametrize(
    ("name", "veca", "dinov3"), [("small", 5.72, 30.67), ("base", 21.25, 71.02), ("large", 37.06, 103.29)]
)
def test_the_attention_path_costs_what_the_paper_says(name: str, veca: float, dinov3: float) -> None:
    student = flops.meta_student(name, {"depth": 1}, teacher_width=SIZES[name].width)
    teacher = flops.meta_teacher(SIZES[name], gated=False)
    ours = flops.attention_flops(student, resolution=1024, budget=64)
    theirs = flops.attention_flops(teacher, resolution=1024)
    assert (round(ours / 1e9, 2), round(theirs / 1e9, 2)) == (veca, dinov3)


def test_totals_of_a_toy_recipe_equal_arithmetic_by_hand(tmp_path: Path) -> None:
    run = read_recipe(toy_recipe(tmp_path))
    student = flops.meta_student(run.size, run.overrides, teacher_width=96)
    work = count_work(run, student, devices=2)
    assert (work.steps, work.accumulate, work.batch) == (100, 2, {32: 6, 64: 6})
    assert work.share == pytest.approx({32: 0.2 + 0.8 * 0.5, 64: 0.8 * 0.5})
    mean = {r: (student_by_hand(r, 8) + 3 * student_by_hand(r, 16)) / 4 for r in (32, 64)}
    assert work.student == mean
    assert work.teacher == {r: teacher_by_hand(r) for r in (32, 64)}
    image = {r: 3 * mean[r] + teacher_by_hand(r) for r in (32, 64)}
    assert work.step_flops == pytest.approx(24 * (0.6 * image[32] + 0.4 * image[64]))
    assert work.device_flops == pytest.approx(work.step_flops / 2 + work.polar)
    grid = sum(teacher_by_hand(r) + sum(student_by_hand(r, b) for b in (8, 16)) for r in (32, 64))
    assert work.validation == 2 * 10 * 6 * 2 * grid


def test_the_hours_printed_follow_from_the_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = toy_recipe(tmp_path)
    run = read_recipe(path)
    work = count_work(run, flops.meta_student(run.size, run.overrides, teacher_width=96), devices=2)
    plan(path, device="h100", devices=2, utilisation=0.5)
    text = capsys.readouterr().out
    rate = 989e12 * 0.5
    assert f"{24 / (work.device_flops / rate):,.0f} images/s" in text
    assert "989 TFLOP/s dense bf16 × 0.5 = 494.5 TFLOP/s" in text
    assert "ASSUMED, not measured: training reaches 50% of the peak" in text


def test_activation_checkpointing_costs_one_more_forward(tmp_path: Path) -> None:
    run = read_recipe(toy_recipe(tmp_path, activation_checkpointing=True))
    work = count_work(run, flops.meta_student(run.size, run.overrides, teacher_width=96), devices=2)
    assert work.per_image(32) == 4 * work.student[32] + work.teacher[32]


def test_the_papers_run_has_its_steps() -> None:
    run = read_recipe(RECIPES / "pretrain_base.yaml")
    assert (run.max_epochs * (1_742_289 // 768), divide_batch(run, 6)) == (306_180, (1, {256: 128}))
    assert divide_batch(run, 64) == (1, {256: 12})
    assert divide_batch(read_recipe(RECIPES / "pretrain_large.yaml"), 6) == (2, {256: 64})


def test_multires_weighs_its_phases_by_their_length() -> None:
    share = resolution_shares(read_recipe(RECIPES / "multires_base.yaml"), 50_000)
    assert share == pytest.approx(
        {
            256: 0.14 * 0.35 + 0.86 * 0.15,
            384: 0.14 * 0.35 + 0.86 * 0.25,
            512: 0.30,
            768: 0.86 * 0.30,
        }
    )


def test_polar_express_is_counted_as_it_is_computed() -> None:
    for shape in ((48, 80), (80, 48), (64, 64)):
        with FlopCounterMode(display=False) as counter:
            polar_express(torch.empty(1, *shape, device="meta"))
        assert flops.polar_flops(*shape) == counter.get_total_flops()
    student = create_model("tiny", **TOY)
    each = [flops.polar_flops(*matrix.shape) for _, matrix in split_parameters(student).matrices]
    assert flops.polar_flops_per_rank(student, num_ranks=1) == sum(each)
    assert sum(each) / 2 <= flops.polar_flops_per_rank(student, num_ranks=2) <= sum(each) / 2 + max(each)


def test_optimizer_state_has_the_bytes_of_the_real_one() -> None:
    student = create_model("tiny", **TOY)
    optimizer = NorMuonAdamW(
        split_parameters(student), lr=1e-3, weight_decay=0.0, momentum=0.9, beta2=0.9, betas=(0.9, 0.99)
    )
    for parameter in student.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    tensors = [value for state in optimizer.state.values() for key, value in state.items() if key != "step"]
    assert state_bytes(student) == sum(tensor.numel() * 4 for tensor in tensors)


def test_saved_bytes_are_those_of_a_real_forward_pass() -> None:
    size = Size(width=32, depth=2, num_heads=2, ffn_ratio=2.0, num_cores=16)

    def real(batch: int) -> int:
        student = create_model("tiny", **size.as_dict())
        own = {parameter.data_ptr() for parameter in student.parameters()}
        kept: dict[int, torch.Tensor] = {}
        with torch.autograd.graph.saved_tensors_hooks(
            lambda x: kept.setdefault(x.untyped_storage().data_ptr(), x), lambda x: x
        ):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                patches = student(torch.zeros(batch, 3, 64, 64)).patches
            loss = torch.nn.functional.mse_loss(patches.float(), torch.zeros(patches.shape))
        assert loss.requires_grad
        return sum(x.untyped_storage().nbytes() for key, x in kept.items() if key not in own)

    saved = flops.saved_bytes(size, resolution=64, checkpointing=False)
    assert saved.per_image == real(4) - real(3)
    checkpointed = flops.saved_bytes(size, resolution=64, checkpointing=True)
    assert checkpointed.per_image < saved.per_image / 2


def test_unknown_device_number_and_recipe_are_named(tmp_path: Path) -> None:
    path = toy_recipe(tmp_path)
    with pytest.raises(ValueError, match="device must be one of l40s, h100; got 'a100'"):
        plan(path, device="a100")
    with pytest.raises(ValueError, match=r"devices must divide model.global_batch_size = 24; got 5. Try 4"):
        plan(path, devices=5)
    with pytest.raises(ValueError, match="utilisation must be above 0"):
        plan(path, utilisation=35)
    with pytest.raises(FileNotFoundError, match=r"nowhere.yaml: must be an existing file"):
        plan(tmp_path / "nowhere.yaml")
    (tmp_path / "list.yaml").write_text("- 1\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"list.yaml: must be YAML with keys"):
        plan(tmp_path / "list.yaml")
    with pytest.raises(ValueError, match=r"model.size must be one of tiny.*got 'huge'"):
        plan(toy_recipe(tmp_path, size="huge"))
    with pytest.raises(ValueError, match=r"model.teacher must be a DINOv3"):
        plan(toy_recipe(tmp_path, teacher={"class_path": "veca.teachers.EfficientNetTeacher"}))


def test_every_full_size_recipe_can_be_read() -> None:
    for path in [*RECIPES.glob("pretrain_*.yaml"), *RECIPES.glob("multires_*.yaml")]:
        run = read_recipe(path)
        assert all(divide_batch(run, device.usual) for device in DEVICES.values()), path.name
