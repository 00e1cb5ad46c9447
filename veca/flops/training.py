"""How much a planned run computes: its steps, its batches, and the FLOPs of a step."""

from typing import NamedTuple

from veca.flops.model import meta_teacher, polar_flops_per_rank, student_flops, teacher_flops
from veca.flops.recipe import PlannedRun
from veca.model import Veca
from veca.optim.split import split_parameters

NUM_TRAIN, NUM_VAL = 1_742_289, 80_000  # Objects365 v2 on disk


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
    validation: float  # of the whole run
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
    weight = sum(run.budgets.values())
    network = meta_teacher(run.teacher.size, gated=run.teacher.gated)
    teacher = {size: teacher_flops(network, resolution=size) for size in sizes}
    matrices = [matrix.shape for _, matrix in split_parameters(student).matrices]
    return Work(
        steps=steps,
        accumulate=accumulate,
        batch=batch,
        share=resolution_shares(run, steps),
        student={s: sum(w * flops[s, b] for b, w in run.budgets.items()) / weight for s in sizes},
        teacher=teacher,
        passes=4 if run.checkpointing else 3,
        polar=polar_flops_per_rank(matrices, num_ranks=devices),
        validation=_num_validations(run, steps, steps_per_epoch=NUM_TRAIN // images)
        * _validation_flops(
            run, images={s: n * devices for s, n in batch.items()}, student=flops, teacher=teacher
        ),
        devices=devices,
    )


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


def _num_validations(run: PlannedRun, steps: int, *, steps_per_epoch: int) -> int:
    rule = run.validation
    every = rule.every_steps or (rule.every_epochs or 1) * steps_per_epoch
    return steps // max(1, every) + (rule.after_first_epoch and rule.every_epochs != 1)


def _validation_flops(
    run: PlannedRun,
    *,
    images: dict[int, int],
    student: dict[tuple[int, int], int],
    teacher: dict[int, int],
) -> int:
    """One validation: a teacher pass and every validated budget; `images` lie in one batch of all ranks."""
    rule, total = run.validation, 0
    budgets = rule.budgets or [max(budget for _, budget in student)]
    for size, together in images.items():
        limit = rule.batches.get(size) if isinstance(rule.batches, dict) else rule.batches
        seen = min(NUM_VAL, limit * together) if limit else NUM_VAL
        total += seen * (teacher[size] + sum(student[size, budget] for budget in budgets))
    return total
