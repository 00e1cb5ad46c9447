"""Views: which part of an image the model sees, what is done to it, and pixels as a model's input.

A view is drawn from (seed, epoch, key) and the image's size alone, before anything is decoded, and is
recorded whole: the same bytes and the same view give the same pixels, whichever worker renders them. That
is how cached teacher targets meet the student's input.

A training view is, in this order (method, section 4): short side to 9/8 of the resolution (bicubic,
antialiased), random crop, flip, one operation of TrivialAugmentWide. The resize stops where the crop
ends, and of a large JPEG only the needed frequencies are decoded. The validation view, which all figures,
features and probes share, is the centre crop.

Batches travel as uint8 (a quarter of the bytes) and are normalised once, on the device that uses them.
"""

import hashlib
import math
import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import cv2
import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from veca.data.decode import BadImage, Pixels, decode_pixels, pixels_from_pil
from veca.data.folders import read_named
from veca.data.resolutions import PATCH_SIZE
from veca.data.trivial_augment import NUM_BINS, OPS, apply_op, resolve_magnitude

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
RESIZE_STEP = 8  # 9/8 of the resolution must be whole

_HELD_BYTES = 12 << 20  # of decoded images that wait to be finished: more would leave the cache

Picture = str | os.PathLike[str] | Image.Image | NDArray[np.uint8]


class View(NamedTuple):
    """A crop of the image resized to `width` × `height`, and what follows it. All fields are JSON values."""

    resolution: int  # side of the crop
    width: int  # of the resized image
    height: int
    left: int  # corner of the crop, in the resized image
    top: int
    flip: bool
    op: str
    magnitude: float  # the value itself: signed slope, pixels, degrees, factor − 1, bits or threshold


def sample_generator(seed: int, epoch: int, key: str) -> np.random.Generator:
    """The random numbers of one sample in one epoch, whichever worker asks."""
    digest = hashlib.blake2b(f"{seed}/{epoch}/{key}".encode(), digest_size=32).digest()
    bits = np.random.PCG64(_Digest(digest))  # type: ignore[arg-type]  # the stub forgets ISeedSequence
    return np.random.Generator(bits)


def draw_view(
    rng: np.random.Generator, *, size: tuple[int, int], resolution: int, augment: bool = True
) -> View:
    """Draw a training view of an image of `size` = (width, height).

    Without `augment` the operation is Identity; crop and flip stay those of the same generator.
    """
    width, height = resized_size(size, resolution=resolution)
    # One call for all numbers: it costs less than a call for each.
    left, top, flip, op, step, sign = rng.random(6).tolist()
    name = OPS[int(op * len(OPS))] if augment else "Identity"
    return View(
        resolution=resolution,
        width=width,
        height=height,
        left=int(left * (width - resolution + 1)),
        top=int(top * (height - resolution + 1)),
        flip=flip < 0.5,
        op=name,
        magnitude=resolve_magnitude(name, step=int(step * NUM_BINS), negative=sign < 0.5),
    )


def centre_view(*, size: tuple[int, int], resolution: int) -> View:
    """The validation view: resize and centre crop."""
    width, height = resized_size(size, resolution=resolution)
    left, top = (width - resolution) // 2, (height - resolution) // 2
    return View(resolution, width, height, left, top, flip=False, op="Identity", magnitude=0.0)


def resized_size(size: tuple[int, int], *, resolution: int) -> tuple[int, int]:
    """(width, height) with the short side at 9/8 of the resolution, the long one rounded down."""
    check_resolution(resolution, patch_size=1)
    width, height = size
    short, target = min(size), resolution * 9 // 8
    if short < 1:
        raise ValueError(f"size must be (width, height), both positive; got {size}.")
    return width * target // short, height * target // short


def render(data: bytes, view: View) -> NDArray[np.uint8]:
    """The pixels of a view of an encoded image: (3, R, R) on memory (R, R, 3). Raises BadImage."""
    return render_pixels(decode_pixels(data, short_side=min(view.width, view.height)), view)


def render_all(images: Sequence[bytes], views: Sequence[View]) -> Iterator[NDArray[np.uint8] | BadImage]:
    """`render` of several images; one that cannot be decoded gives its error in its place.

    Several are decoded, then finished together: going to and fro between the decoder and the operations
    for every image would cost a tenth of the time, in caches that hold the code of neither.
    """
    decoded: list[tuple[Pixels | BadImage, View]] = []
    held = 0
    for data, view in zip(images, views, strict=True):
        try:
            pixels = decode_pixels(data, short_side=min(view.width, view.height))
            decoded.append((pixels, view))
            held += pixels.rgb.nbytes
        except BadImage as error:
            decoded.append((error, view))
        if held >= _HELD_BYTES:
            yield from _finished(decoded)
            decoded, held = [], 0
    yield from _finished(decoded)


def render_pixels(pixels: Pixels, view: View) -> NDArray[np.uint8]:
    """The same for an image that is decoded already."""
    if resized_size(pixels.size, resolution=view.resolution) != (view.width, view.height):
        raise ValueError(
            f"the view is of an image that resizes to {view.width}×{view.height}; this one has "
            f"{pixels.size[0]}×{pixels.size[1]} pixels. Draw the view from the size of this image."
        )
    crop: NDArray[Any] = _resize_and_crop(pixels, view)
    crop = cv2.flip(crop, 1) if view.flip else crop
    return apply_op(crop, op=view.op, magnitude=view.magnitude).transpose(2, 0, 1)


