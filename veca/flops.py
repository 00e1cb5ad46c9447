"""What one image costs, and a recipe: FLOPs counted on the meta device, bytes saved for the backward pass.

Nothing is computed and no weights are loaded: models are built without storage, and torch's own counter
sees the shapes of every product (FLOPs = 2 · multiply-adds; element-wise work and norms do not count). Of a
recipe the YAML is read, and nothing of it is built.
"""

from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from veca.data.resolutions import Phase, ResolutionSchedule
from veca.model import Veca, create_model
from veca.model.sizes import SIZES, Size
from veca.optim.combined import split_parameters
from veca.optim.normuon import POLAR_COEFFICIENTS, owners
from veca.teachers.dinov3 import dinov3_config, is_gated
from veca.teachers.random import TINY
from veca.utils.recipes import load_recipe

NUM_TRAIN, NUM_VAL = 1_742_289, 80_000  # Objects365 v2 on disk
_DINOV3 = {"vits16": "small", "vits16plus": "small_plus", "vitb16": "base", "vitl16": "large"}


class SavedBytes(NamedTuple):
    """What the forward pass keeps for the backward pass, under bf16 autocast."""

    fixed: int  # bf16 copies of the weights
    per_image: int


def meta_student(size: str, overrides: dict[str, Any], *, teacher_width: int) -> Veca:
    """The student of a recipe without storage, with an output projection when the widths differ."""
    with torch.device("meta"):
        student = create_model(size, **overrides)
        if student.size.width != teacher_width:
            student = create_model(size, **{**overrides, "out_width": teacher_width})
    return student


def meta_teacher(size: Size, *, gated: bool) -> nn.Module:
    """DINOv3 without storage."""
    with torch.device("meta"):
        model: nn.Module = transformers.DINOv3ViTModel(dinov3_config(size, gated=gated))
    return model.eval()


def student_flops(student: Veca, *, resolution: int, budget: int) -> int:
    """FLOPs of one image's forward pass."""
    return _total(_count(student, resolution=resolution, budget=budget))


def teacher_flops(teacher: nn.Module, *, resolution: int) -> int:
    """FLOPs of one image's forward pass."""
    return _total(_count(teacher, resolution=resolution))


def attention_flops(model: nn.Module, *, resolution: int, **options: int) -> int:
    """FLOPs of one layer's projection–attention–projection path for one image, of student or teacher."""
    counts = _count(model, resolution=resolution, **options).get_flop_counts()
    # The first of the layers is as good as any; "attn" in a Veca, "attention" in a DINOv3.
    path = next(name for name in counts if name.rpartition(".")[2] in ("attn", "attention"))
    return sum(counts[path].values())


def polar_flops(rows: int, cols: int) -> int:
    """Polar Express of one matrix: XXᵀ, A² and the product with X, in every iteration."""
    short, long = sorted((rows, cols))
    return len(POLAR_COEFFICIENTS) * (4 * short * short * long + 2 * short**3)


def polar_flops_per_rank(student: nn.Module, *, num_ranks: int) -> int:
    """Polar Express on the rank that has the most to do: the others wait for it."""
    shapes = [matrix.shape for _, matrix in split_parameters(student).matrices]
    loads = [0] * num_ranks
    for shape, owner in zip(shapes, owners(shapes, num_ranks=num_ranks), strict=True):
        loads[owner] += polar_flops(*shape)
    return max(loads)


def saved_bytes(size: Size, *, resolution: int, checkpointing: bool) -> SavedBytes:
    """What a student keeps at its full budget; the loss in float32 is part of it."""
    # Two batch sizes tell what grows with the batch. Not 1, where an expanded tensor is no copy.
    two, three = (_saved(size, resolution, batch, checkpointing) for batch in (2, 3))
    return SavedBytes(fixed=max(0, 3 * two - 2 * three), per_image=three - two)


def _saved(size: Size, resolution: int, batch: int, checkpointing: bool) -> int:
    with torch.device("meta"):
        student = Veca(**size.as_dict())
    student.activation_checkpointing = checkpointing
    with FakeTensorMode(allow_non_fake_inputs=True):
        # The meta device has no autocast. A CPU's has the same dtypes as a GPU's for all that happens here.
        student.to_empty(device="cpu")
        own = {parameter.untyped_storage()._cdata for parameter in student.parameters()}
        kept: dict[int, Tensor] = {}

        def keep(tensor: Tensor) -> Tensor:
            kept[tensor.untyped_storage()._cdata] = tensor  # views of one tensor count once
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                features = student(torch.empty(batch, 3, resolution, resolution))
            targets = torch.empty_like(features.patches, dtype=torch.float32)
            loss = nn.functional.mse_loss(features.patches.float(), targets)
        assert loss.requires_grad  # the graph, and so every saved tensor, is alive here
        return sum(tensor.untyped_storage().nbytes() for key, tensor in kept.items() if key not in own)


