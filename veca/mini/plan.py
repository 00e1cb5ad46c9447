"""What the miniature runs, in order, as commands that a person could type; finished ones are not run again.

OUT/settings.json        what decides everything below; another setting wants another folder
OUT/sample, images, shards   the sample set; photos, squares of them, scenes; their shards and targets
OUT/run/MODEL-SEED       the fits
OUT/probes               a JSON per probe
OUT/steps, logs          seconds of each finished step, and what its commands said
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from veca.mini.steps import Step
from veca.utils.files import write_text_atomic
from veca.utils.recipes import recipes_folder

RECIPE = recipes_folder() / "mini_nested.yaml"
MODELS = ("nested", "fixed", "full")
FULL_BUDGET = 64
BATCH_SIZE = 8  # of the recipe
PROBE_BUDGETS = (8, 32, 64)
MEAN_ROWS = (("nested", 8), ("nested", 64), ("fixed", 64), ("full", 64))  # model, budget
VECA = (sys.executable, "-c", "from veca.cli.main import main; main()")
VECA_DATA = (sys.executable, "-c", "from veca_data.cli import main; main()")
MEAN_CLASS = "teacher:veca.mini.students.MeanPatch:"


@dataclass(frozen=True)
class Settings:
    """What decides the numbers."""

    photos: str | None
    cifar: str | None
    camvid: str | None
    steps: int
    seeds: tuple[int, ...]
    resolution: int = 128  # of training and of all probes
    scenes: int = 1600  # of the sample set
    scene_size: int = 192
    train_scenes: int = 1280  # distilled: all of its train split
    val_scenes: int = 80
    max_photos: int = 4500
    photo_pieces: int = 5000  # few photos are cut into about so many
    smallest_square: float = 1 / 8  # of the short side of a photo
    num_views: int = 13300  # what the teacher sees, once for all students
    probe_seeds: int = 2
    linear_epochs: int = 50
    dense_epochs: int = 60


SMOKE = {
    "scenes": 100,
    "scene_size": 64,
    "train_scenes": 24,
    "val_scenes": 6,
    "max_photos": 16,
    "photo_pieces": 28,
    "num_views": 52,
    "resolution": 64,
    "probe_seeds": 1,
    "linear_epochs": 2,
    "dense_epochs": 1,
}


def checkpoint(out: Path, model: str, seed: int) -> Path:
    return out / "run" / f"{model}-{seed}" / "checkpoints" / "last.ckpt"


def mean_spec(out: Path, model: str, seed: int, budget: int) -> str:
    """How a probe names a run whose global feature is the mean over patches; model may be `random`."""
    if model == "random":
        return f"{MEAN_CLASS}random:{seed}@{budget}"
    place = "" if model == "full" else f"@{budget}"
    return f"{MEAN_CLASS}{checkpoint(out, model, seed)}{place}"


def sample_step(out: Path, settings: Settings) -> Step:
    words = ["--count", str(settings.scenes), "--size", str(settings.scene_size)]
    return Step("sample", "sample set", [[*VECA_DATA, "sample", "--out", str(out / "sample"), *words]])


def data_steps(out: Path, settings: Settings, *, views: int) -> list[Step]:
    shards = str(out / "shards")
    options = ["--resolutions", str(settings.resolution), "--views", str(views), "--dtype", "int8"]
    teacher = ["--teacher", "veca.teachers.EfficientNetTeacher"]
    make = [*VECA_DATA, "shards", str(out / "images"), "--out", shards]
    cache = [*VECA_DATA, "cache", shards, *teacher, *options]
    return [Step("shards", "shards", [make]), Step("cache", "cached targets of the teacher", [cache])]


def fit_steps(out: Path, settings: Settings, *, views: int) -> list[Step]:
    """One step per model: its seeds side by side, so that all models are timed under the same load."""
    seeds = " and ".join(map(str, settings.seeds))
    return [
        Step(
            f"fit-{model}",
            f"fit {model}, {settings.steps} steps, seeds {seeds}",
            [_fit(out, settings, model, seed, views=views) for seed in settings.seeds],
        )
        for model in MODELS
    ]


def probe_steps(out: Path, settings: Settings) -> list[Step]:
    steps: list[Step] = []
    kinds = [("sample", str(out / "sample/images"), "linear")]
    if settings.cifar:
        steps.append(_mean_step(out, settings, f"CIFAR-10:{settings.cifar}"))
    if settings.camvid:
        kinds.append(("camvid", f"CamVid:{settings.camvid}", "segment"))
    for name, data, probe in kinds:
        options = _probe_options(settings, data, probe=probe)
        nested = [str(checkpoint(out, "nested", seed)) for seed in settings.seeds]
        others = [str(checkpoint(out, model, seed)) for model in ("fixed", "full") for seed in settings.seeds]
        budgets = ",".join(map(str, PROBE_BUDGETS))
        first = _probe(nested, probe, options, budgets=budgets, seeds=0)
        second = _probe(others, probe, options, budgets=str(FULL_BUDGET), seeds=settings.probe_seeds)
        steps.append(
            Step(
                f"probe-{name}",
                f"probe {probe} on {name}",
                [[*first, *_into(out, f"{name}-nested")], [*second, *_into(out, f"{name}-others")]],
            )
        )
    return steps


def keep_settings(out: Path, settings: Settings) -> None:
    """Refuse a folder that was begun with other settings: its finished steps would be taken for these."""
    path, text = out / "settings.json", json.dumps(asdict(settings), indent=1) + "\n"
    if path.exists() and (found := path.read_text(encoding="utf-8")) != text:
        old, new = json.loads(found), json.loads(text)
        changed = [f"{key}: {old.get(key)} then, {new[key]} now" for key in new if old.get(key) != new[key]]
        raise ValueError(
            f"out = {out} was begun with other settings ({'; '.join(changed)}). Give another folder, the "
            "same settings, or delete it."
        )
    out.mkdir(parents=True, exist_ok=True)
    write_text_atomic(path, text)


def _fit(out: Path, settings: Settings, model: str, seed: int, *, views: int) -> list[str]:
    options = {
        "--config": str(RECIPE),
        "--seed_everything": str(seed),
        "--model.seed": str(seed),
        "--data.seed": str(seed),
        "--trainer.max_steps": str(settings.steps),
        "--trainer.val_check_interval": str(settings.steps),
        "--trainer.default_root_dir": str(out / "run" / f"{model}-{seed}"),
        "--model.teacher.path": str(out / "shards"),
        "--model.teacher.views": str(views),
        "--model.optimization.warmup_steps": str(settings.steps // 10),
        "--data.sources": str(out / "shards"),
        "--data.resolutions.phases": json.dumps(
            [{"start_step": 0, "probabilities": {settings.resolution: 1.0}}]
        ),
        "--ckpt_path": "last",
    }
    if model == "fixed":
        options["--model.budgets"] = f"{{{FULL_BUDGET}: 1}}"
    elif model == "full":
        options |= {"--model.attention": "full", "--model.budgets": "{5: 1}"}
    return [*VECA, "fit", *(word for pair in options.items() for word in pair)]


def _mean_step(out: Path, settings: Settings, data: str) -> Step:
    options = _probe_options(settings, data, probe="linear")
    specs = [mean_spec(out, model, seed, budget) for model, budget in MEAN_ROWS for seed in settings.seeds]
    specs += [mean_spec(out, "random", seed, FULL_BUDGET) for seed in range(settings.probe_seeds)]
    half = (len(specs) + 1) // 2
    return Step(
        "probe-cifar",
        "probe linear on cifar, mean over patches",
        [
            [*_probe(part, "linear", options), *_into(out, f"cifar-{name}")]
            for name, part in (("nested", specs[:half]), ("others", specs[half:]))
        ],
    )


def _probe(
    specs: Sequence[str], probe: str, options: list[str], *, budgets: str | None = None, seeds: int = 0
) -> list[str]:
    first, *rest = specs
    words = [*VECA, "probe", probe, "--model", first, *options, "--seeds", str(seeds)]
    words += ["--compare", ",".join(rest)] if rest else []
    return words + (["--budgets", budgets] if budgets else [])


def _probe_options(settings: Settings, data: str, *, probe: str) -> list[str]:
    epochs = settings.linear_epochs if probe == "linear" else settings.dense_epochs
    size = str(settings.resolution)
    words = {"--data": data, "--resolutions": size, "--epochs": str(epochs), "--devices": "1"}
    return [word for pair in words.items() for word in pair]


def _into(out: Path, name: str) -> list[str]:
    """Where a probe writes. Its features have a folder of their own: two probes at once would share one."""
    return ["--out", str(out / f"probes/{name}.json"), "--cache", str(out / f"probes/cache-{name}")]
