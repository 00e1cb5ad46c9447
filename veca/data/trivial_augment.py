"""The 14 operations of TrivialAugmentWide on uint8 pixels (method, section 4).

Definitions are Pillow's (ImageOps, ImageEnhance, affine transforms with nearest interpolation and black
fill), which are those of torchvision on Pillow images. OpenCV does the work, several times faster: its
results are equal or, where a sum of products is rounded, one grey level off; of a rotated or sheared
picture, pixels on the very edge between two others may come from either.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

NUM_BINS = 31
MIN_BITS = 2
LARGEST = {  # magnitude of the operations that have a sign
    "ShearX": 0.99,  # slope
    "ShearY": 0.99,
    "TranslateX": 32.0,  # pixels, at every resolution
    "TranslateY": 32.0,
    "Rotate": 135.0,  # degrees
    "Brightness": 0.99,  # factor 1 ± this
    "Color": 0.99,
    "Contrast": 0.99,
    "Sharpness": 0.99,
}

Bytes = NDArray[Any]  # uint8, which OpenCV's annotations do not promise

# OpenCV's pool of threads does not survive a fork: a loader's worker would wait for it for ever. And one
# image is no work for several threads.
cv2.setNumThreads(0)

_LUMA = (0.299, 0.587, 0.114)  # ITU-R 601
_FLOOR = -0.499  # added before OpenCV rounds to the nearest: Pillow cuts off, and keeps whole numbers


def resolve_magnitude(op: str, *, step: int, negative: bool) -> float:
    """The value of bin `step` of 0…30; `negative` counts for the operations that have a sign."""
    share = step / (NUM_BINS - 1)
    if op == "Posterize":
        return float(8 - round(share * (8 - MIN_BITS)))
    if op == "Solarize":
        return 255.0 * (1 - share)
    size = LARGEST.get(op, 0.0) * share
    if op.startswith("Translate"):
        size = float(int(size))  # whole pixels
    return -size if negative and size else size


def apply_op(pixels: Bytes, *, op: str, magnitude: float) -> Bytes:
    """Pixels (R, R, 3), whose rows may lie apart, to new ones; Identity gives them back as they are."""
    return _OPS[op](pixels, magnitude)


def _translate_y(pixels: Bytes, shift: float) -> Bytes:
    moved = np.zeros_like(pixels)
    distance = min(abs(int(shift)), len(pixels))
    kept = len(pixels) - distance
    if shift < 0:
        moved[:kept] = pixels[distance:]
    else:
        moved[distance:] = pixels[:kept]
    return moved


def _rotate(pixels: Bytes, degrees: float) -> Bytes:
    """Anticlockwise around the centre."""
    centre = len(pixels) / 2
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    shifts = centre * (1 - cos + sin), centre * (1 - sin - cos)
    return _affine(pixels, (cos, -sin, shifts[0]), (sin, cos, shifts[1]))


def _affine(pixels: Bytes, x_row: Sequence[float], y_row: Sequence[float]) -> Bytes:
    """The rows map output to source positions, in continuous coordinates: (0, 0) is the top-left corner."""
    # OpenCV counts from the centre of the first pixel.
    rows = [(a, b, c + (a + b - 1) / 2) for a, b, c in (x_row, y_row)]
    flags = cv2.INTER_NEAREST | cv2.WARP_INVERSE_MAP
    return cv2.warpAffine(pixels, np.array(rows), pixels.shape[1::-1], flags=flags)


def _contrast(pixels: Bytes, magnitude: float) -> Bytes:
    mean = cv2.mean(cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY))[0]
    return _scale(pixels, 1 + magnitude, around=int(mean + 0.5))


def _scale(pixels: Bytes, factor: float, *, around: int) -> Bytes:
    return cv2.addWeighted(pixels, factor, pixels, 0, (1 - factor) * around + _FLOOR)


def _color(pixels: Bytes, magnitude: float) -> Bytes:
    """From gray to colour and beyond, as one matrix."""
    matrix = np.empty((3, 4))
    matrix[:, :3] = (1 + magnitude) * np.eye(3) - magnitude * np.array(_LUMA)
    matrix[:, 3] = _FLOOR
    return cv2.transform(pixels, matrix)


def _sharpness(pixels: Bytes, magnitude: float) -> Bytes:
    """From Pillow's SMOOTH, (3×3 sum + 4 × centre) / 13, to the picture and beyond; the border stays."""
    blur, centre = 9 / 13, 4 / 13
    share = 1 + magnitude - centre * magnitude
    sharp = cv2.addWeighted(pixels, share, cv2.blur(pixels, (3, 3)), -blur * magnitude, _FLOOR)
    for edge in (np.s_[0], np.s_[-1], np.s_[:, 0], np.s_[:, -1]):
        sharp[edge] = pixels[edge]
    return sharp


