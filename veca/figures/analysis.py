"""`veca figures analysis`: redundancy, stability, semantics and isotropy of the cores, in numbers.

Every metric is taken per image, layer and budget, and given as the mean over images with its standard error
(pooled ones: with a bootstrap over images). docs/figures.md has the definitions.
"""

import json
from collections import defaultdict
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from veca.backbones import Numbers
from veca.figures import metrics
from veca.figures.inputs import (
    CoreTrace,
    Scene,
    choose_budgets,
    fit_side,
    open_models,
    open_scenes,
    parse_numbers,
    trace_cores,
    veca_of,
)
from veca.figures.metrics import Estimate, match_maps, match_places, mean_and_error, resize_maps, way_back
from veca.figures.sheet import Curve, Panel, check_out, draw_panels, ramp_colours, save
from veca.model import Veca
from veca.probes.datasets.splits import IGNORED
from veca.utils.files import write_text_atomic
from veca.utils.progress import progress_bar

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMAT, VERSION = "veca-analysis", 1
MIN_OVERLAP = 0.25  # of the patches; a view that shares less with the plain one says nothing
RESAMPLES = 200
Labels = NDArray[np.int64]


# How each metric is called in the plot: the title of its panel, and what is measured.
SHOWN = {
    "core_rank": ("redundancy: cores", "effective rank"),
    "core_similarity": ("redundancy: cores", "mean pairwise cosine"),
    "map_rank": ("redundancy: maps", "effective rank"),
    "map_similarity": ("redundancy: maps", "mean pairwise cosine"),
    "augmentation_maps": ("augmentation: maps\n(dashed: not matched back)", "correlation"),
    "augmentation_places": ("augmentation: places\n(dashed: not matched back)", "displacement / side"),
    "resolution_maps": ("resolution {against}: maps", "correlation"),
    "resolution_places": ("resolution {against}: places", "displacement / side"),
    "budget_maps": ("one more group: maps", "correlation"),
    "budget_places": ("one more group: places", "displacement / side"),
    "roundness": ("isotropy: roundness", "short / long axis"),
    "extent": ("isotropy: extent", "share of the image"),
    "explained_within": ("semantics, in an image\n(dashed: another's mask)", "explained entropy"),
    "purity_within": ("semantics, in an image\n(dashed: another's mask)", "purity"),
    "explained_across": ("semantics, over images\n(dashed: another's mask)", "explained entropy"),
    "purity_across": ("semantics, over images\n(dashed: another's mask)", "purity"),
}
BASELINES = ("unmatched", "other mask")


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
        (base,) = trace_cores(model, scene, [plain], budget=budget)
        for key, value in (
            *of_one_view(base, budget=budget),
            *under_augmentation(model, scene, base, settings, budget=budget),
            *under_resolution(model, scene, base, settings, budget=budget),
            *under_budget(model, scene, base, settings, budget=budget),
        ):
            found[key].append(value)
        for layer, maps in enumerate(base.maps, start=1):
            cores[budget, layer] = metrics.assign(maps).numpy()
    return [] if scene.mask is None else [Assigned(cores, scene.labels(plain, base.grid))]


def of_one_view(base: CoreTrace, *, budget: int) -> list[tuple[Key, float]]:
    """How many different things the cores are and look at; how round the regions are that they read."""
    values = {}
    for layer, (cores, maps) in enumerate(zip(base.cores, base.maps, strict=True), start=1):
        for word, rows in (("core", cores), ("map", maps)):
            values[Key(f"{word}_rank", budget, layer)] = metrics.effective_rank(rows)
            values[Key(f"{word}_similarity", budget, layer)] = metrics.pairwise_similarity(rows)
        values[Key("roundness", budget, layer)] = metrics.roundness(maps, base.grid)
        values[Key("extent", budget, layer)] = metrics.extent(maps)
    return list(values.items())


def under_augmentation(
    model: Veca, scene: Scene, base: CoreTrace, settings: Settings, *, budget: int
) -> list[tuple[Key, float]]:
    """Maps and places of training views against the plain view's, matched back and as they are."""
    side = settings.resolutions[0]
    plain = scene.plain(side)
    views = [scene.augmented(side, number=n, seed=settings.seed) for n in range(settings.num_views)]
    several: dict[Key, list[float]] = defaultdict(list)
    for view, other in zip(views, trace_cores(model, scene, views, budget=budget), strict=True):
        back = way_back(view, plain)
        for layer, maps in enumerate(base.maps):
            expected, valid = match_maps(maps, back, view=view, grid=base.grid)
            if valid.double().mean() < MIN_OVERLAP:
                continue
            places = match_places(other.places[layer], back, side=side)
            for against, wanted, found in (("", expected, places), ("unmatched", maps, other.places[layer])):
                agreement = metrics.map_agreement(other.maps[layer], wanted, valid)
                moved = metrics.displacement(found, base.places[layer])
                several[Key("augmentation_maps", budget, layer + 1, against)].append(agreement)
                several[Key("augmentation_places", budget, layer + 1, against)].append(moved)
    return [(key, fmean(values)) for key, values in several.items()]