def _count(model: nn.Module, *, resolution: int, **options: int) -> FlopCounterMode:
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), counter:
        model(torch.empty(1, 3, resolution, resolution, device="meta"), **options)
    return counter


def _total(counter: FlopCounterMode) -> int:
    total: int = counter.get_total_flops()
    return total


class PlannedRun(NamedTuple):
    """One recipe, as far as its cost goes."""

    size: str
    overrides: dict[str, Any]
    teacher: Size
    gated: bool  # whether the teacher's feed-forward is
    budgets: dict[int, float]
    resolutions: ResolutionSchedule
    global_batch_size: int | None
    max_epochs: int
    max_steps: int
    checkpointing: bool
    val_every_epochs: int | None
    val_every_steps: int | None
    val_after_first_epoch: bool
    val_budgets: list[int] | None  # None: the full budget
    val_batches: int | dict[int, int] | None  # per resolution and rank; None: all


def read_recipe(path: Path) -> PlannedRun:
    """The costly part of a recipe, by path or name; a ValueError names the key that is missing or unknown."""
    recipe = load_recipe(str(path))
    try:
        model, trainer, data = recipe["model"], recipe["trainer"], recipe["data"]
        schedule = data.get("resolutions", {})
        phases = schedule.get("phases", [{"start_step": 0, "probabilities": {256: 1.0}}])
        every_epochs = trainer.get("check_val_every_n_epoch", 1)
        callbacks = [entry.get("class_path", "") for entry in trainer.get("callbacks") or []]
        teacher, gated = _teacher(model.get("teacher"))
        run = PlannedRun(
            size=model.get("size", "small"),
            overrides=model.get("size_overrides") or {},
            teacher=teacher,
            gated=gated,
            budgets=model["budgets"],
            resolutions=ResolutionSchedule(**{**schedule, "phases": [Phase(**phase) for phase in phases]}),
            global_batch_size=model.get("global_batch_size"),
            max_epochs=trainer.get("max_epochs") or -1,
            max_steps=trainer.get("max_steps", -1),
            checkpointing=model.get("activation_checkpointing", False),
            val_every_epochs=every_epochs,
            val_every_steps=trainer.get("val_check_interval") if every_epochs is None else None,
            val_after_first_epoch=any(name.endswith("ValidateAfterFirstEpoch") for name in callbacks),
            val_budgets=model.get("val_budgets"),
            val_batches=data.get("val_batches"),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"recipe {path} cannot be planned: {error!r}. It must be YAML with model (teacher, budgets), "
            "trainer and data; pretrain_base is an example."
        ) from None
    attention, problems = model.get("attention", "cores"), []
    if run.size not in SIZES:
        problems.append(f"model.size must be one of {', '.join(SIZES)}; got {run.size!r}.")
    if attention != "cores":
        problems.append(f"model.attention must be cores, the model this plan counts; got {attention!r}.")
    if run.max_steps < 1 and run.max_epochs < 1:
        problems.append("trainer.max_steps or trainer.max_epochs must bound the run; neither does.")
    if not sum(run.budgets.values()) > 0:
        problems.append(f"model.budgets must have a weight above 0; got {run.budgets}.")
    if problems:
        raise ValueError(f"recipe {path} cannot be planned:\n" + "\n".join(f"- {line}" for line in problems))
    return run


def _teacher(entry: dict[str, Any] | None) -> tuple[Size, bool]:
    entry = entry or {"class_path": "none"}  # of a run from stored targets
    kind, options = entry["class_path"].rpartition(".")[2], entry.get("init_args", {})
    known = [part for part in str(options.get("name_or_path", "")).split("-") if part in _DINOV3]
    if kind == "OfflineTeacher":
        name = options.get("size", "tiny")
    elif kind == "TransformersTeacher" and known:
        name = _DINOV3[known[0]]
    else:
        raise ValueError(
            "model.teacher must be a DINOv3 by its Hub name (facebook/dinov3-vitb16-pretrain-lvd1689m; also "
            f"vits16, vits16plus, vitl16) or an OfflineTeacher, to be planned; got {kind} {options}."
        )
    return (TINY, True) if name == "tiny" else (SIZES[name], is_gated(name))