def _auto_contrast(pixels: Bytes, _: float) -> Bytes:
    """Stretch each channel to 0…255."""
    rows = pixels.reshape(len(pixels), -1)
    low = rows.min(axis=0).reshape(-1, 3).min(axis=0).tolist()
    high = rows.max(axis=0).reshape(-1, 3).max(axis=0).tolist()
    matrix = np.zeros((3, 4))
    for channel, (darkest, brightest) in enumerate(zip(low, high, strict=True)):
        stretch = brightest > darkest
        scale = 255 / (brightest - darkest) if stretch else 1.0
        matrix[channel, channel] = scale
        matrix[channel, 3] = _FLOOR - (darkest * scale if stretch else 0.0)
    return cv2.transform(pixels, matrix)


def _equalize(pixels: Bytes, _: float) -> Bytes:
    """Even out each channel's histogram, by Pillow's integer rule."""
    planes = cv2.split(pixels)
    counts = np.stack([cv2.calcHist([plane], [0], None, [256], [0, 256]).ravel() for plane in planes])
    counts = counts.astype(np.int32)
    darker = counts.cumsum(axis=1) - counts  # pixels below each level
    total = pixels.shape[0] * pixels.shape[1]
    step = (darker * (darker < total)).max(axis=1, keepdims=True) // 255  # darker than the brightest
    tables = np.minimum((darker + step // 2) // np.maximum(step, 1), 255).astype(np.uint8)
    evened = [
        cv2.LUT(plane, table) if wide else plane
        for plane, table, wide in zip(planes, tables, step.ravel().tolist(), strict=True)
    ]
    return cv2.merge(evened)


_OPS: dict[str, Callable[[Bytes, float], Bytes]] = {  # in the order in which a draw numbers them
    "Identity": lambda pixels, _: pixels,
    "ShearX": lambda pixels, slope: _affine(pixels, (1, slope, 0), (0, 1, 0)),
    "ShearY": lambda pixels, slope: _affine(pixels, (1, 0, 0), (slope, 1, 0)),
    "TranslateX": lambda pixels, shift: np.ascontiguousarray(
        _translate_y(pixels.swapaxes(0, 1), shift).swapaxes(0, 1)
    ),
    "TranslateY": _translate_y,
    "Rotate": _rotate,
    "Brightness": lambda pixels, magnitude: _scale(pixels, 1 + magnitude, around=0),
    "Color": _color,
    "Contrast": _contrast,
    "Sharpness": _sharpness,
    "Posterize": lambda pixels, bits: pixels & np.uint8(256 - (1 << (8 - int(bits)))),
    # 255 − x is x with all bits flipped, and 0 − 1 wraps to all bits. np.where is several times slower.
    "Solarize": lambda pixels, threshold: (
        pixels ^ np.negative((pixels >= math.ceil(threshold)).view(np.uint8))
    ),
    "AutoContrast": _auto_contrast,
    "Equalize": _equalize,
}
OPS = tuple(_OPS)
