"""`veca probe knn` and `veca probe linear`: what the global feature knows of classes (method, section 6).

Nearest neighbours train nothing. The protocol is DINO's: L2-normalised features, cosine similarity, the k
nearest training images vote with weight exp(similarity / 0.07).

Linear heads of thirteen learning rates are trained at once (heads.py). The rate is chosen on the val split
where there is a test split to be judged, else on a tenth of the training images, class by class; the chosen
rate is then fitted again on all of them. The judged split takes no part in any of it.

Quantities: top-1 and top-5 accuracy (top-5 from six classes on). Where an image has several labels, the mean
average precision over classes, each the area under its precision-recall curve (not the 11-point average of
2007), entries marked IGNORED left out. A head can be judged on the images of other data as well; where
those have several valid labels, any of them counts, and images without one are left out and counted.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torchmetrics.functional.classification import multiclass_accuracy, multilabel_average_precision

from veca.backbones import Names, split_names
from veca.probes.datasets import open_dataset
from veca.probes.datasets.splits import IGNORED, Scanned, scan_split
from veca.probes.features import Cached
from veca.probes.heads import BATCH, MOMENTUM, RATES, LinearHeads, fit_linear, split_holdout
from veca.probes.sweep import FittedProbe, Probe, Score, Sweep

TEMPERATURE = 0.07
SIMILARITIES = 2**24  # held at once: 64 MB
ON = " on "
EPOCHS = 50


def knn(model: str, data: str, *, k: int = 20, **sweep: Any) -> None:
    """Classify held-out images by the labels of their nearest training images.

    Args:
        model: Folder with model.safetensors, a run's .ckpt, the authors' .pt, a Hub id, or a peer's name.
        data: Folder with train/CLASS/*.jpg and val/CLASS/*.jpg (or test), shards, or NAME:FOLDER.
        k: Neighbours that vote; at most the number of training images.
        sweep: What all probes take; see `veca.probes.sweep.Sweep`.
    """
    if k < 1:
        raise ValueError(f"k must be at least 1; got {k}. Try 20.")
    opened = Sweep(model, data, probe="knn", task="classify", **sweep)
    opened.run(KnnProbe(opened, opened.scan("train", opened.judged), k))


def linear(model: str, data: str, *, transfer: Names = None, epochs: int = EPOCHS, **sweep: Any) -> None:
    """Fit a linear classifier to the global feature and judge it on held-out images.

    Args:
        model: Folder with model.safetensors, a run's .ckpt, the authors' .pt, a Hub id, or a peer's name.
        data: Folder with train/CLASS/*.jpg and val/CLASS/*.jpg (or test), shards, or NAME:FOLDER.
        transfer: Other data of the same classes to judge the same head on, with commas between them.
        epochs: Passes over the training images.
        sweep: What all probes take; see `veca.probes.sweep.Sweep`.
    """
    if epochs < 1:
        raise ValueError(f"epochs must be at least 1; got {epochs}. Try 50.")
    opened = Sweep(model, data, probe="linear", task="classify", **sweep)
    others = {spec: _open_transfer(opened, spec) for spec in split_names(transfer)}
    splits = opened.scan("train", opened.chooses, opened.judged)
    opened.run(LinearProbe(opened, {**splits, **others}, epochs, tuple(others)))


@dataclass(frozen=True)
class KnnProbe(Probe):
    """`veca probe knn`."""

    k: int
    quantities = ("accuracy",)

    @property
    def settings(self) -> dict[str, Any]:
        k = min(self.k, len(self.splits["train"].items))
        return {"k": k, "temperature": TEMPERATURE, "judged on": self.sweep.judged}

    def constant(self) -> dict[str, float]:
        return self._accuracy(self.targets("train").bincount().argmax())

    def score(self, features: dict[str, Cached]) -> Score:
        train, queries = features["train"].cls, features[self.sweep.judged].cls
        labels = self.targets("train")
        return self._accuracy(classify(train, labels, queries, k=self.k, num_classes=self.num_classes)), {}

    def _accuracy(self, found: Tensor) -> dict[str, float]:
        truth = self.targets(self.sweep.judged)
        return {"accuracy": int((found == truth).sum()) / len(truth)}


@dataclass(frozen=True)
class LinearProbe(FittedProbe):
    """`veca probe linear`."""

    transfer: tuple[str, ...]  # names of splits that are other data
    rates = RATES
    optimizer = f"SGD, momentum {MOMENTUM}, cosine, batch {BATCH}"

    @property
    def settings(self) -> dict[str, Any]:
        return {**super().settings, "crop": "centre, short side 9/8"}

    @property
    def quantities(self) -> tuple[str, ...]:
        return *(("mAP",) if self._several else self._tops), *(f"top-1{ON}{spec}" for spec in self.transfer)

    def constant(self) -> dict[str, float]:
        """Of classes as frequent as in the training images."""
        targets = self.targets("train")
        counts = (targets == 1).sum(0) if self._several else targets.bincount(minlength=self.num_classes)
        return self._values(lambda split: counts.float().expand(len(self.targets(split)), -1))

    def score(self, features: dict[str, Cached]) -> Score:
        """Validation images choose the rate; the chosen head is fitted again on all images."""
        train, labels = features["train"].cls, self.targets("train")
        if (name := self.sweep.chooses) is not None:
            val, val_labels = features[name].cls, self.targets(name)
        else:
            kept = torch.from_numpy(split_holdout(len(labels), None if self._several else labels))
            val, val_labels, train, labels = train[kept], labels[kept], train[~kept], labels[~kept]
        logits = self._heads(train, labels, RATES).logits(val).cpu()
        rate, chosen = self.choose_rate([self._main(logits[:, n], val_labels) for n in range(len(RATES))])
        heads = self._heads(torch.cat([train, val]), torch.cat([labels, val_labels]), (rate,))
        return self._values(lambda split: heads.logits(features[split].cls)[:, 0].cpu()), chosen

    @property
    def _tops(self) -> tuple[str, ...]:
        return ("top-1", "top-5") if self.num_classes > 5 else ("top-1",)

    @property
    def _several(self) -> bool:
        return self.targets("train").ndim == 2

    def _heads(self, features: Tensor, labels: Tensor, rates: tuple[float, ...]) -> LinearHeads:
        device = self.sweep.fabric.device
        return fit_linear(
            features, labels, num_classes=self.num_classes, epochs=self.epochs, rates=rates, device=device
        )

    def _main(self, logits: Tensor, targets: Tensor) -> float:
        return mean_precision(logits, targets) if self._several else hit_share(logits, targets)

    def _values(self, logits_of: Callable[[str], Tensor]) -> dict[str, float]:
        logits, targets = logits_of(self.sweep.judged), self.targets(self.sweep.judged)
        if self._several:
            values = {"mAP": mean_precision(logits, targets)}
        else:
            values = {name: hit_share(logits, targets, top=int(name[-1])) for name in self._tops}
        others = {
            f"top-1{ON}{spec}": hit_share(logits_of(spec), self.targets(spec)) for spec in self.transfer
        }
        return {**values, **others}


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


def hit_share(logits: Tensor, targets: Tensor, *, top: int = 1) -> float:
    """The share of images with a valid label among the `top` highest logits (n, C).

    `targets` are labels (n,), or rows (n, C) with 1 at every valid label; rows without one do not count.
    """
    if targets.ndim == 1:
        return float(
            multiclass_accuracy(logits, targets, num_classes=logits.shape[1], top_k=top, average="micro")
        )
    labelled = (targets == 1).any(dim=1)
    hits = (targets == 1).gather(1, logits.topk(top, dim=1).indices).any(dim=1)
    return float(hits[labelled].float().mean())


def mean_precision(logits: Tensor, targets: Tensor) -> float:
    """Mean average precision over the classes that have an image; targets (n, C) of 0, 1 and IGNORED."""
    present = (targets == 1).any(dim=0)
    logits, targets = logits[:, present], targets[:, present].long()
    return float(
        multilabel_average_precision(
            logits, targets, num_labels=logits.shape[1], average="macro", ignore_index=IGNORED
        )
    )


def _open_transfer(sweep: Sweep, spec: str) -> Scanned:
    dataset = open_dataset(spec, task="classify")
    here, there = sweep.dataset.classes, dataset.classes
    # INv2 names its classes by their labels, which are other ones when some classes were left out.
    by_label = not sweep.dataset.dropped and there == [str(label) for label in range(len(here))]
    if there != here and not by_label:
        pairs = [f"{a!r} and {b!r}" for a, b in zip(here, there, strict=False) if a != b]
        raise ValueError(
            f"transfer: {spec} has other classes than {sweep.data}: {len(there)} and {len(here)}, first "
            f"different {pairs[0] if pairs else 'in number'}. A head fits the same classes in the same order."
        )
    name = "test" if "test" in dataset.splits else "val"
    if name not in dataset.splits:
        raise ValueError(
            f"transfer: {spec} must have a split test or val; it has {', '.join(dataset.splits)}."
        )
    scanned = scan_split(dataset, name, quiet=not sweep.fabric.is_global_zero)
    targets = scanned.labels
    unlabelled = int((targets != 1).all(dim=1).sum()) if targets.ndim == 2 else 0
    sweep.say(f"transfer: {len(targets)} images of {spec}, {unlabelled} without a label do not count")
    return scanned
