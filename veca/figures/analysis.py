"""`veca figures analysis`: redundancy, stability, semantics and isotropy of the cores, in numbers.

Every metric is taken per image, layer and budget, and given as the mean over images with its standard error
(pooled ones: with a bootstrap over images). docs/figures.md has the definitions.
"""

import json
from collections import defaultdict
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from veca.figures import metrics
from veca.figures.inputs import choose_budgets, fit_side, open_models, parse_numbers, veca_of
from veca.figures.looks import Look, Scene, look, open_scenes
from veca.figures.matching import match_maps, match_places, resize_maps, way_back
from veca.figures.metrics import Estimate, mean_and_error
from veca.figures.panels import draw_analysis
from veca.figures.sheet import check_out, save
from veca.model import Veca
from veca.probes.settings import Numbers
from veca.probes.types import IGNORED
from veca.utils.files import write_text_atomic
from veca.utils.progress import progress_bar

FORMAT, VERSION = "veca-analysis", 1
MIN_OVERLAP = 0.25  # of the patches; a view that shares less with the plain one says nothing
RESAMPLES = 200
Labels = NDArray[np.int64]


class Key(NamedTuple):
    """Which number: `against` says what a comparison is with, or which baseline this is."""

    metric: str
    budget: int
    layer: int
    against: str = ""


class Settings(NamedTuple):
    """What decides the numbers, beside model and images."""

    budgets: list[int]
    resolutions: list[int]  # the first is where everything else happens
    num_views: int
    seed: int


class Assigned(NamedTuple):
    """The cores that the patches of one image belong to, and what the mask says about these patches."""

    cores: dict[tuple[int, int], Labels]  # (budget, layer) → (N,)
    labels: Labels  # (N, points per patch)


def analysis(
    model: str,
    images: str,
    out: Path,
    *,
    masks: Path | None = None,
    budgets: Numbers = None,
    resolutions: Numbers = None,
    num_images: int = 32,
    num_views: int = 4,
    seed: int = 0,
) -> None:
    """Redundancy, stability, semantic consistency and isotropy of the cores → analysis.json and analysis.png.

    Args:
        model: A Veca: folder, .ckpt, Hub id or random:SIZE.
        images: Folder of images.
        out: Folder to write.
        masks: Folder of segmentation masks with the names of the images; 255 counts as unlabelled.
        budgets: Numbers of active cores, e.g. 8,64; by default the smallest and its doubles.
        resolutions: Sides in pixels; the first is compared with the others. By default 256,512.
        num_images: Images to use, evenly spread over the folder.
        num_views: Augmented views of each image.
        seed: Of the augmentation and the bootstrap.
    """
    check_out(out / "analysis.png")
    (probed,) = open_models([model])
    veca = veca_of(probed)
    sides = [fit_side(probed, side) for side in parse_numbers("resolutions", resolutions, default=[256, 512])]
    if num_images < 1 or num_views < 1:
        raise ValueError(f"num_images and num_views must be at least 1; got {num_images} and {num_views}.")
    settings = Settings(choose_budgets(veca, budgets), sides, num_views, seed)
    found: dict[Key, list[float]] = defaultdict(list)
    assigned: list[Assigned] = []
    with progress_bar("analysis", num_images, unit="image") as bar:
        for scene in open_scenes(images, masks, count=num_images):
            assigned += _take(veca, scene, settings, found)
            bar.update()
    estimates = {key: mean_and_error(values) for key, values in found.items()}
    estimates |= semantics(assigned, budgets=settings.budgets, depth=veca.size.depth, seed=seed)
    measures = [{**key._asdict(), **value._asdict()} for key, value in estimates.items()]
    body = {"format": FORMAT, "version": VERSION, "model": model, "images": images, **settings._asdict()}
    out.mkdir(parents=True, exist_ok=True)
    counts = {"num_images": max(map(len, found.values())), "masks": masks and str(masks)}
    write_text_atomic(
        out / "analysis.json", json.dumps({**body, **counts, "measures": measures}, indent=1) + "\n"
    )
    save(
        draw_analysis(measures, title=f"What the cores do: {probed.name}, {counts['num_images']} images"),
        out / "analysis.png",
    )


def _take(model: Veca, scene: Scene, settings: Settings, found: dict[Key, list[float]]) -> list[Assigned]:
    """Everything about one image; its assignment when it has a mask."""
    plain = scene.plain(settings.resolutions[0])
    cores: dict[tuple[int, int], Labels] = {}
    for budget in settings.budgets:
        (base,) = look(model, scene, [plain], budget=budget)
        for key, value in (
            *redundancy(base, budget=budget),
            *isotropy(base, budget=budget),
            *under_augmentation(model, scene, base, settings, budget=budget),
            *under_resolution(model, scene, base, settings, budget=budget),
            *under_budget(model, scene, base, settings, budget=budget),
        ):
            found[key].append(value)
        for layer, maps in enumerate(base.maps, start=1):
            cores[budget, layer] = metrics.assign(maps).numpy()
    return [] if scene.mask is None else [Assigned(cores, scene.labels(plain, base.grid))]


