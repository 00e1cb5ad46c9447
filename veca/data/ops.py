"""The 14 operations of TrivialAugmentWide on uint8 pixels (method, section 4).

Pixels come in as words, (R, R) with the bytes RGBX in each, and go out as planes, (3, R, R): a geometric
operation moves whole pixels, so it runs before the split; a colour operation works on bytes, so it runs
after it, where numpy and Pillow go through contiguous memory.

Definitions are Pillow's (ImageOps, ImageEnhance, affine transforms with nearest interpolation and black
fill), which are those of torchvision on Pillow images. Where numpy does the work, the result is the same.
"""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from PIL import Image

NUM_BINS = 31
MAX_SHEAR = 0.99
MAX_TRANSLATE = 32.0  # pixels, at every resolution
MAX_ROTATE = 135.0  # degrees
MAX_ENHANCE = 0.99  # factor 1 ± this
MIN_BITS = 2

OPS = (
    "Identity",
    "ShearX",
    "ShearY",
    "TranslateX",
    "TranslateY",
    "Rotate",
    "Brightness",
    "Color",
    "Contrast",
    "Sharpness",
    "Posterize",
    "Solarize",
    "AutoContrast",
    "Equalize",
)

Bytes = NDArray[np.uint8]
Words = NDArray[np.uint32]
WORD = np.dtype("<u4")  # red is the low byte, whatever the machine

_LEVELS = np.arange(256, dtype=np.uint8)


def resolve_magnitude(op: str, *, step: int, negative: bool) -> float:
    """The value of bin `step` of 0…30; `negative` counts for the operations that have a sign."""
    share = step / (NUM_BINS - 1)
    if op == "Posterize":
        return float(8 - round(share * (8 - MIN_BITS)))
    if op == "Solarize":
        return 255.0 * (1 - share)
    if op.startswith("Translate"):
        size = float(int(MAX_TRANSLATE * share))  # whole pixels
    elif op.startswith("Shear"):
        size = MAX_SHEAR * share
    elif op == "Rotate":
        size = MAX_ROTATE * share
    elif op in ("Brightness", "Color", "Contrast", "Sharpness"):
        size = MAX_ENHANCE * share
    else:
        return 0.0
    return -size if negative and size else size


def apply_op(words: Words, *, op: str, magnitude: float) -> Bytes:
    """Words (R, R), any strides → planes (3, R, R), contiguous and newly made."""
    if op in _GEOMETRIC:
        words = _GEOMETRIC[op](words, magnitude)
    planes = _split(words)
    return _COLOUR[op](planes, magnitude) if op in _COLOUR else planes


def _split(words: Words) -> Bytes:
    pixels = words[..., None].view(np.uint8)  # (R, R, 4)
    return np.ascontiguousarray(pixels.transpose(2, 0, 1)[:3])


# Geometric operations return new words.


def _shear_x(words: Words, slope: float) -> Words:
    return _affine(words, (1, slope, 0, 0, 1, 0))


def _shear_y(words: Words, slope: float) -> Words:
    return _affine(words, (1, 0, 0, slope, 1, 0))


def _translate_x(words: Words, shift: float) -> Words:
    return _translate_y(words.T, shift).T


def _translate_y(words: Words, shift: float) -> Words:
    moved = np.zeros_like(words)
    distance = min(abs(int(shift)), len(words))
    kept = len(words) - distance
    if shift < 0:
        moved[:kept] = words[distance:]
    else:
        moved[distance:] = words[:kept]
    return moved


def _rotate(words: Words, degrees: float) -> Words:
    return _to_words(_word_image(words).rotate(degrees, Image.Resampling.NEAREST))


def _affine(words: Words, matrix: tuple[float, ...]) -> Words:
    """`matrix` maps output to source positions, in continuous coordinates: (0, 0) is the top-left corner."""
    image = _word_image(words)
    return _to_words(image.transform(image.size, Image.Transform.AFFINE, matrix, Image.Resampling.NEAREST))


def _word_image(words: Words) -> Image.Image:
    """A Pillow image on the memory of the words (on a copy, where they are not contiguous)."""
    return Image.frombuffer("RGBX", words.shape[::-1], np.ascontiguousarray(words), "raw", "RGBX", 0, 1)


def _to_words(image: Image.Image) -> Words:
    return np.asarray(image).view(WORD)[..., 0]


# Colour operations return planes, new ones or those they were given.


def _brightness(planes: Bytes, magnitude: float) -> Bytes:
    return _look_up(planes, _blend(np.zeros_like(_LEVELS), _LEVELS, magnitude))


