"""Decoding: pixels as displayed, whatever the format; a named reason for everything that cannot be used."""

import contextlib
import io
import pickle
import struct
import zlib

import numpy as np
import pytest
from PIL import Image, ImageOps

from veca.data.decode import (
    MAX_PIXELS,
    BadImage,
    _jpeg_header,
    _walk_jpeg,
    decode,
    decode_pixels,
    image_size,
)


def smooth_picture(width=80, height=56):
    """Smooth in both directions and without symmetry, so that JPEG keeps it and any flip shows."""
    x, y = np.meshgrid(np.linspace(0, 1, width), np.linspace(0, 1, height))
    channels = [200 * x + 20, 200 * y + 20, 120 * x * y + 60]
    return Image.fromarray(np.stack(channels, axis=-1).astype(np.uint8))


def encode(image, kind="PNG", **options):
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def difference(a, b):
    return np.abs(a.astype(int) - np.asarray(b).astype(int))


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(kind, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encode(smooth_picture(), kind, exif=exif)
    expected = ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB")
    assert image_size(data) == expected.size
    pixels = decode(data)
    assert pixels.shape == (expected.height, expected.width, 3)
    assert difference(pixels, expected).max() <= 2


@pytest.mark.parametrize("order", ["<", ">"])
def test_jpeg_orientation_in_both_byte_orders(order):
    tiff = {"<": b"II", ">": b"MM"}[order] + struct.pack(f"{order}HI", 42, 8)
    tiff += struct.pack(f"{order}H", 2)
    tiff += struct.pack(f"{order}HHIHH", 0x0100, 3, 1, 7, 0) + struct.pack(
        f"{order}HHIHH", 0x0112, 3, 1, 6, 0
    )
    data = encode(smooth_picture(), "JPEG", exif=b"Exif\0\0" + tiff)
    assert image_size(data) == (56, 80)


@pytest.mark.parametrize(
    "exif", [b"Exif\0\0", b"Exif\0\0MM\0*\xff\xff\xff\xff", b"Exif\0\0II*\0\x08\0\0\0\xff\xff\x12\x01"]
)
def test_senseless_exif_means_upright(exif):
    assert image_size(encode(smooth_picture(), "JPEG", exif=exif)) == (80, 56)


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_grayscale(kind):
    image = smooth_picture().convert("L")
    pixels = decode(encode(image, kind))
    assert difference(pixels, np.stack([image] * 3, axis=-1)).max() <= 2


def test_cmyk_jpeg():
    image = smooth_picture()
    assert difference(decode(encode(image.convert("CMYK"), "JPEG", quality=95)), image).mean() < 2


def test_sixteen_bits_are_scaled_not_clipped():
    ramp = np.linspace(0, 65535, 80 * 56).astype(np.uint16).reshape(56, 80)
    pixels = decode(encode(Image.fromarray(ramp)))
    assert np.array_equal(pixels[..., 0], ramp >> 8)
    assert np.array_equal(pixels[..., 0], pixels[..., 2])


def test_sixteen_bit_colour():
    ramp = np.linspace(0, 65535, 4 * 3 * 3).astype(">u2").reshape(3, 4, 3)
    rows = b"".join(b"\0" + row.tobytes() for row in ramp)
    data = png_of(width=4, height=3, bits=16, colour=2, rows=rows)
    assert np.array_equal(decode(data), ramp >> 8)


@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
def test_alpha_is_composited_on_white(kind):
    image = smooth_picture()
    alpha = np.linspace(0, 255, 80 * 56).astype(np.uint8).reshape(56, 80)
    image.putalpha(Image.fromarray(alpha))
    pixels = decode(encode(image, kind, lossless=True, exact=True))
    colour, share = np.asarray(image)[..., :3].astype(float), alpha[..., None] / 255
    assert difference(pixels, colour * share + 255 * (1 - share)).max() <= 1


def test_palette_with_transparency():
    image = smooth_picture().quantize(16)
    opaque = np.asarray(image.convert("RGB"))
    pixels = decode(encode(image, transparency=3))
    hidden = np.asarray(image) == 3
    assert hidden.any()
    assert (pixels[hidden] == 255).all()
    assert np.array_equal(pixels[~hidden], opaque[~hidden])


def test_palette_and_bitmap():
    image = smooth_picture().quantize(16)
    assert np.array_equal(decode(encode(image)), np.asarray(image.convert("RGB")))
    bitmap = smooth_picture().convert("1")
    assert np.array_equal(decode(encode(bitmap)), np.asarray(bitmap.convert("RGB")))


@pytest.mark.parametrize("kind", ["GIF", "WEBP"])
def test_animation_gives_its_first_frame(kind):
    first, second = Image.new("RGB", (40, 30), (250, 0, 0)), Image.new("RGB", (40, 30), (0, 0, 250))
    data = encode(first, kind, save_all=True, append_images=[second], duration=50)
    assert difference(decode(data), first).max() <= 6


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("orientation", [1, 6])
def test_a_walk_over_the_segments_finds_what_libjpeg_finds(mode, progressive, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encode(smooth_picture().convert(mode), "JPEG", progressive=progressive, exif=exif)
    assert _walk_jpeg(data) == _jpeg_header(data)
    assert (_walk_jpeg(data) is None) == (mode == "CMYK")
    for length in range(0, 700, 7):  # cut anywhere: never an exception, never another size
        assert _walk_jpeg(data[:length]) in (None, _walk_jpeg(data))
    assert _walk_jpeg(b"ab" + data[2:]) is None  # no JPEG, whatever follows


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"subsampling": 0}])
def test_jpeg_equals_pillow(options):
    data = encode(smooth_picture(333, 219), "JPEG", **options)
    assert difference(decode(data), Image.open(io.BytesIO(data))).max() <= 1


