"""One image file: whether it can become a sample, and what goes into the shard.

Without re-encoding, the file decides (by content, never by its name):

========================================  ==========================================================
JPEG (also CMYK, gray, multi-picture)     kept byte for byte; the loader turns it upright and into RGB
PNG (also palette, gray, 16-bit, alpha)   kept byte for byte; of an animated PNG readers show the still
WebP                                      kept byte for byte; an animated one gives its first frame, as PNG
GIF, BMP, TIFF, AVIF                      first frame or page, upright RGB, as PNG: no pixel is lost
anything else                             rejected with a reason
========================================  ==========================================================

With re-encoding everything becomes an upright RGB JPEG. Pixels are decoded by the loader's own
`veca.data.decode`, so what it would refuse in training (bombs, unknown formats) is refused here.

A kept file is checked by header and end marker, which needs no decoding. Where the end marker is not
the last thing in the file (some cameras append data; a broken download lacks it), decoding decides.
"""

import io
from typing import NamedTuple

from PIL import Image

from veca.data.decode import BadImage, decode, decode_pixels, image_size
from veca.data.folders import MAX_FILE_BYTES

# Files with these endings are taken from a folder or an archive; some are unreadable here, so that
# such a photo becomes a reject with a reason instead of vanishing.
_NAMES = "jpg jpeg jpe jfif png webp gif bmp tif tiff ppm pgm pbm avif heic heif jp2 jxl"
IMAGE_SUFFIXES = frozenset(f".{name}" for name in _NAMES.split())
DEFAULT_QUALITY = 92

_KEPT = {"JPEG": "jpg", "PNG": "png", "WEBP": "webp"}
_STARTS = (
    (b"\xff\xd8\xff", "JPEG"),
    (b"\x89PNG\r\n\x1a\n", "PNG"),
    (b"GIF8", "GIF"),
    (b"BM", "BMP"),
    (b"II*\0", "TIFF"),
    (b"MM\0*", "TIFF"),
)


class Encoding(NamedTuple):
    """How images are written; without either value files are kept as they are."""

    max_short_side: int | None = None
    quality: int | None = None

    @property
    def keeps_files(self) -> bool:
        return self.max_short_side is None and self.quality is None


class Packed(NamedTuple):
    """What goes into the shard; sizes as displayed."""

    suffix: str
    data: bytes
    width: int
    height: int


def is_image_name(name: str) -> bool:
    dot = name.rfind(".")
    return dot >= 0 and name[dot:].lower() in IMAGE_SUFFIXES


def format_of(data: bytes) -> str:
    """The format the first bytes announce; `other` where they announce none that is kept or converted."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "WEBP"
    if data[4:12] in (b"ftypavif", b"ftypavis"):
        return "AVIF"
    return next((name for start, name in _STARTS if data.startswith(start)), "other")


def probe(data: bytes) -> tuple[int, int]:
    """Width and height as displayed, of a file that is whole; raises BadImage for any other."""
    if not data:
        raise BadImage("empty", "the file has 0 bytes")
    if len(data) > MAX_FILE_BYTES:
        raise BadImage("too-large", f"{len(data):,} bytes; the limit is {MAX_FILE_BYTES:,}")
    size = image_size(data)
    if not _ends_well(data):
        decode(data)
    return size


def pack(data: bytes, encoding: Encoding) -> Packed:
    """Turn a file into what the shard stores; raises BadImage where that cannot be done."""
    width, height = probe(data)
    if not encoding.keeps_files:
        return _reencode(data, encoding)
    suffix = _KEPT.get(format_of(data))
    if suffix is None or _is_animated_webp(data):
        return _packed(Image.fromarray(decode(data)), "png", "PNG")
    return Packed(suffix, data, width, height)


def _ends_well(data: bytes) -> bool:
    name = format_of(data)
    if name == "JPEG":
        return data.endswith(b"\xff\xd9")
    if name == "PNG":
        return data.endswith(b"IEND\xaeB`\x82")
    if name == "WEBP":
        return int.from_bytes(data[4:8], "little") + 8 <= len(data)
    return False  # the others have no mark to look at, and are decoded anyway to be converted


def _is_animated_webp(data: bytes) -> bool:
    return data[:4] == b"RIFF" and data[12:16] == b"VP8X" and bool(data[20] & 0x02)


def _reencode(data: bytes, encoding: Encoding) -> Packed:
    target = encoding.max_short_side
    pixels = decode_pixels(data, short_side=target)
    image = Image.fromarray(pixels.rgb)
    if target is not None and min(pixels.size) > target:
        # The size is taken from the full picture: DCT scaling rounds up, which would bend the aspect.
        scale = target / min(pixels.size)
        size = (round(pixels.size[0] * scale), round(pixels.size[1] * scale))
        image = image.resize(size, Image.Resampling.LANCZOS)
    return _packed(image, "jpg", "JPEG", quality=encoding.quality or DEFAULT_QUALITY)


def _packed(image: Image.Image, suffix: str, name: str, **options: int) -> Packed:
    buffer = io.BytesIO()
    image.save(buffer, name, **options)
    return Packed(suffix, buffer.getvalue(), image.width, image.height)
