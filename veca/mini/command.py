"""`veca mini`: run the plan, measure the losses, write the table."""

import statistics
import time
from dataclasses import asdict
from pathlib import Path

from veca.mini.images import Images, choose_images, num_views, place_images
from veca.mini.losses import Losses, Validation, over_seeds
from veca.mini.plan import (
    BATCH_SIZE,
    FULL_BUDGET,
    MEAN_ROWS,
    MODELS,
    RECIPE,
    SMOKE,
    Settings,
    checkpoint,
    data_steps,
    fit_steps,
    keep_settings,
    mean_spec,
    probe_steps,
    sample_step,
)
from veca.mini.steps import run_step
from veca.mini.students import open_student
from veca.mini.table import Measured, Page, Probes, Rows, read_probes, write_page
from veca.probes.sweep import RANDOM
from veca.train.run_dir import METRICS_NAME, read_metrics

BESIDE = Path("../shared/data")
STEPS = 2600
LABELS = {"nested": "nested", "fixed": "fixed", "full": "control"}


def mini(
    *,
    out: Path = Path("mini"),
    photos: Path | None = None,
    cifar: Path | None = None,
    camvid: Path | None = None,
    steps: int = STEPS,
    seeds: str = "1,2",
    smoke: bool = False,
) -> None:
    """The paper's claims in miniature, in about 43 minutes on two cores.

    Three students of one size learn from the cached targets of EfficientNet-Lite0, with equal steps and
    several seeds: with nested budgets, with a fixed budget, and with full attention. Then losses on held-out
    images are compared image by image, and probes run on CIFAR-10, CamVid and the sample set, beside the
    constant, raw pixels and random weights. OUT/mini.html, mini.md and results.json tell what came out, and
    what did not. Stop it at any time: the same command goes on where it stopped.

    Args:
        out: Folder to write. Delete it to begin anew.
        photos: Folder of real photos, however deep; by default ../shared/data/photos where it is there, else
            scenes of the sample set alone. Fewer than 3,800 are also cut into squares, to make up for it.
        cifar: Folder of CIFAR-10; by default ../shared/data/cifar10 where it is there, else it is left out.
        camvid: Folder of CamVid; by default ../shared/data/camvid where it is there, else it is left out.
        steps: Optimizer steps of each fit.
        seeds: Seeds, with commas between them; those of a model are fitted side by side.
        smoke: Tiny numbers, to see in minutes that everything runs; the results mean nothing.
    """
    settings = _settings(photos, cifar, camvid, steps=steps, seeds=seeds, smoke=smoke)
    started = time.monotonic()
    keep_settings(out, settings)
    rest = 3 + len(MODELS) + len(probe_steps(out, settings))
    run_step(sample_step(out, settings), out, place=f"1/{rest}", started=started)
    images = choose_images(out, settings)
    place_images(out / "images", images)
    views = num_views(settings, images)
    planned = [
        *data_steps(out, settings, views=views),
        *fit_steps(out, settings, views=views),
        *probe_steps(out, settings),
    ]
    seconds = {
        step.name: run_step(step, out, place=f"{place}/{rest}", started=started)
        for place, step in enumerate(planned, start=2)
    }
    validation = Validation(out / "shards", resolution=settings.resolution, views=views)
    page = Page(
        measured=_measure(out, settings, validation),
        probes=_probes(out, settings),
        cost=_cost(out, settings, seconds),
        notes=_notes(settings, images, views, smoke=smoke),
    )
    text = write_page(out, page, asdict(settings))
    names = ", ".join(str(out / name) for name in ("mini.html", "mini.md", "results.json"))
    print(f"\n{text}\n\n{names}")


def _settings(
    photos: Path | None, cifar: Path | None, camvid: Path | None, *, steps: int, seeds: str, smoke: bool
) -> Settings:
    """All mistakes at once, before anything is written."""
    problems = []
    if not RECIPE.is_file():
        problems.append(f"there is no {RECIPE}: run this from a checkout of the project.")
    if steps < 1:
        problems.append(f"steps must be at least 1; got {steps}. Try {STEPS}.")
    words = [word.strip() for word in seeds.strip("[]").split(",")]
    if not all(word.isdecimal() for word in words) or len(set(words)) < len(words):
        problems.append(f"seeds must be different whole numbers with commas between them; got {seeds!r}.")
    folders: dict[str, str | None] = {}
    beside = {"photos": "photos", "cifar": "cifar10", "camvid": "camvid"}
    for key, given in (("photos", photos), ("cifar", cifar), ("camvid", camvid)):
        folder = given or BESIDE / beside[key]
        if given is not None and not given.is_dir():
            problems.append(f"{key} = {given}: there is no such folder. Leave it out to do without.")
        folders[key] = str(folder) if folder.is_dir() else None
    if problems:
        raise ValueError("\n".join(problems))
    smaller = SMOKE if smoke else {}
    if smoke:
        steps = min(steps, 4)
    return Settings(**folders, steps=steps, seeds=tuple(map(int, words)), **smaller)  # type: ignore[arg-type]  # by name