def view_from_json(body: Any) -> View:
    """A view from `view._asdict()` as JSON gives it back; raises ValueError for anything that is none."""
    if not isinstance(body, dict) or set(body) != set(View._fields):
        raise ValueError(f"a view must have the fields {', '.join(View._fields)}; got {body!r}.")
    view = View(**body)
    side = view.resolution
    inside = 0 <= view.left <= view.width - side and 0 <= view.top <= view.height - side
    if not inside or view.op not in OPS:
        raise ValueError(f"a view must lie in its image and use an operation of {OPS}; got {body!r}.")
    return view


def normalise(
    images: Tensor,
    *,
    mean: tuple[float, ...] = MEAN,
    std: tuple[float, ...] = STD,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """uint8 (B, 3, H, W) → (images / 255 − mean) / std, computed in float32, given in `dtype`."""
    if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] != len(mean):
        raise ValueError(
            f"images must be uint8 of shape (B, {len(mean)}, H, W); got {images.dtype} of shape "
            f"{tuple(images.shape)}. Images that are floats already must not be normalised again."
        )
    normalised = images.contiguous().float()  # batches come channels last
    # Python scalars, channel by channel: a tensor of means would be copied to the device in every step.
    for channel, (centre, spread) in enumerate(zip(mean, std, strict=True)):
        normalised[:, channel].mul_(1 / (255 * spread)).sub_(centre / spread)
    return normalised.to(dtype)


def preprocess(image_or_path: Picture, *, resolution: int = 256, patch_size: int = PATCH_SIZE) -> Tensor:
    """A picture as a model's input (1, 3, R, R): the validation view, normalised.

    Takes a path, a Pillow image, or a uint8 array of shape (H, W), (H, W, 3) or (H, W, 4). `patch_size` is
    that of the model, which `resolution` must be a multiple of.
    """
    check_resolution(resolution, patch_size=patch_size)
    if isinstance(image_or_path, str | os.PathLike):
        pixels = decode_pixels(read_named(image_or_path))
    elif isinstance(image_or_path, Image.Image):
        pixels = pixels_from_pil(image_or_path)
    else:
        pixels = pixels_from_pil(_image_from_array(image_or_path))
    return normalise(torch.from_numpy(centre_crop(pixels, resolution=resolution))[None])


def centre_crop(pixels: Pixels, *, resolution: int) -> NDArray[np.uint8]:
    """The validation view of a decoded image: (3, R, R)."""
    return render_pixels(pixels, centre_view(size=pixels.size, resolution=resolution))


def check_resolution(resolution: int, *, patch_size: int, resized: bool = True) -> None:
    """Refuse a side that is no whole number of patches or, for a view that is `resized` by 9/8, of pixels."""
    step = math.lcm(patch_size, RESIZE_STEP) if resized else patch_size
    if resolution < step or resolution % step:
        near = max(step, round(resolution / step) * step)
        raise ValueError(f"resolution must be a multiple of {step}; got {resolution}. Try {near}.")


def _finished(decoded: Sequence[tuple[Pixels | BadImage, View]]) -> Iterator[NDArray[np.uint8] | BadImage]:
    for pixels, view in decoded:
        yield pixels if isinstance(pixels, BadImage) else render_pixels(pixels, view)


def _resize_and_crop(pixels: Pixels, view: View) -> NDArray[np.uint8]:
    rgb, (width, height), divisor = pixels
    bottom, right = view.top + view.resolution, view.left + view.resolution
    if (width, height) != (view.width, view.height):
        scales = view.height * divisor / height, view.width * divisor / width
        rows, columns = (  # of the source: the bicubic filter reaches 2 further than the crop
            math.ceil(end / scale + 2 * max(1.0, 1 / scale)) + 1
            for end, scale in zip((bottom, right), scales, strict=True)
        )
        source = torch.from_numpy(np.ascontiguousarray(rgb[:rows, :columns]))[None]
        # torch's uint8 kernel is more than twice as fast as Pillow's resize of the crop box alone, and
        # agrees with Pillow to one level, rarely two. It cannot start inside a pixel, so the part before
        # the crop is resized too. It gives floor(side × scale) pixels: a hair more makes sure of the last.
        resized = F.interpolate(
            source.permute(0, 3, 1, 2),
            scale_factor=[scale * (1 + 1e-9) for scale in scales],
            mode="bicubic",
            antialias=True,
        )
        rgb = resized.permute(0, 2, 3, 1)[0].numpy()  # channels last, as they came
    return rgb[view.top : bottom, view.left : right]


def _image_from_array(array: NDArray[np.uint8]) -> Image.Image:
    found = type(array).__name__
    if isinstance(array, np.ndarray):
        if array.dtype == np.uint8 and (array.ndim == 2 or (array.ndim == 3 and array.shape[-1] in (3, 4))):
            return Image.fromarray(array)
        found = f"{array.dtype} of shape {array.shape}"
    raise ValueError(
        "image_or_path must be a path, a Pillow image or a uint8 array of shape (H, W), (H, W, 3) or "
        f"(H, W, 4); got {found}."
    )


class _Digest(np.random.bit_generator.ISeedSequence):
    """Seeds a generator with hash bytes as they are; SeedSequence would spend 10 µs on mixing them again."""

    def __init__(self, digest: bytes) -> None:
        self.digest = digest

    def generate_state(self, n_words: int, dtype: DTypeLike = np.uint32) -> NDArray[Any]:
        return np.frombuffer(self.digest, dtype=dtype, count=n_words)
