"""Each operation against a slow reading of its definition, or against Pillow where Pillow defines it."""

import math

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageOps

from veca.data.trivial_augment import NUM_BINS, OPS, apply_op, resolve_magnitude

SIDE = 40
STEPS = (0, 1, 7, 15, 20, 30)


def picture(kind, side=SIDE):
    """(side, side, 3): noise, a low-contrast photo-like ramp, or a flat colour."""
    rng = np.random.default_rng(side)
    if kind == "noise":
        return rng.integers(0, 256, (side, side, 3), dtype=np.uint8)
    if kind == "flat":
        return np.full((side, side, 3), (12, 200, 90), dtype=np.uint8)
    x, y = np.meshgrid(np.linspace(0, 1, side), np.linspace(0, 1, side))
    ramp = np.stack([40 + 90 * x, 60 + 100 * y, 50 + 120 * x * y], axis=-1)
    return (ramp + rng.integers(0, 20, ramp.shape)).astype(np.uint8)


def apply(image, op, magnitude):
    before = image.copy()
    pixels = apply_op(image, op=op, magnitude=magnitude)
    assert np.array_equal(image, before), "the source was changed"
    assert pixels.flags.c_contiguous
    assert pixels.flags.writeable
    return pixels


def magnitudes(op):
    return sorted({resolve_magnitude(op, step=s, negative=n) for s in STEPS for n in (False, True)})


def test_there_are_14_operations():
    assert len(set(OPS)) == len(OPS) == 14


@pytest.mark.parametrize(
    ("op", "first", "last", "signed"),
    [
        ("Identity", 0, 0, False),
        ("ShearX", 0, 0.99, True),
        ("ShearY", 0, 0.99, True),
        ("TranslateX", 0, 32, True),
        ("TranslateY", 0, 32, True),
        ("Rotate", 0, 135, True),
        ("Brightness", 0, 0.99, True),
        ("Color", 0, 0.99, True),
        ("Contrast", 0, 0.99, True),
        ("Sharpness", 0, 0.99, True),
        ("Posterize", 8, 2, False),
        ("Solarize", 255, 0, False),
        ("AutoContrast", 0, 0, False),
        ("Equalize", 0, 0, False),
    ],
)
def test_ranges(op, first, last, signed):
    values = [resolve_magnitude(op, step=step, negative=False) for step in range(NUM_BINS)]
    assert values[0] == first
    assert values[-1] == pytest.approx(last)
    steps = np.diff(values)
    assert (steps >= 0).all() or (steps <= 0).all()
    if op not in ("Posterize", "TranslateX", "TranslateY"):
        assert np.allclose(steps, (last - first) / 30)
    mirrored = [resolve_magnitude(op, step=step, negative=True) for step in range(NUM_BINS)]
    assert mirrored == ([-value for value in values] if signed else values)


