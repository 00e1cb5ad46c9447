"""`veca probe knn`: nearest neighbours on the global feature, the probe that trains nothing.

The protocol is DINO's: L2-normalised features, cosine similarity, the k nearest training images vote with
weight exp(similarity / 0.07).
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from veca.probes.features import Cached
from veca.probes.sweep import Probe, Score, open_sweep, run_sweep

TEMPERATURE = 0.07
SIMILARITIES = 2**24  # held at once: 64 MB


def knn(model: str, data: str, *, k: int = 20, **sweep: Any) -> None:
    """Classify held-out images by the labels of their nearest training images.

    Args:
        model: Folder with model.safetensors, a run's .ckpt, the authors' .pt, a Hub id, or a peer's name.
        data: Folder with train/CLASS/*.jpg and val/CLASS/*.jpg (or test), shards, or NAME:FOLDER.
        k: Neighbours that vote; at most the number of training images.
        sweep: What all probes take; see `veca.probes.sweep.open_sweep`.
    """
    if k < 1:
        raise ValueError(f"k must be at least 1; got {k}. Try 20.")
    opened = open_sweep(model, data, probe="knn", task="classify", **sweep)
    run_sweep(opened, KnnProbe(opened, opened.scan("train", opened.judged), k))


@dataclass(frozen=True)
class KnnProbe(Probe):
    """The probe of a sweep."""

    k: int
    quantities = ("accuracy",)

    @property
    def settings(self) -> dict[str, Any]:
        k = min(self.k, len(self.splits["train"].items))
        return {"k": k, "temperature": TEMPERATURE, "judged on": self.sweep.judged}

    def constant(self) -> dict[str, float]:
        return self._accuracy(self.targets("train").bincount().argmax())

    def score(self, features: dict[str, Cached]) -> Score:
        labels, num_classes = self.targets("train"), len(self.sweep.dataset.classes)
        train, queries = features["train"].cls, features[self.sweep.judged].cls
        return Score(self._accuracy(classify(train, labels, queries, k=self.k, num_classes=num_classes)), {})

    def _accuracy(self, found: Tensor) -> dict[str, float]:
        truth = self.targets(self.sweep.judged)
        return {"accuracy": int((found == truth).sum()) / len(truth)}


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
