"""Pictures of one or more images as models see them: the verbs `veca figures contributions|cores|…`.

Each reads models and images, turns features and traces into arrays (maps.py, colours.py) and lays them out
(sheet.py). Shapes: N patches, C cores, L layers, D width.
"""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from veca.backbones.models import ProbedModel
from veca.figures import sheet
from veca.figures.colours import Method, choose_method, joint_colours
from veca.figures.inputs import (
    Sight,
    as_batch,
    choose_budgets,
    dense_features,
    find_images,
    fit_side,
    open_models,
    parse_numbers,
    see,
    short_name,
    trace_images,
    veca_of,
)
from veca.figures.sheet import Row, Tile, check_out, draw_sheet, save
from veca.model import Veca
from veca.probes.settings import Names, Numbers, split_names
from veca.utils.maps import Array, core_paths, cosine_map, patch_at, similarity_map
from veca.utils.progress import progress_bar

COSINE = "cosine"
DEFAULT_POINTS = "0.5:0.5,0.25:0.25,0.75:0.75,0.25:0.75"


def contributions(
    model: str,
    image: Names,
    out: Path,
    *,
    budgets: Numbers = None,
    resolution: int = 512,
    method: Method | None = None,
    seed: int = 0,
) -> None:
    """Which cores a patch contributes to, as colour: a row per budget, a column per layer from the second.

    Patches that feed the same cores get like colours; a row's layers and images share their colours.

    Args:
        model: One or more Vecas, with commas between: folder, .ckpt, Hub id or random:SIZE.
        image: One or more images or folders, with commas between.
        out: Picture to write, .png or .svg.
        budgets: Numbers of active cores, e.g. 8,64; by default the smallest and its doubles.
        resolution: Side in pixels of what the model sees.
        method: umap or pca; by default UMAP where umap-learn is installed.
        seed: Of UMAP.
    """
    check_out(out)
    method = choose_method(method)
    rows: list[Row] = []
    models, paths = open_models(model), find_images(image)
    chosen = [choose_budgets(veca_of(probed), budgets) for probed in models]
    with progress_bar("contributions", sum(map(len, chosen)), unit="embedding") as bar:
        for probed, each in zip(models, chosen, strict=True):
            veca = veca_of(probed)
            sights = [see(path, resolution=fit_side(probed, resolution)) for path in paths]
            for budget in each:
                maps = [patch_profiles(veca, sight, budget=budget) for sight in sights]
                colours = iter(
                    joint_colours([layer for layers in maps for layer in layers], method=method, seed=seed)
                )
                for sight in sights:
                    tiles = [Tile(_square(next(colours))) for _ in range(veca.size.depth - 1)]
                    label = _label(probed, models, f"{budget} cores")
                    rows.append(Row(label, [Tile(sight.picture), *tiles]))
                bar.update()
    depth = max(len(row.tiles) for row in rows)
    columns = ["image", *(f"layer {number}" for number in range(2, depth + 1))]
    figure = draw_sheet(
        [row._replace(tiles=row.tiles + [None] * (depth - len(row.tiles))) for row in rows],
        title="Output contributions of patches to cores",
        columns=columns,
        note=f"A patch's contributions to all active cores as colour; one {method.upper()} per budget.",
    )
    save(figure, out)