def _contrast(planes: Bytes, magnitude: float) -> Bytes:
    luma = _luma(planes)
    mean = int(luma.sum(dtype=np.uint32)) / luma.size
    return _look_up(planes, _blend(np.full_like(_LEVELS, int(mean + 0.5)), _LEVELS, magnitude))


def _color(planes: Bytes, magnitude: float) -> Bytes:
    gray = _luma(planes).astype(np.uint8)
    return _blend(np.stack((gray, gray, gray)), planes, magnitude)


def _sharpness(planes: Bytes, magnitude: float) -> Bytes:
    return _blend(_smooth(planes), planes, magnitude)


def _blend(degenerate: Bytes, original: Bytes, magnitude: float) -> Bytes:
    """Go 1 + magnitude times the way from a degenerate image to the original: Pillow's enhancement."""
    blended = Image.blend(_plane_image(degenerate), _plane_image(original), 1 + magnitude)
    return np.array(blended).reshape(original.shape)


def _luma(planes: Bytes) -> NDArray[np.uint32]:
    """ITU-R 601 in 16-bit fixed point, rounded: Pillow's conversion to L."""
    red, green, blue = planes
    luma: NDArray[np.uint32] = red * np.uint32(19595)
    luma += green * np.uint32(38470)
    luma += blue * np.uint32(7471)
    luma += np.uint32(0x8000)
    luma >>= np.uint32(16)
    return luma


def _smooth(planes: Bytes) -> Bytes:
    """Pillow's SMOOTH: (3×3 sum + 4 × centre) / 13, rounded; the border stays as it is.

    On flat memory, where each step is one pass; sums that wrap around a row's end belong to the border.
    """
    row = planes.shape[-1]
    flat = planes.reshape(-1).astype(np.uint16)
    rows = flat[: -2 * row] + flat[row:-row]
    rows += flat[2 * row :]
    total = flat << 2
    total += 6  # half of 13: rounds the division
    inner = total[row + 1 : -row - 1]
    for start in range(3):
        inner += rows[start : start + len(inner)]
    total //= 13
    smooth = planes.copy()
    smooth[:, 1:-1, 1:-1] = total.reshape(planes.shape)[:, 1:-1, 1:-1]
    return smooth


def _posterize(planes: Bytes, bits: float) -> Bytes:
    planes &= np.uint8(256 - (1 << (8 - int(bits))))
    return planes


def _solarize(planes: Bytes, threshold: float) -> Bytes:
    # 255 − x is x with all bits flipped, and 0 − 1 wraps to all bits. np.where is several times slower.
    planes ^= np.negative((planes >= math.ceil(threshold)).view(np.uint8))
    return planes


def _auto_contrast(planes: Bytes, _: float) -> Bytes:
    """Stretch each channel to 0…255."""
    for plane in planes:
        low, high = int(plane.min()), int(plane.max())
        if low < high and (low, high) != (0, 255):
            scale = 255.0 / (high - low)
            plane[:] = _look_up(plane, np.clip(_LEVELS * scale - low * scale, 0, 255).astype(np.uint8))
    return planes


def _equalize(planes: Bytes, _: float) -> Bytes:
    """Even out each channel's histogram, by Pillow's integer rule."""
    for plane in planes:
        counts = np.array(_plane_image(plane).histogram())
        step = (plane.size - int(counts[plane.max()])) // 255
        if step:
            darker = np.cumsum(counts) - counts
            plane[:] = _look_up(plane, np.minimum((darker + step // 2) // step, 255).astype(np.uint8))
    return planes


def _look_up(planes: Bytes, table: Bytes) -> Bytes:
    """table[planes]; translate is three times faster than numpy's indexing, and a bytearray is writable."""
    mapped = bytearray(planes).translate(table.tobytes())
    return np.frombuffer(mapped, dtype=np.uint8).reshape(planes.shape)


def _plane_image(planes: Bytes) -> Image.Image:
    """A Pillow image on the memory of one plane, or of three, one below the other."""
    width = planes.shape[-1]
    return Image.frombuffer("L", (width, planes.size // width), planes, "raw", "L", 0, 1)


_GEOMETRIC: dict[str, Callable[[Words, float], Words]] = {
    "ShearX": _shear_x,
    "ShearY": _shear_y,
    "TranslateX": _translate_x,
    "TranslateY": _translate_y,
    "Rotate": _rotate,
}
_COLOUR: dict[str, Callable[[Bytes, float], Bytes]] = {
    "Brightness": _brightness,
    "Color": _color,
    "Contrast": _contrast,
    "Sharpness": _sharpness,
    "Posterize": _posterize,
    "Solarize": _solarize,
    "AutoContrast": _auto_contrast,
    "Equalize": _equalize,
}
