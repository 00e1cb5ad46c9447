"""Encoded image → pixels as displayed, or a reason why not.

JPEG goes through libjpeg-turbo, where a truncated or damaged file is an error and not a grey half;
everything else, and CMYK JPEG, goes through Pillow. Pixels come back upright: EXIF orientation is applied.

* Grayscale, palette and CMYK become RGB; 16-bit samples keep their high byte (scaled, not clipped).
* Transparency is composited on white. The colour under a transparent pixel is arbitrary, so dropping
  alpha would show the model something no viewer ever shows; white is what a page shows.
* Of an animation, the first frame counts.
* Files come from strangers: only the formats of FORMATS are tried (Pillow also knows some that run
  other programs), and the size is checked from the header before a pixel is allocated.
"""

import io
import struct
import warnings
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import simplejpeg
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")
MAX_PIXELS = 89_478_485  # Pillow's own limit, above which it warns of a decompression bomb
MAX_ASPECT = 32  # bounds the memory of a resize whose short side is fixed

_JPEG_START = b"\xff\xd8\xff"
_APP1 = 0xE1  # the JPEG marker of a segment that may be EXIF
_ORDINARY_FRAMES = (0xC0, 0xC1, 0xC2)  # JPEG markers: baseline, extended and progressive, Huffman-coded
_ORIENTATION_TAG = 0x0112
_MIRRORED = (2, 3, 6, 7)  # orientations that need a left-right flip, after the swap of axes from 5 on
_UPENDED = (3, 4, 7, 8)  # orientations that need a top-bottom flip


class BadImage(ValueError):
    """An image that cannot be used; `reason` is a short slug to count by."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason

    def __reduce__(self) -> tuple[type["BadImage"], tuple[str, str]]:
        # The default would call BadImage(message): an error could then not travel from a worker.
        return BadImage, (self.reason, str(self).removeprefix(f"{self.reason}: "))


class Pixels(NamedTuple):
    """An upright image, perhaps decoded at a fraction of its size."""

    rgb: NDArray[np.uint8]  # (H, W, 3)
    size: tuple[int, int]  # (width, height) of the image at full size
    divisor: int = (
        1  # rgb is ⌈size / divisor⌉; where that rounds up, its last row or column is partly padding
    )


class _JpegHeader(NamedTuple):
    width: int  # as stored
    height: int
    orientation: int


def image_size(data: bytes) -> tuple[int, int]:
    """Width and height as displayed, from the header alone."""
    header = _walk_jpeg(data) or _jpeg_header(data)
    if header is not None:
        width, height, orientation = header
    else:
        image = _open(data)
        (width, height), orientation = image.size, _orientation(image)
    return (height, width) if orientation >= 5 else (width, height)


def decode(data: bytes) -> NDArray[np.uint8]:
    """Decode to (H, W, 3) RGB at full size."""
    return decode_pixels(data).rgb


def decode_pixels(data: bytes, *, short_side: int | None = None) -> Pixels:
    """Decode; with `short_side`, a large JPEG is decoded at 1/2, 1/4 or 1/8, never below that short side."""
    header = _jpeg_header(data)
    if header is None:
        image = _open(data)
        try:
            return pixels_from_pil(image)
        except BadImage:
            raise
        except Exception as error:  # damaged data raises nearly anything inside a Pillow plugin
            raise _from_pillow(error) from None
    divisor = 1
    if short_side is not None and header.orientation == 1:  # turning could move the padding to the other end
        divisor = _divisor(min(header.width, header.height), short_side)
    rgb = _upright(_decode_jpeg(data, header, divisor), header.orientation)
    turned = header.orientation >= 5
    size = (header.height, header.width) if turned else (header.width, header.height)
    return Pixels(rgb, size, divisor)


def pixels_from_pil(image: Image.Image) -> Pixels:
    """Convert a Pillow image of any mode; the image itself stays as it is."""
    _check_size(*image.size)
    orientation = _orientation(image)
    if image.mode.startswith("I;16"):
        # Pillow would clip at 255. The high byte is also what it keeps of 16-bit colour.
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    elif image.mode in ("I", "F", "LAB"):
        raise BadImage("unsupported", f"mode {image.mode!r} has no agreed conversion; save it as 8-bit RGB")
    elif image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    rgb = _upright(np.array(image.convert("RGB")), orientation)
    return Pixels(rgb, (rgb.shape[1], rgb.shape[0]))


def _decode_jpeg(data: bytes, header: _JpegHeader, divisor: int) -> NDArray[np.uint8]:
    try:
        rgb: NDArray[np.uint8] = simplejpeg.decode_jpeg(
            data,
            "RGB",
            min_height=-(-header.height // divisor),
            min_width=-(-header.width // divisor),
            min_factor=divisor,
        )
    except ValueError as error:
        reason = "truncated" if "Premature end" in str(error) else "damaged"
        raise BadImage(reason, str(error)) from None
    return rgb


def _divisor(available: int, needed: int) -> int:
    """The largest of 1, 2, 4, 8 that keeps the short side; other fractions gained nothing when timed."""
    return max(divisor for divisor in (1, 2, 4, 8) if divisor == 1 or available >= divisor * needed)


def _jpeg_header(data: bytes) -> _JpegHeader | None:
    """None where Pillow has to look: no JPEG, CMYK, or a header libjpeg-turbo does not understand."""
    if data[:3] != _JPEG_START:
        return None
    try:
        height, width, colorspace, _ = simplejpeg.decode_jpeg_header(data)
    except ValueError:
        return None
    if colorspace in ("CMYK", "YCCK"):
        return None
    _check_size(width, height)
    return _JpegHeader(width, height, _jpeg_orientation(data))


def _walk_jpeg(data: bytes) -> _JpegHeader | None:
    """What `_jpeg_header` finds in an ordinary file, without setting up a decoder."""
    if data[:3] != _JPEG_START:
        return None
    frame, orientation = 0, None
    for marker, start, stop in _jpeg_segments(data):
        if marker in _ORDINARY_FRAMES:
            frame = start
        elif marker == _APP1 and orientation is None:
            orientation = _exif_orientation(data[start:stop])
    if not frame or frame + 6 > len(data):
        return None
    bits, height, width, channels = struct.unpack_from(">BHHB", data, frame)
    if bits != 8 or not height or not width or channels not in (1, 3):
        return None
    _check_size(width, height)
    return _JpegHeader(width, height, orientation or 1)


def _jpeg_orientation(data: bytes) -> int:
    """Pillow would find it too, at a tenth of the cost of a decode."""
    found = (
        _exif_orientation(data[start:stop]) for marker, start, stop in _jpeg_segments(data) if marker == _APP1
    )
    return next((orientation for orientation in found if orientation), 1)


def _jpeg_segments(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Marker, start and stop of each segment before the compressed data."""
    position = 2
    while position + 4 <= len(data) and data[position] == 0xFF:
        marker = data[position + 1]
        if marker == 0xDA:
            return
        stop = position + 2 + int.from_bytes(data[position + 2 : position + 4], "big")
        yield marker, position + 4, stop
        position = stop


