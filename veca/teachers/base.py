"""What all teachers share: checks, normalisation, micro-batches, the student's grid, the fingerprint.

In: images (B, 3, H, W) uint8, sides multiples of 16. Out: `Targets` in float32, N = H/16 · W/16 patches,
row-major. A teacher that looks at another size or has another patch size is resampled here, so that the
loss never has to know.

Shapes: B batch, N patches of the student's grid, D teacher width.
"""

import hashlib
import json
from abc import ABC, abstractmethod
from typing import Any, Literal, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from veca.data.resolutions import PATCH_SIZE
from veca.data.views import MEAN, STD
from veca.types import Targets, check_images

Channels = tuple[float, float, float]
MicroBatch = int | dict[int, int] | None

CPU_PASS_PIXELS = 8 * 256 * 256  # in bf16: what lies in a CPU's caches; twice as many take half as long again


class Normalisation(NamedTuple):
    """`(byte - mean) / std` per channel. In units of bytes, so that pixels are rescaled exactly once."""

    mean: Channels
    std: Channels

    @classmethod
    def from_unit(cls, mean: Channels, std: Channels, *, rescale: float = 1 / 255) -> "Normalisation":
        """From mean and std that apply to `byte * rescale`, as model cards state them."""
        (a, b, c), (d, e, f) = ([value / rescale for value in values] for values in (mean, std))
        return cls((a, b, c), (d, e, f))


IMAGENET = Normalisation.from_unit(MEAN, STD)  # also the student's


class Encoding(NamedTuple):
    """What a network says before it is brought to the student's grid."""

    cls: Tensor  # (B, D)
    patches: Tensor  # (B, D, rows, cols) of the network's own grid
    has_cls: bool = True  # False where `cls` is pooled from the patches


