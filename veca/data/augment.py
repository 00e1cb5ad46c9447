"""Views: which part of an image the model sees, and what is done to it.

A view is drawn from (seed, epoch, key) and the image's size alone, before anything is decoded, and is
recorded whole: the same bytes and the same view give the same pixels, whichever worker renders them. That
is how cached teacher targets meet the student's input.

A training view is, in this order (method, section 4): short side to 9/8 of the resolution (bicubic,
antialiased), random crop, flip, one operation of TrivialAugmentWide. The resize stops where the crop
ends, and of a large JPEG only the needed frequencies are decoded.
"""

import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import cv2
import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch.nn import functional as F

from veca.data.decode import BadImage, Pixels, decode_pixels
from veca.data.trivial_augment import NUM_BINS, OPS, apply_op, resolve_magnitude

_HELD_BYTES = 12 << 20  # of decoded images that wait to be finished: more would leave the cache


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
    if resolution < 8 or resolution % 8:
        raise ValueError(f"resolution must be a positive multiple of 8; got {resolution}. Try 256.")
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
        pixels = _decoded(data, view)
        decoded.append((pixels, view))
        held += 0 if isinstance(pixels, BadImage) else pixels.rgb.nbytes
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


def view_to_json(view: View) -> str:
    return json.dumps(view._asdict())


def view_from_json(text: str) -> View:
    """Read a view back; raises ValueError for anything `view_to_json` could not have written."""
    body: Any = json.loads(text)
    if not isinstance(body, dict) or set(body) != set(View._fields):
        raise ValueError(f"a view must have the fields {', '.join(View._fields)}; got {text!r}.")
    view = View(**body)
    numbers = (*view[:5], view.magnitude)
    if any(type(number) not in (int, float) for number in numbers) or any(number % 1 for number in view[:5]):
        raise ValueError(f"sides and corner of a view must be whole numbers; got {text!r}.")
    side = view.resolution
    inside = 0 <= view.left <= view.width - side and 0 <= view.top <= view.height - side
    if not inside or view.op not in OPS:
        raise ValueError(f"a view must lie in its image and use an operation of {OPS}; got {text!r}.")
    return view


def _decoded(data: bytes, view: View) -> Pixels | BadImage:
    try:
        return decode_pixels(data, short_side=min(view.width, view.height))
    except BadImage as error:
        return error


def _finished(decoded: Sequence[tuple[Pixels | BadImage, View]]) -> Iterator[NDArray[np.uint8] | BadImage]:
    for pixels, view in decoded:
        yield pixels if isinstance(pixels, BadImage) else render_pixels(pixels, view)


def _resize_and_crop(pixels: Pixels, view: View) -> NDArray[np.uint8]:
    rgb, (width, height), divisor = pixels
    bottom, right = view.top + view.resolution, view.left + view.resolution
    if (width, height) != (view.width, view.height):
        scales = view.height * divisor / height, view.width * divisor / width
        rows, columns = _source_end(bottom, scales[0]), _source_end(right, scales[1])
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


def _source_end(end: int, scale: float) -> int:
    """Source pixels needed for the first `end` of a resized side: the bicubic filter reaches 2 further."""
    reach = 2 * max(1.0, 1 / scale)
    return math.ceil(end / scale + reach) + 1


class _Digest(np.random.bit_generator.ISeedSequence):
    """Seeds a generator with hash bytes as they are; SeedSequence would spend 10 µs on mixing them again."""

    def __init__(self, digest: bytes) -> None:
        self.digest = digest

    def generate_state(self, n_words: int, dtype: DTypeLike = np.uint32) -> NDArray[Any]:
        return np.frombuffer(self.digest, dtype=dtype, count=n_words)
