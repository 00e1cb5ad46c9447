"""What segmentation and depth share: how splits are seen, the choice of the learning rate, the last fit."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from torch import Tensor

from veca.probes.choice import VAL_SHARE, carve, choose
from veca.probes.dense import BATCH, POWER, RATES, WEIGHT_DECAY, DenseHeads, Places, fit_dense
from veca.probes.results import RATE
from veca.probes.scan import Scanned
from veca.probes.store import Cached
from veca.probes.sweep import Score, Sweep, open_sweep, run_sweep
from veca.probes.views import LABELS_PER_PATCH, Windows


def run_dense(
    model: str,
    data: str,
    *,
    kind: "type[DenseProbe]",
    task: Literal["segment", "depth"],
    inference: Literal["slide", "whole"] = "slide",
    epochs: int = 20,
    seeds: int = 1,
    **sweep: Any,
) -> None:
    """Run a dense probe, which has the name of its task.

    Args:
        model: Folder with model.safetensors, a run's .ckpt, the authors' .pt, a Hub id, or a peer's name.
        data: Folder of images and what is known of their pixels, or NAME:FOLDER.
        kind: The probe.
        task: What its head answers.
        inference: How judged images are seen: in windows (slide), or each at once (whole).
        epochs: Passes over the training windows.
        seeds: Models with random weights to compare with; 0 for none.
        sweep: What all probes take; see `veca.probes.sweep.open_sweep`.
    """
    opened = open_sweep(model, data, probe=task, task=task, seeds=seeds, **sweep)
    splits = opened.scan("train", opened.chooses, opened.judged)
    run_sweep(opened, kind(opened, splits, epochs, inference == "whole"))


@dataclass(frozen=True)
class DenseProbe(ABC):
    """A probe with a linear head on patches and CLS."""

    sweep: Sweep
    splits: dict[str, Scanned]
    epochs: int
    whole: bool

    def __post_init__(self) -> None:
        if self.epochs < 1:
            raise ValueError(f"epochs must be at least 1; got {self.epochs}. Try 20.")

    @property
    @abstractmethod
    def quantities(self) -> list[str]:
        """What is measured; the first counts."""

    @property
    @abstractmethod
    def num_outputs(self) -> int:
        """Channels of a head's map."""

    @abstractmethod
    def loss(self, maps: Tensor, targets: Tensor) -> Tensor:
        """The loss of each head, (G,)."""

    @abstractmethod
    def choice_scores(self, heads: DenseHeads, features: Cached, views: Places) -> list[float]:
        """How good each head is on labelled windows; higher is better."""

    @abstractmethod
    def values(self, heads: DenseHeads, features: Cached, judged: Scanned) -> dict[str, float]:
        """The quantities of the first head on judged images."""

    @abstractmethod
    def constant(self) -> dict[str, float]:
        """The quantities of the best answer that ignores the image."""

    @property
    def settings(self) -> dict[str, Any]:
        chooses = self.sweep.chooses or f"{VAL_SHARE:.0%} of train"
        return {
            "optimizer": f"AdamW, weight decay {WEIGHT_DECAY:g}, polynomial {POWER}, batch {BATCH}",
            "epochs": self.epochs,
            "learning rates": list(RATES),
            "chosen on": f"{chooses}, then fitted again on train and these",
            "judged on": self.sweep.judged,
            "inference": "whole image" if self.whole else "sliding windows",
            "labels per patch": LABELS_PER_PATCH**2,
        }

    def viewer(self, split: str, *, resolution: int, patch_size: int) -> Windows:
        judged = split == self.sweep.judged
        return Windows(resolution, patch_size, whole=judged and self.whole, labelled=not judged)

    def score(self, features: dict[str, Cached]) -> Score:
        heads, chosen = self._fit(features)
        judged = self.sweep.judged
        return Score(self.values(heads, features[judged], self.splits[judged]), chosen)

    def _fit(self, features: dict[str, Cached]) -> tuple[DenseHeads, dict[str, Any]]:
        """The head of the chosen rate, and the scores the choice was made from."""
        if (name := self.sweep.chooses) is not None:
            learnt = Cached(*features["train"].stores, *features[name].stores)
            views = np.arange(len(learnt))
            fitted, held = np.split(views, [len(features["train"])])
        else:
            learnt = features["train"]
            kept = carve(len(self.splits["train"].items))
            fitted, held, views = learnt.views_of(~kept), learnt.views_of(kept), np.arange(len(learnt))
        scores = self.choice_scores(self._heads(learnt, fitted, RATES), learnt, held)
        place = choose(scores)
        validation = {f"{rate:g}": score for rate, score in zip(RATES, scores, strict=True)}
        return self._heads(learnt, views, (RATES[place],)), {RATE: RATES[place], "validation": validation}

    def _heads(self, features: Cached, views: Places, rates: tuple[float, ...]) -> DenseHeads:
        return fit_dense(
            features,
            views,
            num_outputs=self.num_outputs,
            loss=self.loss,
            epochs=self.epochs,
            rates=rates,
            device=self.sweep.fabric.device,
        )
