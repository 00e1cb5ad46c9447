"""Images too large to decode at once, read in bands of rows from top to bottom.

TIFF goes through tifffile, which decodes one row of tiles (or one strip) at a time; JPEG, PNG and whatever
else libvips knows go through libvips, where it is installed. Pixels are as everywhere: 8-bit RGB, 16-bit
samples keep their high byte, transparency is composited on white, of several pages the first counts. An
image that would have to be decoded whole all the same is refused, with what to convert it to.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from veca.data.decode import MAX_PIXELS, BadImage
from veca.data.folders import check_regular
from veca.utils.imports import require_extra

TIFF_STARTS = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")  # the last two: BigTIFF
CONVERT = "Convert it: vips tiffsave FILE scan.tif --tile --bigtiff"

Pixels = NDArray[np.uint8]


class Bands(NamedTuple):
    """An open image."""

    width: int
    height: int
    held_bytes: int  # what reading holds of it at once
    read: Callable[[int, int], Pixels]  # first and last row → (rows, width, 3), the first never falling back


@contextmanager
def open_bands(path: Path | str, *, max_pixels: int = MAX_PIXELS) -> Iterator[Bands]:
    """An open image of at most `max_pixels`; BadImage says what to do with one that cannot be read."""
    path = Path(path)
    check_regular(path)
    with path.open("rb") as file:
        is_tiff = file.read(4) in TIFF_STARTS
    with ExitStack() as stack:
        try:
            bands = _open_tiff(path, max_pixels, stack) if is_tiff else _open_vips(path, max_pixels)
        except BadImage as error:
            detail = str(error).removeprefix(f"{error.reason}: ")
            raise BadImage(error.reason, f"{path}: {detail}") from None
        yield bands


def _check_size(width: int, height: int, max_pixels: int) -> None:
    if width * height > max_pixels:
        raise BadImage(
            "too-large",
            f"{width}×{height} pixels; the limit is {max_pixels}, in case it is a decompression bomb. "
            f"If you trust it, give --max-pixels {width * height}.",
        )


def _open_tiff(path: Path, max_pixels: int, stack: ExitStack) -> Bands:
    require_extra("huge", "tifffile")
    from tifffile import TiffFile, TiffFileError

    try:
        page: Any = stack.enter_context(TiffFile(path)).pages.first
        width, height = page.imagewidth, page.imagelength
        _check_size(width, height, max_pixels)
        rows = min(page.tilelength if page.is_tiled else page.rowsperstrip, height)
        strips = _Strips(page, rows, _tiff_converter(page))
    except BadImage:
        raise
    except (TiffFileError, AttributeError, IndexError, TypeError) as error:
        raise BadImage("damaged", str(error)) from None
    return Bands(width, height, 3 * rows * width + strips.stored_bytes, strips.read)


class _Strips:
    """Rows of a TIFF page; the row of tiles that was decoded last is kept, since bands do not end with it."""

    def __init__(self, page: Any, rows: int, convert: Callable[[NDArray[Any]], Pixels]) -> None:
        self.page, self.rows, self.convert = page, rows, convert
        self.across = -(-page.imagewidth // page.tilewidth) if page.is_tiled else 1
        self.tile_width = page.tilewidth if page.is_tiled else page.imagewidth
        self.stored_bytes = rows * self.tile_width * page.samplesperpixel * page.dtype.itemsize
        self.number, self.kept = -1, np.empty((0, 0, 3), np.uint8)

    def read(self, top: int, bottom: int) -> Pixels:
        strips = range(top // self.rows, -(-bottom // self.rows))
        parts = []
        for number in strips:
            first = number * self.rows
            parts.append(self._strip(number)[max(0, top - first) : bottom - first])
        return np.concatenate(parts) if len(parts) > 1 else parts[0]

    def _strip(self, number: int) -> Pixels:
        if number != self.number:
            rows = min(self.rows, self.page.imagelength - number * self.rows)
            self.kept = np.empty((rows, self.page.imagewidth, 3), np.uint8)
            for column in range(self.across):
                left = column * self.tile_width
                tile = self._tile(number * self.across + column)
                part = self.kept[:, left : left + self.tile_width]
                part[:] = self.convert(tile[:rows, : part.shape[1]])
            self.number = number
        return self.kept

    def _tile(self, index: int) -> NDArray[Any]:
        page, file = self.page, self.page.parent.filehandle
        count = page.databytecounts[index]
        if not count:  # nothing is stored of a tile without content
            return np.full((self.rows, self.tile_width, page.samplesperpixel), page.nodata, page.dtype)
        decode, tables = (
            page.decode,
            page.jpegtables,
        )  # asked for the first time, both move the file's position
        file.seek(page.dataoffsets[index])
        try:
            tile, _, _ = decode(file.read(count), index, jpegtables=tables)
        except Exception as error:  # damaged data raises nearly anything inside a decoder
            raise BadImage("damaged", f"{file.path}: tile {index}: {error!r}") from None
        found: NDArray[Any] = tile[0]
        return found


def _tiff_converter(page: Any) -> Callable[[NDArray[Any]], Pixels]:
    """How samples (rows, columns, S) become RGB."""
    problem = _tiff_problem(page)
    if problem:
        raise BadImage("unsupported", f"{problem}. {CONVERT}")
    samples, inverted = page.samplesperpixel, page.photometric.name == "MINISWHITE"
    shift = 8 * (page.dtype.itemsize - 1)

    def convert(tile: NDArray[Any]) -> Pixels:
        eight = (tile >> shift).astype(np.uint8) if shift else tile
        eight = 255 - eight if inverted else eight
        if samples in (2, 4):
            return _on_white(eight)
        return np.broadcast_to(eight, (*eight.shape[:2], 3)) if samples == 1 else eight

    return convert


def _tiff_problem(page: Any) -> str | None:
    orientation = page.tags.get("Orientation")
    if page.photometric.name not in ("RGB", "YCBCR", "MINISBLACK", "MINISWHITE"):
        return f"its colours are {page.photometric.name}"
    if page.samplesperpixel > 4 or (page.samplesperpixel == 2 and not page.extrasamples):
        return f"it has {page.samplesperpixel} channels"
    if page.dtype not in (np.uint8, np.uint16) or page.bitspersample % 8:
        return f"its samples are {page.bitspersample}-bit {page.dtype}"
    if page.planarconfig != 1 and page.samplesperpixel > 1:
        return "its channels lie apart"
    if page.imagedepth != 1:
        return "it is a volume"
    if orientation is not None and orientation.value != 1:
        return "it is stored turned"
    if not find_spec("imagecodecs") and page.compression.name not in ("NONE", "ADOBE_DEFLATE", "DEFLATE"):
        require_extra("huge", "imagecodecs")
    return None


def _on_white(pixels: Pixels) -> Pixels:
    """Colour and, last, opacity → RGB on white."""
    colour, alpha = pixels[..., :-1].astype(np.uint16), pixels[..., -1:].astype(np.uint16)
    mixed = (colour * alpha + 255 * (255 - alpha) + 127) // 255
    return np.broadcast_to(mixed.astype(np.uint8), (*pixels.shape[:2], 3))


def _open_vips(path: Path, max_pixels: int) -> Bands:
    try:
        import pyvips
    except (ImportError, OSError):  # the package, or the library it opens
        raise BadImage(
            "unsupported",
            "an image that is no TIFF is read in bands by libvips, which is not installed. Install it "
            f"(pip install pyvips-binary pyvips), or elsewhere: {CONVERT.removeprefix('Convert it: ')}",
        ) from None
    try:
        image = pyvips.Image.new_from_file(str(path), access="sequential")
        _check_size(image.width, image.height, max_pixels)
        for field, what in (("interlaced", "it is progressive"), ("orientation", "it is stored turned")):
            if image.get_typeof(field) and image.get(field) != (1 if field == "orientation" else 0):
                raise BadImage("unsupported", f"{what}, and would be decoded whole. {CONVERT}")
        image = image.colourspace("srgb")
        image = image.flatten(background=255) if image.hasalpha() else image
        region = pyvips.Region.new(image.cast("uchar"))
    except pyvips.Error as error:
        raise BadImage("damaged", " ".join(str(error).split())) from None

    def read(top: int, bottom: int) -> Pixels:
        try:
            data = region.fetch(0, top, image.width, bottom - top)
        except pyvips.Error as error:
            raise BadImage("damaged", f"{path}: {' '.join(str(error).split())}") from None
        return np.frombuffer(data, np.uint8).reshape(bottom - top, image.width, 3).copy()  # writable

    return Bands(image.width, image.height, 3 * image.width * 1024, read)  # libvips keeps some lines