@pytest.mark.parametrize("size", [(1600, 1200), (1201, 903), (640, 480)])
@pytest.mark.parametrize("short_side", [864, 288, 100, 18])
def test_scaled_decoding_never_falls_below_what_is_needed(size, short_side):
    data = encode(smooth_picture(*size), "JPEG")
    pixels = decode_pixels(data, short_side=short_side)
    full = min(size)
    height, width, _ = pixels.rgb.shape
    assert pixels.size == size
    assert min(width, height) >= min(short_side, full)
    assert any((width, height) == (-(-size[0] // n), -(-size[1] // n)) for n in (1, 2, 4, 8))
    assert min(width, height) < 2 * short_side or full >= 8 * short_side or min(width, height) == full
    small = Image.fromarray(decode(data)).resize((width, height), Image.Resampling.BOX)
    assert difference(pixels.rgb, small).mean() < 1.0


def png_of(*, width, height, bits=8, colour=2, rows=b""):
    def chunk(name, body):
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    header = struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def jpeg_of(width, height):
    """A small JPEG whose header claims another size."""
    data = bytearray(encode(smooth_picture(), "JPEG"))
    start = data.index(b"\xff\xc0")
    data[start + 5 : start + 9] = struct.pack(">HH", height, width)
    return bytes(data)


GOOD_JPEG = encode(smooth_picture(333, 219), "JPEG")
GOOD_PNG = encode(smooth_picture(333, 219))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not-an-image"),
        (b"these are words, not pixels", "not-an-image"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "not-an-image"),
        (GOOD_JPEG[: len(GOOD_JPEG) // 2], "truncated"),
        (GOOD_JPEG[:-2], "truncated"),
        (encode(smooth_picture(333, 219), "JPEG", progressive=True)[:-900], "truncated"),
        (encode(smooth_picture(333, 219).convert("CMYK"), "JPEG")[:-900], "truncated"),
        (GOOD_PNG[: len(GOOD_PNG) // 2], "truncated"),
        (GOOD_JPEG[:2000] + b"\0" * 60 + GOOD_JPEG[2060:], "damaged"),
        (png_of(width=60_000, height=60_000), "too-large"),
        (png_of(width=10_000, height=9_000), "too-large"),
        (jpeg_of(60_000, 60_000), "too-large"),
        (png_of(width=3300, height=100), "too-narrow"),
        (encode(Image.new("F", (40, 30)), "TIFF"), "unsupported"),
    ],
)
def test_bad_input_has_a_reason(data, reason):
    with pytest.raises(BadImage) as caught:
        decode(data)
    assert caught.value.reason == reason
    assert str(caught.value).startswith(f"{reason}: ")


def test_size_of_a_bomb_is_refused_from_the_header():
    assert MAX_PIXELS < 60_000**2
    for data in (png_of(width=60_000, height=60_000), jpeg_of(60_000, 60_000)):
        with pytest.raises(BadImage, match="too-large"):
            image_size(data)


def test_size_needs_only_the_header():
    assert image_size(GOOD_JPEG[: len(GOOD_JPEG) // 2]) == (333, 219)
    assert image_size(GOOD_PNG[: len(GOOD_PNG) // 2]) == (333, 219)


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "GIF", "BMP", "TIFF", "JPEG"])
def test_no_cut_and_no_flipped_byte_escapes_as_another_error(kind):
    data = encode(smooth_picture(48, 40), kind)
    rng = np.random.default_rng(0)
    for _ in range(150):
        damaged = bytearray(data[: int(rng.integers(1, len(data) + 1))])
        damaged[int(rng.integers(len(damaged)))] ^= int(rng.integers(1, 256))
        with contextlib.suppress(BadImage):
            assert decode(bytes(damaged)).ndim == 3


def test_error_travels_between_processes():
    error = BadImage("truncated", "half of it is missing")
    again = pickle.loads(pickle.dumps(error))
    assert (again.reason, str(again)) == (error.reason, str(error))