def test_posterize_and_translate_bins_are_whole_numbers():
    bits = [resolve_magnitude("Posterize", step=step, negative=False) for step in range(NUM_BINS)]
    assert bits == [8 - round(step / 5) for step in range(NUM_BINS)]
    shifts = [resolve_magnitude("TranslateX", step=step, negative=False) for step in range(NUM_BINS)]
    assert shifts == [step * 32 // 30 for step in range(NUM_BINS)]


def gather(image, source):
    """Nearest interpolation by the book: `source` maps a pixel centre to where its colour comes from."""
    result = np.zeros_like(image)
    near_edge = np.zeros(image.shape[:2], dtype=bool)
    for row in range(image.shape[0]):
        for column in range(image.shape[1]):
            x, y = source(column + 0.5, row + 0.5)
            near_edge[row, column] = min(abs(x - round(x)), abs(y - round(y))) < 0.01
            if 0 <= x < image.shape[1] and 0 <= y < image.shape[0]:
                result[row, column] = image[math.floor(y), math.floor(x)]
    return result, near_edge


def source_of(op, m):
    centre = SIDE / 2
    cos, sin = math.cos(math.radians(m)), math.sin(math.radians(m))
    return {
        "ShearX": lambda x, y: (x + m * y, y),
        "ShearY": lambda x, y: (x, y + m * x),
        "TranslateX": lambda x, y: (x - m, y),
        "TranslateY": lambda x, y: (x, y - m),
        # A positive angle turns the picture anticlockwise (y points down).
        "Rotate": lambda x, y: (
            centre + cos * (x - centre) - sin * (y - centre),
            centre + sin * (x - centre) + cos * (y - centre),
        ),
    }[op]


@pytest.mark.parametrize("op", ["ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate"])
def test_geometry_follows_its_definition(op):
    image = picture("noise")
    for magnitude in magnitudes(op):
        expected, near_edge = gather(image, source_of(op, magnitude))
        wrong = (apply(image, op, magnitude) != expected).any(axis=-1)
        # OpenCV steps in fixed point: on the very edge between two pixels either may win.
        assert not (wrong & ~near_edge).any(), (op, magnitude)
        assert wrong.mean() < 0.05


@pytest.mark.parametrize("op", ["ShearX", "ShearY"])
def test_shear_keeps_the_top_left_corner(op):
    image = picture("noise")
    for magnitude in magnitudes(op):
        assert (apply(image, op, magnitude)[0, 0] == image[0, 0]).all()


def test_translation_is_32_px_at_every_size():
    for side in (64, 96):
        image = picture("noise", side)
        moved = apply(image, "TranslateX", resolve_magnitude("TranslateX", step=30, negative=False))
        assert (moved[:, :32] == 0).all()
        assert np.array_equal(moved[:, 32:], image[:, :-32])


def test_translation_by_more_than_the_image_is_black():
    assert not apply(picture("noise", 16), "TranslateY", 32.0).any()


PILLOW = {
    "Identity": lambda image, m: image,
    "Brightness": lambda image, m: ImageEnhance.Brightness(image).enhance(1 + m),
    "Color": lambda image, m: ImageEnhance.Color(image).enhance(1 + m),
    "Contrast": lambda image, m: ImageEnhance.Contrast(image).enhance(1 + m),
    "Sharpness": lambda image, m: ImageEnhance.Sharpness(image).enhance(1 + m),
    "Posterize": lambda image, m: ImageOps.posterize(image, int(m)),
    "Solarize": lambda image, m: ImageOps.solarize(image, m),
    "AutoContrast": lambda image, m: ImageOps.autocontrast(image),
    "Equalize": lambda image, m: ImageOps.equalize(image),
}


ROUNDED = {"Brightness", "Color", "Contrast", "Sharpness", "AutoContrast"}  # sums of products


@pytest.mark.parametrize("kind", ["noise", "ramp", "flat"])
@pytest.mark.parametrize("op", sorted(PILLOW))
def test_colour_equals_pillow(op, kind):
    image = picture(kind)
    for magnitude in magnitudes(op):
        expected = np.asarray(PILLOW[op](Image.fromarray(image), magnitude)).astype(int)
        difference = apply(image, op, magnitude) - expected
        assert np.abs(difference).max() <= (1 if op in ROUNDED else 0), (op, magnitude)
        if kind == "noise":  # cut off as Pillow does: rounding would add half a level
            assert abs(difference.mean()) < 0.2, (op, magnitude)


@pytest.mark.parametrize("op", sorted(ROUNDED - {"AutoContrast"}))
def test_magnitude_zero_changes_nothing(op):
    image = picture("noise")
    assert np.array_equal(apply(image, op, 0.0), image)


def test_solarize_and_posterize_by_definition():
    image = picture("noise")
    for threshold in magnitudes("Solarize"):
        expected = [255 - value if value >= threshold else value for value in image.ravel().tolist()]
        assert apply(image, "Solarize", threshold).ravel().tolist() == expected
    for bits in magnitudes("Posterize"):
        width = 2 ** (8 - int(bits))
        expected = [value // width * width for value in image.ravel().tolist()]
        assert apply(image, "Posterize", bits).ravel().tolist() == expected


def test_equalize_of_a_few_bright_pixels():
    # Pillow's table runs past 255 here, and is clipped.
    image = np.zeros((20, 20, 3), dtype=np.uint8)
    image[:] = np.arange(400).reshape(20, 20, 1) % 256
    expected = np.asarray(ImageOps.equalize(Image.fromarray(image)))
    assert np.array_equal(apply(image, "Equalize", 0.0), expected)
