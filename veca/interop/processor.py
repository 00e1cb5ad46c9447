"""Pictures → `pixel_values`: the view of `veca.preprocess`, normalised once, for one picture or many."""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import BatchFeature
from transformers.image_processing_utils import BaseImageProcessor

from veca.data.views import Picture, preprocess


class VecaImageProcessor(BaseImageProcessor):
    """Short side to 9/8 of the resolution, centre crop, ImageNet mean and deviation.

    Takes what `veca.preprocess` takes: paths, Pillow images, uint8 arrays (H, W), (H, W, 3) or (H, W, 4).
    Pixels are bytes; an array of floats is refused rather than scaled on a guess.

    Args:
        resolution: Side of the square view, a multiple of the patch size.
    """

    def __init__(self, resolution: int = 256, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.resolution = resolution
        self.model_input_names = ["pixel_values"]

    def preprocess(
        self,
        images: Picture | Sequence[Picture],
        *,
        resolution: int | None = None,
        return_tensors: str | None = "pt",
    ) -> BatchFeature:
        """`pixel_values` (B, 3, R, R), as a torch tensor unless `return_tensors` says "np"."""
        pictures: list[Any] = list(images) if isinstance(images, list | tuple) else [images]
        side = self.resolution if resolution is None else resolution
        views = torch.cat([preprocess(picture, resolution=side) for picture in pictures])
        values = views.numpy() if return_tensors == "np" else views
        return BatchFeature({"pixel_values": values})
