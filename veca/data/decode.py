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
from typing import NamedTuple

import numpy as np
import simplejpeg
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")
MAX_PIXELS = 89_478_485  # Pillow's own limit, above which it warns of a decompression bomb
MAX_ASPECT = 32  # bounds the memory of a resize whose short side is fixed

_JPEG_START = b"\xff\xd8\xff"
# Markers in a JPEG: of a segment that may be EXIF; of the compressed data; of frames that are baseline,
# extended or progressive, Huffman-coded.
_APP1, _SCAN, _ORDINARY_FRAMES = 0xE1, 0xDA, (0xC0, 0xC1, 0xC2)
_ORIENTATION_TAG = 0x0112
_MIRRORED = (2, 3, 6, 7)  # orientations that need a left-right flip, after the swap of axes from 5 on
_UPENDED = (3, 4, 7, 8)  # orientations that need a top-bottom flip


class BadImage(ValueError):
    """An image that cannot be used; `reason` is a short slug to count by."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(reason, detail)  # both: what travels from a worker is made of these
        self.reason = reason

    def __str__(self) -> str:
        return ": ".join(self.args)


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
        available = min(header.width, header.height)
        # Other fractions gained nothing when timed.
        divisor = max(each for each in (1, 2, 4, 8) if each == 1 or available >= each * short_side)
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
    return _JpegHeader(width, height, _scan_jpeg(data)[1])


def _walk_jpeg(data: bytes) -> _JpegHeader | None:
    """What `_jpeg_header` finds in an ordinary file, without setting up a decoder."""
    if data[:3] != _JPEG_START:
        return None
    frame, orientation = _scan_jpeg(data)
    if not frame or frame + 6 > len(data):
        return None
    bits, height, width, channels = struct.unpack_from(">BHHB", data, frame)
    if bits != 8 or not height or not width or channels not in (1, 3):
        return None
    _check_size(width, height)
    return _JpegHeader(width, height, orientation)


def _scan_jpeg(data: bytes) -> tuple[int, int]:
    """Where an ordinary frame is described (0: nowhere), and the orientation that EXIF tells.

    Pillow would find it too, at a tenth of the cost of a decode.
    """
    frame, orientation, position = 0, 0, 2
    while position + 4 <= len(data) and data[position] == 0xFF and data[position + 1] != _SCAN:
        marker, start = data[position + 1], position + 4
        position += 2 + int.from_bytes(data[position + 2 : start], "big")
        if marker in _ORDINARY_FRAMES:
            frame = start
        elif marker == _APP1 and not orientation:
            orientation = _exif_orientation(data[start:position])
    return frame, orientation or 1


def _exif_orientation(segment: bytes) -> int:
    """The orientation in an EXIF segment's first directory (1 if it makes no sense); 0 if it is no EXIF."""
    if segment[:6] != b"Exif\0\0":
        return 0
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