def redundancy(base: Look, *, budget: int) -> list[tuple[Key, float]]:
    """How many different things the cores are, and look at."""
    values = []
    for layer, (cores, maps) in enumerate(zip(base.cores, base.maps, strict=True), start=1):
        for word, rows in (("core", cores), ("map", maps)):
            values.append((Key(f"{word}_rank", budget, layer), metrics.effective_rank(rows)))
            values.append((Key(f"{word}_similarity", budget, layer), metrics.pairwise_similarity(rows)))
    return values


def isotropy(base: Look, *, budget: int) -> list[tuple[Key, float]]:
    """How round the regions are that cores read, and how large."""
    values = []
    for layer, maps in enumerate(base.maps, start=1):
        values.append((Key("roundness", budget, layer), metrics.roundness(maps, base.grid)))
        values.append((Key("extent", budget, layer), metrics.extent(maps)))
    return values


def under_augmentation(
    model: Veca, scene: Scene, base: Look, settings: Settings, *, budget: int
) -> list[tuple[Key, float]]:
    """Maps and places of training views against the plain view's, matched back and as they are."""
    side = settings.resolutions[0]
    plain = scene.plain(side)
    views = [scene.augmented(side, number=n, seed=settings.seed) for n in range(settings.num_views)]
    several: dict[Key, list[float]] = defaultdict(list)
    for view, other in zip(views, look(model, scene, views, budget=budget), strict=True):
        back = way_back(view, plain)
        for layer, maps in enumerate(base.maps):
            expected, valid = match_maps(maps, back, view=view, grid=base.grid)
            if valid.double().mean() < MIN_OVERLAP:
                continue
            places = match_places(other.places[layer], back, side=side)
            compared = {
                ("augmentation_maps", ""): metrics.map_agreement(other.maps[layer], expected, valid),
                ("augmentation_maps", "unmatched"): metrics.map_agreement(other.maps[layer], maps, valid),
                ("augmentation_places", ""): metrics.displacement(places, base.places[layer]),
                ("augmentation_places", "unmatched"): metrics.displacement(
                    other.places[layer], base.places[layer]
                ),
            }
            for (metric, against), value in compared.items():
                several[Key(metric, budget, layer + 1, against)].append(value)
    return [(key, fmean(values)) for key, values in several.items()]


def under_resolution(
    model: Veca, scene: Scene, base: Look, settings: Settings, *, budget: int
) -> list[tuple[Key, float]]:
    """Maps and places at other resolutions against the first's."""
    values = []
    for side in settings.resolutions[1:]:
        (other,) = look(model, scene, [scene.plain(side)], budget=budget)
        values += _compare(base, other, metric="resolution", budget=budget, against=f"{side} px")
    return values


def under_budget(
    model: Veca, scene: Scene, base: Look, settings: Settings, *, budget: int
) -> list[tuple[Key, float]]:
    """Maps and places of the same cores when one more group is active."""
    larger = budget + model.size.core_group
    if larger > model.size.num_cores:
        return []
    (other,) = look(model, scene, [scene.plain(settings.resolutions[0])], budget=larger)
    return _compare(base, other, metric="budget", budget=budget, against=f"{larger} cores")


def semantics(assigned: list[Assigned], *, budgets: list[int], depth: int, seed: int) -> dict[Key, Estimate]:
    """What the core of a patch tells about its class: in one image, and over all of them.

    The baseline takes the mask of another image: what position alone would tell.
    """
    if not assigned:
        return {}
    classes = np.unique(np.concatenate([one.labels.ravel() for one in assigned]))
    classes = classes[classes != IGNORED]
    estimates: dict[Key, Estimate] = {}
    others = [*assigned[1:], assigned[0]]
    for budget, layer in ((budget, layer) for budget in budgets for layer in range(1, depth + 1)):
        for against, partners in (
            (("", assigned), ("other mask", others)) if len(assigned) > 1 else (("", assigned),)
        ):
            pairs = zip(assigned, partners, strict=True)
            tables = [_table(one.cores[budget, layer], other.labels, classes, budget) for one, other in pairs]
            for metric, function in (("explained", metrics.explained), ("purity", metrics.purity)):
                single = mean_and_error([function(table) for table in tables if table.any()])
                estimates[Key(f"{metric}_within", budget, layer, against)] = single
                pooled = metrics.bootstrap(np.stack(tables), function, seed=seed, resamples=RESAMPLES)
                estimates[Key(f"{metric}_across", budget, layer, against)] = pooled
    return estimates


def _table(cores: Labels, labels: Labels, classes: Labels, budget: int) -> Labels:
    """How often each core meets each class in an image."""
    flat = np.repeat(cores, labels.shape[1])
    known = labels.ravel() != IGNORED
    numbers = np.searchsorted(classes, labels.ravel()[known])
    return metrics.contingency(flat[known], numbers, shape=(budget, len(classes)))


def _compare(base: Look, other: Look, *, metric: str, budget: int, against: str) -> list[tuple[Key, float]]:
    """Correlation of maps, on the coarser grid, and displacement of places, of the cores that both have."""
    grid = min(base.grid, other.grid)
    values = []
    for layer in range(len(base.maps)):
        maps = [resize_maps(one.maps[layer, :budget], one.grid, to=grid) for one in (base, other)]
        moved = metrics.displacement(base.places[layer], other.places[layer, :budget])
        values.append((Key(f"{metric}_maps", budget, layer + 1, against), metrics.map_agreement(*maps)))
        values.append((Key(f"{metric}_places", budget, layer + 1, against), moved))
    return values