class Teacher(nn.Module, ABC):
    """A frozen network behind one call.

    Args:
        model: the network; it is set to eval mode and frozen.
        width: channels of its targets, D.
        normalisation: what the network expects of its pixels.
        micro_batch: images per pass, or one number per resolution, e.g. `{256: 128, 768: 8}`: an image takes
            the entry of the smallest resolution² that holds its pixels, and past the largest the number
            shrinks with the area. None passes the whole batch.
        compile_teacher: compile the network on first use; None where a run or a cache gains by it: in bf16 on
            a CPU, for many images.
    """

    _mean: Tensor
    _std: Tensor

    def __init__(
        self,
        model: nn.Module,
        *,
        width: int,
        normalisation: Normalisation,
        micro_batch: MicroBatch = None,
        compile_teacher: bool | None = None,
    ) -> None:
        super().__init__()
        if micro_batch is not None:
            numbers = (
                [*micro_batch, *micro_batch.values()] if isinstance(micro_batch, dict) else [micro_batch]
            )
            if not numbers or min(numbers) < 1:
                raise ValueError(
                    "micro_batch must be a positive number of images, or one per resolution like "
                    f"{{256: 128, 768: 8}}; got {micro_batch!r}. Leave it out to pass whole batches."
                )
        self.width, self.normalisation, self.micro_batch = width, normalisation, micro_batch
        self.model = model.eval().requires_grad_(False)
        self.training = False
        for name, values in (("_mean", normalisation.mean), ("_std", normalisation.std)):
            self.register_buffer(name, torch.tensor(values).view(3, 1, 1), persistent=False)
        self.compile_teacher = compile_teacher
        self._fixed_passes = False
        if compile_teacher:
            self.model.compile()  # in place: parameter names stay as they are

    # no_grad, not inference_mode: the loss saves the targets for its backward pass, and transformers keeps
    # DINOv3's coordinates in a cache that a student may share.
    @torch.no_grad()
    def forward(self, images: Tensor) -> Targets:
        """Targets of a batch. Runs in the precision of the surrounding autocast; the answer is float32."""
        check_images(images)
        if not len(images):
            raise ValueError(
                f"images must have shape (B, 3, H, W), none of them 0; got {tuple(images.shape)}."
            )
        if images.dtype != torch.uint8:
            raise ValueError(
                f"a teacher takes uint8 images and normalises them itself; got {images.dtype}. "
                "Pass the batch as the loader gives it."
            )
        count, size = len(images), self._images_per_pass(images)
        if self._fixed_passes and count % size:
            images = torch.cat((images, images[:1].expand(-count % size, -1, -1, -1)))
        parts = [self._targets(part) for part in images.split(size)]
        cls, patches = torch.cat([part.cls for part in parts]), torch.cat([part.patches for part in parts])
        return Targets(cls[:count], patches[:count])

    def compile_fixed(self) -> None:
        """Compile for passes of one size, on first use; a smaller last pass is filled up to it."""
        self._fixed_passes = True
        self.model.compile(dynamic=False)

    def train(self, mode: bool = True) -> Self:
        """Stay in eval mode, whatever the module that holds this teacher does."""
        return super().train(False)

    def fingerprint(self) -> str:
        """A short hash of everything that decides the targets: weights, normalisation, identity."""
        return weights_fingerprint(self, {"normalisation": self.normalisation, **self._identity()})

    def patch_projection(self) -> tuple[Tensor, Tensor] | None:
        """Weight (D, 3, 16, 16) and bias (D,) for the student's pixels; None when there is none."""
        return None

    @abstractmethod
    def input_size(self, height: int, width: int) -> tuple[int, int]:
        """The size at which the network wants to see an image of the given size."""

    @abstractmethod
    def encode(self, pixels: Tensor) -> Encoding:
        """Run the network on normalised pixels of `input_size`."""

    @abstractmethod
    def _identity(self) -> dict[str, Any]:
        """What decides the targets beside weights and normalisation, as JSON."""

    def _targets(self, images: Tensor) -> Targets:
        height, width = images.shape[-2:]
        cls, patches, _ = self.encode(self._pixels(images))
        patches = resample(patches.float(), (height // PATCH_SIZE, width // PATCH_SIZE))
        return Targets(cls.float(), patches.flatten(2).transpose(1, 2).contiguous())  # (B, D), (B, N, D)

    def _pixels(self, images: Tensor) -> Tensor:
        height, width = images.shape[-2:]
        pixels, size = images.contiguous().float(), self.input_size(height, width)
        if size != (height, width):
            # Bicubic overshoots at edges; an image file would have clipped there too.
            pixels = F.interpolate(pixels, size=size, mode="bicubic", antialias=True).clamp(0, 255)
        return ((pixels - self._mean) / self._std).to(next(self.model.parameters()).dtype)

    def _images_per_pass(self, images: Tensor) -> int:
        most = self._micro_batch_of(images)
        if images.device.type == "cpu" and torch.is_autocast_enabled("cpu"):
            height, width = self.input_size(*images.shape[-2:])
            return min(most, max(1, CPU_PASS_PIXELS // (height * width)))
        return most

    def _micro_batch_of(self, images: Tensor) -> int:
        if not isinstance(self.micro_batch, dict):
            return self.micro_batch or len(images)
        area = images.shape[-2] * images.shape[-1]
        for resolution, count in sorted(self.micro_batch.items()):
            if area <= resolution**2:
                return count
        largest = max(self.micro_batch)
        return max(1, self.micro_batch[largest] * largest**2 // area)


def weights_fingerprint(module: nn.Module, identity: dict[str, Any]) -> str:
    """A short hash of a module's tensors and of `identity`, which must be JSON.

    Tensors enter in order and without their names, so a release that renames modules, or a move to
    another device, keeps the fingerprint.
    """
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode())
    for tensor in module.state_dict().values():
        digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
        # As bytes: numpy has no bfloat16.
        digest.update(memoryview(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy()))
    return digest.hexdigest()[:16]


def resample(patches: Tensor, grid: tuple[int, int]) -> Tensor:
    """Bring a feature map (B, D, rows, cols) to another grid; antialiased, so that coarser means averaged."""
    if patches.shape[-2:] == grid:
        return patches
    return F.interpolate(patches, size=grid, mode="bilinear", antialias=True)


class CachedTargets(Teacher):
    """No teacher: the former way to write `data.targets`, which `veca fit` still reads."""

    def __init__(
        self,
        path: str,
        *,
        teacher: str | None = None,
        views: int | None = None,
        dtype: Literal["fp16", "bf16", "int8"] | None = None,
    ) -> None:
        raise ValueError(
            f"CachedTargets({path}) is no teacher: stored targets come with the data. Train from them by "
            "data.targets; elsewhere name the teacher that made them."
        )

    def input_size(self, height: int, width: int) -> tuple[int, int]:
        raise NotImplementedError

    def encode(self, pixels: Tensor) -> Encoding:
        raise NotImplementedError

    def _identity(self) -> dict[str, Any]:
        raise NotImplementedError