def cores(
    model: str,
    image: Names,
    out: Path,
    *,
    cores: Numbers = None,
    budget: int | None = None,
    resolution: int = 512,
) -> None:
    """Cosine between chosen cores and all patches, at the model's output; a cross marks the core's place.

    Args:
        model: One or more Vecas, with commas between: folder, .ckpt, Hub id or random:SIZE.
        image: One or more images or folders, with commas between.
        out: Picture to write, .png or .svg.
        cores: Cores to show, counted from 0; by default the first eight.
        budget: Number of active cores; by default all.
        resolution: Side in pixels of what the model sees.
    """
    check_out(out)
    models = open_models(model)
    chosen = parse_numbers("cores", cores, default=list(range(8)))
    rows = []
    for probed, path in ((probed, path) for probed in models for path in find_images(image)):
        veca = veca_of(probed)
        active = budget or veca.size.num_cores
        if max(chosen) >= active:
            raise ValueError(f"cores must be below the budget, {active}; got {max(chosen)}.")
        sight = see(path, resolution=fit_side(probed, resolution))
        features, places, _ = trace_images(veca, as_batch(sight), budget=active)
        marks = (places[-1, 0] + 1).div(2).numpy()
        tiles = [
            Tile(
                cosine_map(features.patches[0], features.cores[0, core]).reshape(features.grid), marks[[core]]
            )
            for core in chosen
        ]
        rows.append(Row(_label(probed, models, sight.name), [Tile(sight.picture), *tiles], COSINE))
    columns = ["image", *(f"core {core}" + " (CLS)" * (core == 0) for core in chosen)]
    save(draw_sheet(rows, title="Core-to-patch similarity", columns=columns), out)


def similarity(
    model: str,
    image: Names,
    out: Path,
    *,
    points: Names = DEFAULT_POINTS,
    budget: int | None = None,
    resolution: int = 512,
) -> None:
    """Cosine between the patch under each chosen point and all patches.

    Args:
        model: One or more models, with commas between: Vecas, or any that `veca probe` takes.
        image: One or more images or folders, with commas between.
        out: Picture to write, .png or .svg.
        points: Points as x:y in shares of the view, with commas between.
        budget: Number of active cores of a Veca; by default all.
        resolution: Side in pixels of what the models see.
    """
    check_out(out)
    places = _parse_points(points)
    models = open_models(model)
    rows = []
    for path in find_images(image):
        for probed in models:
            sight = see(path, resolution=fit_side(probed, resolution))
            patches, features = dense_features(probed, sight, budget=budget)
            tiles = [
                Tile(
                    similarity_map(patches, patch_at(x, y, size=(1, 1), grid=features.grid)).reshape(
                        features.grid
                    ),
                    np.array([(x, y)], dtype=np.float32),
                )
                for x, y in places
            ]
            shown = Tile(sight.picture, np.array(places, dtype=np.float32))
            rows.append(Row(_label(probed, models, sight.name), [shown, *tiles], COSINE))
    columns = ["image", *(f"from {x:g}, {y:g}" for x, y in places)]
    save(draw_sheet(rows, title="Patch-to-patch similarity", columns=columns), out)


def dense(
    model: str,
    image: Names,
    out: Path,
    *,
    resolutions: Numbers = None,
    budget: int | None = None,
    method: Method | None = None,
    seed: int = 0,
) -> None:
    """Dense features as colours at several resolutions, embedded jointly, above CLS-to-patch maps.

    Args:
        model: One or more models, with commas between: Vecas, or any that `veca probe` takes.
        image: One or more images or folders, with commas between.
        out: Picture to write, .png or .svg.
        resolutions: Sides in pixels of what the models see; by default 256,512,768,1024.
        budget: Number of active cores of a Veca; by default all.
        method: umap or pca; by default UMAP where umap-learn is installed.
        seed: Of UMAP.
    """
    check_out(out)
    method = choose_method(method)
    sides = parse_numbers("resolutions", resolutions, default=[256, 512, 768, 1024])
    models = open_models(model)
    rows = []
    wanted = [(path, probed) for path in find_images(image) for probed in models]
    with progress_bar("dense", len(wanted), unit="embedding") as bar:
        for path, probed in wanted:
            sights = [see(path, resolution=fit_side(probed, side)) for side in sides]
            found = [dense_features(probed, sight, budget=budget) for sight in sights]
            colours = joint_colours([patches for patches, _ in found], method=method, seed=seed)
            shown = Tile(sights[-1].picture)
            name = _label(probed, models, "features")
            rows.append(Row(name, [shown, *(Tile(_square(part)) for part in colours)]))
            if all(features.cls.shape[1] == patches.shape[1] for patches, features in found):
                tiles = [Tile(cosine_map(p, f.cls[0]).reshape(f.grid)) for p, f in found]
                word = "CLS" if found[0][1].has_cls else "mean"
                rows.append(Row(f"{word} to patch", [None, *tiles], COSINE))
            bar.update()
    figure = draw_sheet(
        rows,
        title="Dense features over resolutions",
        columns=["image", *(f"{side} px" for side in sides)],
        note=f"Colours of one row: one {method.upper()} of all its resolutions.",
    )
    save(figure, out)