def _measure(out: Path, settings: Settings, validation: Validation) -> Measured:
    def losses(model: str, budget: int | None = None) -> Losses:
        students = [open_student(checkpoint(out, model, seed)) for seed in settings.seeds]
        return over_seeds([validation.losses(one, budget=budget or one.budgets[-1]) for one in students])

    budgets = open_student(checkpoint(out, "nested", settings.seeds[0])).budgets
    return Measured(
        are_photos=validation.are_photos(),
        constant=validation.constant(),
        nested={budget: losses("nested", budget) for budget in budgets},
        fixed=losses("fixed", FULL_BUDGET),
        full=losses("full"),
    )


def _probes(out: Path, settings: Settings) -> Probes:
    labels = {str(checkpoint(out, model, seed)): LABELS[model] for model in MODELS for seed in settings.seeds}
    means = {
        mean_spec(out, model, seed, budget): LABELS[model] + ("" if model == "full" else f", C = {budget}")
        for model, budget in MEAN_ROWS
        for seed in settings.seeds
    }
    means |= {mean_spec(out, "random", seed, FULL_BUDGET): RANDOM for seed in range(settings.probe_seeds)}
    found: Probes = {}
    for name, title, present in (
        ("cifar", "CIFAR-10, mean patch", settings.cifar),
        ("camvid", "CamVid", settings.camvid),
        ("sample", "sample set", "always"),
    ):
        if present:
            paths = [out / f"probes/{name}-{part}.json" for part in ("nested", "others")]
            found[title] = read_probes(paths, means if name == "cifar" else labels)
    return found


def _cost(out: Path, settings: Settings, seconds: dict[str, list[float]]) -> Rows:
    rows = [["model", "steps", "wall-clock of a seed, s", "s a step", "images/s"]]
    for model in MODELS:
        each = statistics.fmean(seconds[f"fit-{model}"])
        paces = [
            value
            for seed in settings.seeds
            for _, name, value in read_metrics(out / "run" / f"{model}-{seed}" / METRICS_NAME)
            if name == "train/images_per_second"
        ]
        pace = statistics.median(paces) if paces else 0.0
        shown = [f"{BATCH_SIZE / pace:.3f}", f"{pace:.1f}"] if pace else ["–", "–"]
        rows.append([LABELS[model], str(settings.steps), f"{each:.0f}", *shown])
    return rows


def _notes(settings: Settings, images: Images, views: int, *, smoke: bool) -> list[str]:
    notes = ["This was a smoke test: the numbers mean nothing."] if smoke else []
    photos, scenes = images.count("val/photo"), images.count("val/scene")
    whole, squares = images.count("train/photo"), images.count("train/square")
    learnt = images.count("train/scene")
    notes += [
        f"Losses: {photos} held-out photos and {scenes} generated scenes at {settings.resolution} px, each "
        f"the mean over seeds {', '.join(map(str, settings.seeds))}. Differences are taken image by image, "
        "and the standard error is over images, so it does not tell how other seeds would differ. The "
        "constant is the mean of the very targets it is judged on: the best one there is.",
        f"Students: width 128, depth 4, {settings.steps} steps of {BATCH_SIZE} images from {whole} links to "
        f"photos, {squares} squares cut out of them and {learnt} scenes, {views} views of each in the cache. "
        "A wall-clock is that of the whole command, start and validation included, with all seeds of the "
        "model side by side; one that was interrupted counts from its last start. The step is the median of "
        "the log.",
        "Probes: percent on the judged split; in brackets each seed. Random weights have the size of the "
        "student; raw pixels are the image itself. On CIFAR-10 the feature is the mean over patches, on the "
        "sample set the class token.",
    ]
    for name, folder, key in (("CIFAR-10", settings.cifar, "cifar"), ("CamVid", settings.camvid, "camvid")):
        if folder is None:
            notes.append(f"{name} was left out: there is no such folder here. Name it with --{key}.")
    if settings.photos is None:
        notes.append("No photos: the students saw generated scenes only. Name a folder with --photos.")
    return notes
