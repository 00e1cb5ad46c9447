"""`veca probe knn`: nearest neighbours on the global feature, the probe that trains nothing.

The protocol is DINO's: L2-normalised features, cosine similarity, the k nearest training images vote with
weight exp(similarity / 0.07). Two baselines stand in the same table, random weights and raw pixels, because
on easy data both are far above chance.
"""

import statistics
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from veca.checkpoint import load_model
from veca.model import Veca
from veca.probes.backbones import Backbone, RawPixels, VecaAtBudget, random_model
from veca.probes.features import Progress, global_features
from veca.probes.folders import Folders, read_folders
from veca.probes.progress import count_images
from veca.probes.results import Results, Row, markdown, results_path, table, write_results
from veca.probes.settings import Grid, Numbers, choose_grid

TEMPERATURE = 0.07
SIMILARITIES = 2**24  # held at once: 64 MB

Score = Callable[[Backbone], float]


def knn(
    model: str,
    data: Path,
    *,
    budgets: Numbers = None,
    resolutions: Numbers = None,
    out: Path | None = None,
    k: int = 20,
    seeds: int = 3,
) -> None:
    """Classify held-out images by the labels of their nearest training images.

    Args:
        model: Folder with model.safetensors, a run's .ckpt, the authors' .pt, or a Hub id.
        data: Folder with train/CLASS/*.jpg and val/CLASS/*.jpg (or test), or with images/ that has them.
        budgets: Budgets to run, as 8,64; by default the smallest and all cores.
        resolutions: Resolutions to run, as 256,512; by default 256.
        out: JSON to write; by default knn.json beside the model, or in the run's folder.
        k: Neighbours that vote; at most the number of training images.
        seeds: Models with random weights to compare with; 0 for none.
    """
    if k < 1 or seeds < 0:
        raise ValueError(
            f"k must be at least 1 and seeds at least 0; got k={k}, seeds={seeds}. Try 20 and 3."
        )
    student = load_model(model)
    grid = choose_grid(student.size, budgets=budgets, resolutions=resolutions)
    path = results_path(model, out, probe="knn")
    folders = read_folders(data)
    for split in (folders.train, folders.held_out):
        counts = split.counts().values()
        each = f"{min(counts)}–{max(counts)}" if min(counts) < max(counts) else f"{min(counts)}"
        print(f"{split.split}: {len(split.paths)} images, {len(counts)} classes of {each}")
    results = Results(
        probe="knn",
        model=model,
        data=str(data),
        quantity="accuracy",
        rows=_all_rows(student, grid, folders, k=k, seeds=seeds),
        settings={"k": min(k, len(folders.train.paths)), "temperature": TEMPERATURE, "seeds": seeds},
        counts={split.split: split.counts() for split in (folders.train, folders.held_out)},
        unreadable=folders.unreadable,
    )
    write_results(path, results)
    print(f"\n{markdown(table(results))}\n\n{path}")


def classify(train: Tensor, labels: Tensor, queries: Tensor, *, k: int, num_classes: int) -> Tensor:
    """Labels (n,) of `queries` (n, D) by the weighted vote of their `k` nearest rows of `train` (m, D).

    Equal votes go to the lower label.
    """
    k = min(k, len(train))
    train = F.normalize(train, dim=1)
    chunk = max(1, SIMILARITIES // len(train))
    found = []
    for part in queries.split(chunk):
        similarity, nearest = (F.normalize(part, dim=1) @ train.T).topk(k, dim=1)
        votes = torch.zeros(len(part), num_classes)
        votes.scatter_add_(1, labels[nearest], (similarity / TEMPERATURE).exp())
        found.append(votes.argmax(1))
    return torch.cat(found)


def _all_rows(student: Veca, grid: Grid, folders: Folders, *, k: int, seeds: int) -> list[Row]:
    images = len(folders.train.paths) + len(folders.held_out.paths)
    passes = len(grid.budgets) * len(grid.resolutions) * (1 + seeds) + 1
    with count_images("features", passes * images) as progress:

        def score(backbone: Backbone) -> float:
            return _accuracy(backbone, folders, k=k, progress=progress)

        return [
            *_model_rows(student, grid, score),
            *_random_rows(student, grid, score, seeds=seeds),
            Row("raw pixels", None, None, score(RawPixels())),
        ]


def _model_rows(student: Veca, grid: Grid, score: Score) -> Iterator[Row]:
    student = student.to(_device())
    for resolution in grid.resolutions:
        for budget in grid.budgets:
            yield Row("model", budget, resolution, score(VecaAtBudget(student, budget, resolution)))


def _random_rows(student: Veca, grid: Grid, score: Score, *, seeds: int) -> Iterator[Row]:
    """Mean and standard deviation over seeds; one model is held at a time."""
    for resolution in grid.resolutions:
        for budget in grid.budgets if seeds else ():
            models = (random_model(student.size, seed=seed).to(_device()) for seed in range(seeds))
            scores = [score(VecaAtBudget(model, budget, resolution)) for model in models]
            spread = statistics.stdev(scores) if seeds > 1 else None
            yield Row("random weights", budget, resolution, statistics.fmean(scores), spread)


def _accuracy(backbone: Backbone, folders: Folders, *, k: int, progress: Progress) -> float:
    train = global_features(backbone, folders.train, progress=progress)
    queries = global_features(backbone, folders.held_out, progress=progress)
    labels, truth = torch.tensor(folders.train.labels), torch.tensor(folders.held_out.labels)
    found = classify(train, labels, queries, k=k, num_classes=len(folders.train.classes))
    return int((found == truth).sum()) / len(truth)


def _device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
