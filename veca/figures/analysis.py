"""`veca figures analysis`: redundancy, stability, semantics and isotropy of the cores, in numbers.

Every metric is taken per image, layer and budget, and given as the mean over images with its standard error
(pooled ones: with a bootstrap over images). docs/figures.md has the definitions.
"""

import json
from collections import defaultdict
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from veca.backbones import Numbers
from veca.figures import metrics
from veca.figures.inputs import (
    LayerTrace,
    MaskedImage,
    choose_budgets,
    fit_side,
    open_masked,
    open_models,
    parse_numbers,
    trace_cores,
    veca_of,
)
from veca.figures.metrics import Estimate, match_maps, match_places, mean_and_error, resize_maps, way_back
from veca.figures.sheet import check_out, ramp_colours, save
from veca.model import Veca
from veca.probes.datasets.splits import IGNORED
from veca.utils.chart import Line, Panel, draw_panels
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


Found = Iterator[tuple[Key, float]]


class Conditions(NamedTuple):
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
    conditions = Conditions(choose_budgets(veca, budgets), sides, num_views, seed)
    found: dict[Key, list[float]] = defaultdict(list)
    assigned: list[Assigned] = []
    with progress_bar("analysis", num_images, unit="image") as bar:
        for image in open_masked(images, masks, count=num_images):
            assigned += _take(veca, image, conditions, found)
            bar.update()
    estimates = {key: mean_and_error(values) for key, values in found.items()}
    estimates |= semantics(assigned, budgets=conditions.budgets, depth=veca.size.depth, seed=seed)
    measures = [{**key._asdict(), **value._asdict()} for key, value in estimates.items()]
    count = max(map(len, found.values()))
    body = {"format": FORMAT, "version": VERSION, "model": model, "images": images, **conditions._asdict()}
    body |= {"num_images": count, "masks": masks and str(masks), "measures": measures}
    out.mkdir(parents=True, exist_ok=True)
    write_text_atomic(out / "analysis.json", json.dumps(body, indent=1) + "\n")
    figure = draw_analysis(measures, title=f"What the cores do: {probed.name}, {count} images")
    save(figure, out / "analysis.png")


def _take(
    model: Veca, image: MaskedImage, conditions: Conditions, found: dict[Key, list[float]]
) -> list[Assigned]:
    """Everything about one image; its assignment when it has a mask."""
    plain = image.plain(conditions.resolutions[0])
    cores: dict[tuple[int, int], Labels] = {}
    for budget in conditions.budgets:
        (base,) = trace_cores(model, image, [plain], budget=budget)
        for key, value in (
            *of_one_view(base, budget=budget),
            *under_augmentation(model, image, base, conditions, budget=budget),
            *under_change(model, image, base, conditions, budget=budget),
        ):
            found[key].append(value)
        for layer, maps in enumerate(base.maps, start=1):
            cores[budget, layer] = metrics.assign(maps).numpy()
    return [] if image.mask is None else [Assigned(cores, image.labels(plain, base.grid))]


def of_one_view(base: LayerTrace, *, budget: int) -> Found:
    """How many different things the cores are and look at; how round the regions are that they read."""
    for layer, (cores, maps) in enumerate(zip(base.cores, base.maps, strict=True), start=1):
        for word, rows in (("core", cores), ("map", maps)):
            yield Key(f"{word}_rank", budget, layer), metrics.effective_rank(rows)
            yield Key(f"{word}_similarity", budget, layer), metrics.pairwise_similarity(rows)
        yield Key("roundness", budget, layer), metrics.roundness(maps, base.grid)
        yield Key("extent", budget, layer), metrics.extent(maps)


def under_augmentation(
    model: Veca, image: MaskedImage, base: LayerTrace, conditions: Conditions, *, budget: int
) -> Found:
    """Maps and places of training views against the plain view's, matched back and as they are."""
    side = conditions.resolutions[0]
    plain = image.plain(side)
    views = [image.augmented(side, number=n, seed=conditions.seed) for n in range(conditions.num_views)]
    several: dict[Key, list[float]] = defaultdict(list)
    for view, other in zip(views, trace_cores(model, image, views, budget=budget), strict=True):
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
    yield from ((key, fmean(values)) for key, values in several.items())


def under_change(
    model: Veca, image: MaskedImage, base: LayerTrace, conditions: Conditions, *, budget: int
) -> Found:
    """Maps and places of the same cores at other resolutions, and when one more group is active."""
    first, *others = conditions.resolutions
    changes = [("resolution", f"{side} px", side, budget) for side in others]
    larger = budget + model.size.core_group
    if larger <= model.size.num_cores:
        changes.append(("budget", f"{larger} cores", first, larger))
    for metric, against, side, active in changes:
        (other,) = trace_cores(model, image, [image.plain(side)], budget=active)
        grid = min(base.grid, other.grid)  # the coarser one
        for layer in range(len(base.maps)):
            maps = [resize_maps(one.maps[layer, :budget], one.grid, to=grid) for one in (base, other)]
            moved = metrics.displacement(base.places[layer], other.places[layer, :budget])
            yield Key(f"{metric}_maps", budget, layer + 1, against), metrics.map_agreement(*maps)
            yield Key(f"{metric}_places", budget, layer + 1, against), moved


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


def draw_analysis(measures: list[dict[str, Any]], *, title: str) -> "Figure":
    """A panel per metric and comparison: layers across, a colour per budget, baselines dashed."""
    budgets = sorted({measure["budget"] for measure in measures})
    colours = dict(zip(budgets, ramp_colours(len(budgets)), strict=True))
    panels = []
    for metric, (heading, label) in SHOWN.items():
        found = [measure for measure in measures if measure["metric"] == metric]
        compared = dict.fromkeys(m["against"] for m in found if m["against"] not in BASELINES)
        # Each budget has its own next one: one panel for all.
        groups = [tuple(compared)] if metric.startswith("budget_") else [(against,) for against in compared]
        for group in groups if found else ():
            lines = []
            for dashed, (budget, colour) in product((False, True), colours.items()):
                wanted = BASELINES if dashed else group
                rows = [m for m in found if m["budget"] == budget and m["against"] in wanted]
                rows.sort(key=lambda row: int(row["layer"]))
                points = [(float(row["layer"]), float(row["value"])) for row in rows]
                errors = [float(row["error"] or 0.0) for row in rows]
                name = "" if dashed else f"{budget} cores"
                lines += [Line(name, points, errors, colour, dashed=dashed)] if rows else []
            layers = sorted({x for line in lines for x, _ in line.points})
            panels.append(Panel(heading.format(against=group[0]), lines, "layer", label, x_ticks=layers))
    return draw_panels(panels, title=title, columns=4, note="Error bars: standard error over images.")
