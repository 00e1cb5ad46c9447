"""Images → one feature matrix. Memory: one batch and the matrix itself."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from veca.probes.backbones import Backbone
from veca.probes.folders import LabelledImages, read_view

BATCH_PIXELS = 64 * 256**2  # larger views come in smaller batches
MAX_BATCH = 256


class Progress(Protocol):
    """A progress bar that counts images."""

    def update(self, n: int) -> object: ...


@torch.inference_mode()
def global_features(backbone: Backbone, images: LabelledImages, *, progress: Progress) -> Tensor:
    """Global features (n, D) on the CPU, in the order of `images`."""
    matrix = torch.empty(0)
    done = 0
    for batch in _batches(images, backbone.resolution):
        features = backbone(batch).float().cpu()
        if not done:
            matrix = torch.empty(len(images.paths), features.shape[1])
        matrix[done : done + len(batch)] = features
        done += len(batch)
        progress.update(len(batch))
    if not bool(matrix.isfinite().all()):
        raise ValueError(
            f"{backbone} gives features that are not finite. Training may have diverged: "
            "take an earlier checkpoint."
        )
    return matrix


def _batches(images: LabelledImages, resolution: int) -> Iterator[Tensor]:
    """uint8 (B, 3, R, R) in order; threads decode, since both decoders let go of the interpreter lock."""
    size = max(1, min(MAX_BATCH, BATCH_PIXELS // resolution**2))
    with ThreadPoolExecutor() as pool:
        for start in range(0, len(images.paths), size):
            views = pool.map(partial(read_view, resolution=resolution), images.paths[start : start + size])
            yield torch.from_numpy(np.stack(list(views)))
