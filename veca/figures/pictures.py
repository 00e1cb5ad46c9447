"""Pictures of one or more images as models see them: the verbs `veca figures contributions|cores|…`.

Shapes: N patches, C cores, L layers.
"""

from itertools import product
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from veca.backbones import Names, Numbers, ProbedModel, split_names
from veca.figures.inputs import (
    choose_budgets,
    dense_features,
    find_images,
    fit_side,
    open_models,
    parse_numbers,
    read_view,
    short_name,
    trace_images,
    veca_of,
)
from veca.figures.sheet import PATH_RAMP, TILE, Tile, TileRow, check_out, draw_sheet, save
from veca.model import Veca
from veca.utils.maps import Array, Method, choose_method, core_paths, cosine_map, joint_colours, patch_at
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
    models, files = open_models(model), find_images(image)
    wanted = [(probed, budget) for probed in models for budget in choose_budgets(veca_of(probed), budgets)]
    depth = max(veca_of(probed).size.depth for probed in models)
    rows: list[TileRow] = []
    with progress_bar("contributions", len(wanted), unit="embedding") as bar:
        for probed, budget in wanted:
            views = [read_view(path, resolution=fit_side(probed, resolution)) for path in files]
            maps = [patch_profiles(veca_of(probed), view, budget=budget) for view in views]
            parts = [part for layers in maps for part in layers]
            colours = iter(joint_colours(parts, method=method, seed=seed))
            for view, layers in zip(views, maps, strict=True):
                tiles = [_photo(view), *(Tile(_square(next(colours))) for _ in layers)]
                rows.append(TileRow(_label(probed, models, f"{budget} cores"), tiles))
            bar.update()
    figure = draw_sheet(
        rows,
        title="Output contributions of patches to cores",
        columns=["image", *(f"layer {number}" for number in range(2, depth + 1))],
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
    for probed, path in product(models, find_images(image)):
        veca = veca_of(probed)
        active = budget or veca.size.num_cores
        if max(chosen) >= active:
            raise ValueError(f"cores must be below the budget, {active}; got {max(chosen)}.")
        view = read_view(path, resolution=fit_side(probed, resolution))
        features, places, _ = trace_images(veca, view, budget=active)
        patches, tokens, marks = features.patches[0], features.cores[0], (places[-1, 0] + 1).div(2).numpy()
        tiles = [Tile(_square(cosine_map(patches, tokens[core])), marks[[core]]) for core in chosen]
        rows.append(TileRow(_label(probed, models, path.stem), [_photo(view), *tiles], COSINE))
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
    marks = np.array(_parse_points(points), dtype=np.float32)
    models = open_models(model)
    rows = []
    for path, probed in product(find_images(image), models):
        view = read_view(path, resolution=fit_side(probed, resolution))
        patches, features = dense_features(probed, view, budget=budget)
        chosen = [patches[patch_at(x, y, size=(1, 1), grid=features.grid)] for x, y in marks]
        tiles = [Tile(_square(cosine_map(patches, c)), marks[[i]]) for i, c in enumerate(chosen)]
        rows.append(TileRow(_label(probed, models, path.stem), [_photo(view, marks), *tiles], COSINE))
    columns = ["image", *(f"from {x:g}, {y:g}" for x, y in marks)]
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
    wanted = list(product(find_images(image), models))
    rows = []
    with progress_bar("dense", len(wanted), unit="embedding") as bar:
        for path, probed in wanted:
            views = [read_view(path, resolution=fit_side(probed, side)) for side in sides]
            found = [dense_features(probed, view, budget=budget) for view in views]
            colours = joint_colours([patches for patches, _ in found], method=method, seed=seed)
            tiles = [Tile(_square(part)) for part in colours]
            rows.append(TileRow(_label(probed, models, "features"), [_photo(views[-1]), *tiles]))
            if all(features.cls.shape[1] == patches.shape[1] for patches, features in found):
                maps = [Tile(_square(cosine_map(p, f.cls[0]))) for p, f in found]
                word = "CLS" if found[0][1].has_cls else "mean"
                rows.append(TileRow(f"{word} to patch", [None, *maps], COSINE))
            bar.update()
    figure = draw_sheet(
        rows,
        title="Dense features over resolutions",
        columns=["image", *(f"{side} px" for side in sides)],
        note=f"Colours of one row: one {method.upper()} of all its resolutions.",
    )
    save(figure, out)


def paths(model: str, image: Names, out: Path, *, budgets: Numbers = None, resolution: int = 512) -> None:
    """Where each core sits on the image at every layer: a row per image, a column per budget.

    Args:
        model: One Veca: folder, .ckpt, Hub id or random:SIZE.
        image: One or more images or folders, with commas between.
        out: Picture to write, .png or .svg.
        budgets: Numbers of active cores, e.g. 8,64; by default the smallest and its doubles.
        resolution: Side in pixels of what the model sees.
    """
    check_out(out)
    (probed,) = open_models([model])
    veca, rows = veca_of(probed), []
    chosen = choose_budgets(veca, budgets)
    for path in find_images(image):
        view = read_view(path, resolution=fit_side(probed, resolution))
        traces = [trace_images(veca, view, budget=budget).places[:, 0] for budget in chosen]
        tiles = [_photo(view)._replace(paths=core_paths(places, size=(1, 1))) for places in traces]
        rows.append(TileRow("", tiles, "layer", (1, veca.size.depth), PATH_RAMP))
    title = f"Core places from layer to layer, {short_name(probed)}"
    save(draw_sheet(rows, title=title, columns=[f"{budget} cores" for budget in chosen], side=2 * TILE), out)


def patch_profiles(model: Veca, view: Tensor, *, budget: int) -> list[Tensor]:
    """Each patch's contributions to the cores, L2-normalised, of layers 2…L: (N, C) each (method §6)."""
    shares = trace_images(model, view, budget=budget).contributions[1:, 0]  # (L − 1, C, N)
    return list(F.normalize(shares.transpose(1, 2), dim=-1, eps=torch.finfo(shares.dtype).tiny))


def _photo(view: Tensor, marks: Array | None = None) -> Tile:
    return Tile(view[0].permute(1, 2, 0).numpy(), marks)


def _square(values: Array) -> Array:
    """Values (N, …) of the patches of a square view as a picture."""
    side = round(len(values) ** 0.5)
    return values.reshape(side, side, *values.shape[1:])


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