class Work(NamedTuple):
    """FLOPs and sizes of a run on a number of devices; resolutions are the keys."""

    steps: int
    accumulate: int
    batch: dict[int, int]  # images per device and micro-batch
    share: dict[int, float]  # of the steps
    student: dict[int, float]  # FLOPs of a forward pass, mean over budgets
    teacher: dict[int, int]
    passes: int  # forward passes that a training step costs
    polar: int  # per step, on the busiest device
    validation: int  # of the whole run
    devices: int

    @property
    def images_per_step(self) -> float:
        return sum(share * self._images(size) for size, share in self.share.items())

    @property
    def step_flops(self) -> float:
        """Student and teacher over all devices."""
        return sum(share * self._images(size) * self.per_image(size) for size, share in self.share.items())

    @property
    def device_flops(self) -> float:
        """One optimizer step on the busiest device."""
        return self.step_flops / self.devices + self.polar

    def per_image(self, resolution: int) -> float:
        return self.passes * self.student[resolution] + self.teacher[resolution]

    def _images(self, resolution: int) -> int:
        return self.batch[resolution] * self.accumulate * self.devices


def count_work(run: PlannedRun, student: Veca, *, devices: int) -> Work:
    """Everything that the hours follow from."""
    accumulate, batch = divide_batch(run, devices)
    images = max(batch.values()) * accumulate * devices
    steps = run.max_steps if run.max_steps > 0 else run.max_epochs * (NUM_TRAIN // images)
    sizes = run.resolutions.resolutions
    flops = {(s, b): student_flops(student, resolution=s, budget=b) for s in sizes for b in student.budgets}
    network = meta_teacher(run.teacher, gated=run.gated)
    teacher = {size: teacher_flops(network, resolution=size) for size in sizes}
    validation = 0  # a teacher pass and every validated budget
    for size, count in batch.items():
        limit = run.val_batches.get(size) if isinstance(run.val_batches, dict) else run.val_batches
        seen = min(NUM_VAL, limit * count * devices) if limit else NUM_VAL
        budgets = run.val_budgets or [max(student.budgets)]
        validation += seen * (teacher[size] + sum(flops[size, budget] for budget in budgets))
    every = run.val_every_steps or (run.val_every_epochs or 1) * (NUM_TRAIN // images)
    early = run.val_after_first_epoch and run.val_every_epochs != 1
    return Work(
        steps=steps,
        accumulate=accumulate,
        batch=batch,
        share=resolution_shares(run, steps),
        student={s: mean_over_budgets({b: flops[s, b] for b in run.budgets}, run.budgets) for s in sizes},
        teacher=teacher,
        passes=4 if run.checkpointing else 3,
        polar=polar_flops_per_rank(student, num_ranks=devices),
        validation=validation * (steps // max(1, every) + early),
        devices=devices,
    )


def mean_over_budgets(flops: dict[int, int], weights: dict[int, float]) -> float:
    return sum(weight * flops[budget] for budget, weight in weights.items()) / sum(weights.values())


def divide_batch(run: PlannedRun, devices: int) -> tuple[int, dict[int, int]]:
    """Accumulation, and images per device and micro-batch, that keep the recipe's images per step."""
    most = run.resolutions.batch_sizes
    if run.global_batch_size is None:
        return 1, most
    if run.global_batch_size % devices:
        near = [n for n in range(1, run.global_batch_size + 1) if run.global_batch_size % n == 0]
        raise ValueError(
            f"devices must divide model.global_batch_size = {run.global_batch_size}; got {devices}. "
            f"Try {min(near, key=lambda n: abs(n - devices))}."
        )
    share = run.global_batch_size // devices
    accumulate = next(n for n in range(1, share + 1) if share % n == 0 and share // n <= max(most.values()))
    return accumulate, {size: min(count, share // accumulate) for size, count in most.items()}


def resolution_shares(run: PlannedRun, steps: int) -> dict[int, float]:
    """Share of the run's steps at each resolution: phases weighed by their length."""
    phases = run.resolutions.phases
    ends = [*(phase.start_step for phase in phases[1:]), steps]
    share = dict.fromkeys(run.resolutions.resolutions, 0.0)
    for phase, end in zip(phases, ends, strict=True):
        length = max(0, min(end, steps) - phase.start_step)
        for size, probability in phase.probabilities.items():
            share[size] += probability * length / steps
    return share