def paths(
    model: str,
    image: Names,
    out: Path,
    *,
    budgets: Numbers = None,
    resolution: int = 512,
) -> None:
    """Where each core sits on the image at every layer: a row per image, a column per budget.

    Args:
        model: One Veca: folder, .ckpt, Hub id or random:SIZE.
        image: One or more images or folders, with commas between.
        out: Picture to write, .png or .svg.
        budgets: Numbers of active cores, e.g. 8,64; by default the smallest and its doubles.
        resolution: Side in pixels of what the model sees.
    """
    check_out(out)
    from matplotlib.figure import Figure

    (probed,) = open_models([model])
    veca, files = veca_of(probed), find_images(image)
    chosen = choose_budgets(veca, budgets)
    tile = 2 * sheet.TILE
    width, height = tile * len(chosen) + 0.9, tile * len(files) + 0.7
    figure = Figure(figsize=(width, height))
    edges = {"left": 0.02, "right": 1 - 0.85 / width, "top": 1 - 0.6 / height, "bottom": 0.1 / height}
    axes = figure.subplots(
        len(files), len(chosen), squeeze=False, gridspec_kw={**edges, "wspace": 0.04, "hspace": 0.04}
    )
    for path, row in zip(files, axes, strict=True):
        sight = see(path, resolution=fit_side(probed, resolution))
        for budget, axis in zip(chosen, row, strict=True):
            places = trace_images(veca, as_batch(sight), budget=budget).places[:, 0]
            size = sight.picture.shape[1], sight.picture.shape[0]
            sheet.draw_paths(axis, sight.picture, core_paths(places, size=size) - 0.5, numbered=budget <= 16)
    for budget, axis in zip(chosen, axes[0], strict=True):
        axis.set_title(f"{budget} cores", fontsize=9, pad=3)
    sheet.add_bar(figure, axes[0, -1], low=1, high=veca.size.depth, label="layer", ramp=sheet.PATH_RAMP)
    figure.suptitle(f"Core places from layer to layer, {short_name(probed)}", x=0.02, ha="left", fontsize=11)
    save(figure, out)


def patch_profiles(model: Veca, sight: Sight, *, budget: int) -> list[Tensor]:
    """Each patch's contributions to the cores, L2-normalised, of layers 2…L: (N, C) each (method §6)."""
    shares = trace_images(model, as_batch(sight), budget=budget).contributions[1:, 0]  # (L − 1, C, N)
    return list(F.normalize(shares.transpose(1, 2), dim=-1, eps=torch.finfo(shares.dtype).tiny))


def _square(colours: Array) -> Array:
    """Colours (N, 3) of a square view as a picture."""
    side = round(len(colours) ** 0.5)
    return colours.reshape(side, side, 3)


def _label(model: ProbedModel, models: list[ProbedModel], text: str) -> str:
    return f"{short_name(model)}\n{text}" if len(models) > 1 else text


def _parse_points(points: Names) -> list[tuple[float, float]]:
    try:
        found = [(float(x), float(y)) for x, y in (word.split(":") for word in split_names(points))]
    except ValueError:
        found = []
    if not found or not all(0 <= share <= 1 for point in found for share in point):
        raise ValueError(
            f"points must be x:y with shares from 0 to 1, as in 0.5:0.5,0.2:0.8; got {points!r}."
        )
    return found