def under_resolution(
    model: Veca, scene: Scene, base: CoreTrace, settings: Settings, *, budget: int
) -> list[tuple[Key, float]]:
    """Maps and places at other resolutions against the first's."""
    values = []
    for side in settings.resolutions[1:]:
        (other,) = trace_cores(model, scene, [scene.plain(side)], budget=budget)
        values += _compare(base, other, metric="resolution", budget=budget, against=f"{side} px")
    return values


def under_budget(
    model: Veca, scene: Scene, base: CoreTrace, settings: Settings, *, budget: int
) -> list[tuple[Key, float]]:
    """Maps and places of the same cores when one more group is active."""
    larger = budget + model.size.core_group
    if larger > model.size.num_cores:
        return []
    (other,) = trace_cores(model, scene, [scene.plain(settings.resolutions[0])], budget=larger)
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
    partners = {"": assigned} | ({"other mask": [*assigned[1:], assigned[0]]} if len(assigned) > 1 else {})
    for budget, layer, (against, others) in product(budgets, range(1, depth + 1), partners.items()):
        pairs = zip(assigned, others, strict=True)
        tables = [_table(one.cores[budget, layer], other.labels, classes, budget) for one, other in pairs]
        for metric, function in (("explained", metrics.explained), ("purity", metrics.purity)):
            single = mean_and_error([function(table) for table in tables if table.any()])
            pooled = metrics.bootstrap(np.stack(tables), function, seed=seed, resamples=RESAMPLES)
            estimates[Key(f"{metric}_within", budget, layer, against)] = single
            estimates[Key(f"{metric}_across", budget, layer, against)] = pooled
    return estimates


def _table(cores: Labels, labels: Labels, classes: Labels, budget: int) -> Labels:
    """How often each core meets each class in an image."""
    flat = np.repeat(cores, labels.shape[1])
    known = labels.ravel() != IGNORED
    numbers = np.searchsorted(classes, labels.ravel()[known])
    return metrics.contingency(flat[known], numbers, shape=(budget, len(classes)))


def _compare(
    base: CoreTrace, other: CoreTrace, *, metric: str, budget: int, against: str
) -> list[tuple[Key, float]]:
    """Correlation of maps, on the coarser grid, and displacement of places, of the cores that both have."""
    grid = min(base.grid, other.grid)
    values = []
    for layer in range(len(base.maps)):
        maps = [resize_maps(one.maps[layer, :budget], one.grid, to=grid) for one in (base, other)]
        moved = metrics.displacement(base.places[layer], other.places[layer, :budget])
        values.append((Key(f"{metric}_maps", budget, layer + 1, against), metrics.map_agreement(*maps)))
        values.append((Key(f"{metric}_places", budget, layer + 1, against), moved))
    return values


def draw_analysis(measures: list[dict[str, Any]], *, title: str) -> "Figure":
    """A panel per metric and comparison: layers across, a colour per budget, baselines dashed."""
    budgets = sorted({measure["budget"] for measure in measures})
    colours = dict(zip(budgets, ramp_colours(len(budgets)), strict=True))
    panels = []
    for metric, (heading, label) in SHOWN.items():
        found = [measure for measure in measures if measure["metric"] == metric]
        others = list(dict.fromkeys(m["against"] for m in found if m["against"] not in BASELINES))
        if metric.startswith("budget_"):  # each budget has its own next one: one panel for all
            panels += [_panel(heading, label, found, colours)] if found else []
            continue
        for against in others:
            chosen = [m for m in found if m["against"] in (against, *BASELINES)]
            panels.append(_panel(heading.format(against=against), label, chosen, colours))
    return draw_panels(panels, title=title, columns=4, note="Error bars: standard error over images.")


def _panel(title: str, label: str, measures: list[dict[str, Any]], colours: dict[int, str]) -> Panel:
    curves = []
    for dashed, (budget, colour) in product((False, True), colours.items()):
        rows = [m for m in measures if m["budget"] == budget and (m["against"] in BASELINES) == dashed]
        if rows:
            rows.sort(key=lambda row: int(row["layer"]))
            x, y = [float(row["layer"]) for row in rows], [float(row["value"]) for row in rows]
            errors = [float(row["error"] or 0.0) for row in rows]
            name, marker = ("", "") if dashed else (f"{budget} cores", "o")
            curves.append(Curve(name, x, y, errors, colour, dashed=dashed, marker=marker))
    return Panel(title, curves, "layer", label, x_ticks=sorted({x for curve in curves for x in curve.x}))