def _exif_orientation(segment: bytes) -> int | None:
    """The orientation tag of an EXIF segment's first directory; 1 (upright) where it makes no sense."""
    if segment[:6] != b"Exif\0\0":
        return None
    tiff = segment[6:]
    order = {b"II": "<", b"MM": ">"}.get(tiff[:2])
    if order is None:
        return 1
    try:
        (start,) = struct.unpack_from(f"{order}I", tiff, 4)
        (count,) = struct.unpack_from(f"{order}H", tiff, start)
        for entry in range(count):
            tag, kind, _, value = struct.unpack_from(f"{order}HHIH", tiff, start + 2 + 12 * entry)
            if tag == _ORIENTATION_TAG and kind == 3:  # SHORT
                return value if 1 <= value <= 8 else 1
    except struct.error:
        pass
    return 1


def _open(data: bytes) -> Image.Image:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of odd metadata; the size is checked below
            image = Image.open(io.BytesIO(data), formats=FORMATS)
    except Image.DecompressionBombError as error:
        raise BadImage("too-large", str(error)) from None
    except UnidentifiedImageError:
        known = ", ".join(FORMATS)
        raise BadImage("not-an-image", f"{len(data)} bytes that are none of {known}") from None
    except Exception as error:  # damaged data raises nearly anything inside a Pillow plugin
        raise _from_pillow(error) from None
    _check_size(*image.size)
    return image


def _from_pillow(error: Exception) -> BadImage:
    return BadImage("truncated" if "truncated" in str(error) else "damaged", f"{error!r}")


def _check_size(width: int, height: int) -> None:
    short, long = sorted((width, height))
    if short < 1:
        raise BadImage("damaged", f"its header says {width}×{height} pixels")
    if width * height > MAX_PIXELS:
        raise BadImage("too-large", f"{width}×{height} pixels; the limit is {MAX_PIXELS} in all")
    if long > MAX_ASPECT * short:
        raise BadImage("too-narrow", f"{width}×{height} pixels; one side may be {MAX_ASPECT} times the other")


def _orientation(image: Image.Image) -> int:
    """How to turn what Pillow gives."""
    if image.format == "TIFF":
        return 1  # Pillow turns it itself: in TIFF the tag is part of the format
    if image.format == "PNG" and "exif" not in image.info:
        return 1  # Pillow would decode the whole file to see whether EXIF follows the pixels
    try:
        value = image.getexif().get(_ORIENTATION_TAG, 1)
    except Exception:  # unreadable metadata says nothing about the pixels
        return 1
    return value if value in range(1, 9) else 1


def _upright(pixels: NDArray[np.uint8], orientation: int) -> NDArray[np.uint8]:
    if orientation >= 5:
        pixels = pixels.swapaxes(0, 1)
    if orientation in _MIRRORED:
        pixels = pixels[:, ::-1]
    if orientation in _UPENDED:
        pixels = pixels[::-1]
    return np.ascontiguousarray(pixels)
