"""Images per second from encoded bytes to a training view, against the obvious pipeline.

Three ratios, single thread, TrivialAugmentWide included:

* `verbatim_vs_obvious`: both on the photos as they are;
* `small_vs_obvious`: ours on photos re-encoded to the short side of training, the obvious one as before;
* `small_vs_decode`: ours on the small photos, against decoding them and doing nothing else.

Ours draws the view and ends in uint8, which is what travels to the device; the obvious one ends in
normalised floats, since that is what it is for.
"""

import io
import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import simplejpeg
import torch
from PIL import Image, ImageEnhance, ImageOps

from veca.bench.goals import said
from veca.data.augment import draw_view, render_all, resized_size, sample_generator
from veca.data.decode import decode, image_size
from veca.data.trivial_augment import NUM_BINS, OPS, resolve_magnitude
from veca.data.views import MEAN, STD
from veca.utils.timing import compare, interleave

RESOLUTION = 256
QUALITY = 92


def run(photos: Path | None = None, *, num_photos: int = 96, repeats: int = 9) -> dict[str, float]:
    """Measure on the JPEGs of a folder, or on generated ones; returns ratios and images per second."""
    verbatim = _read(photos, num_photos) if photos else [_photo_like(seed) for seed in range(num_photos)]
    small = [_shrink(data) for data in verbatim]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        timings = interleave(
            {
                "obvious": _rounds(_obvious, verbatim),
                "verbatim": _rounds(_ours, verbatim),
                "small": _rounds(_ours, small),
                "decode": _rounds(_decode, small),
            },
            repeats=repeats,
        )
    finally:
        torch.set_num_threads(threads)
    rates = {f"{name}_per_s": len(verbatim) / timing.median for name, timing in timings.items()}
    ratios = {
        "verbatim_vs_obvious": ("obvious", "verbatim"),
        "small_vs_obvious": ("obvious", "small"),
        "small_vs_decode": ("decode", "small"),
    }
    return said("pixels", compare(timings, ratios) | rates)


def _rounds(run: Callable[[list[bytes], int], None], images: list[bytes]) -> Callable[[], None]:
    """One call goes through all images; a number from which to seed the views is new in every round."""
    firsts = itertools.count(step=len(images))
    return lambda: run(images, next(firsts))


def _ours(images: list[bytes], first: int) -> None:
    views = [
        draw_view(sample_generator(0, 0, str(first + number)), size=image_size(data), resolution=RESOLUTION)
        for number, data in enumerate(images)
    ]
    for _ in render_all(images, views):
        pass


def _decode(images: list[bytes], _: int) -> None:
    for data in images:
        simplejpeg.decode_jpeg(data)


def _obvious(images: list[bytes], first: int) -> None:
    for number, data in enumerate(images):
        _obvious_view(data, first + number)


def _obvious_view(data: bytes, number: int) -> torch.Tensor:
    rng = np.random.default_rng(number)
    image: Image.Image = Image.open(io.BytesIO(data)).convert("RGB")
    width, height = resized_size(image.size, resolution=RESOLUTION)
    image = image.resize((width, height), Image.Resampling.BICUBIC)
    left, top = int(rng.integers(width - RESOLUTION + 1)), int(rng.integers(height - RESOLUTION + 1))
    image = image.crop((left, top, left + RESOLUTION, top + RESOLUTION))
    if rng.random() < 0.5:
        image = ImageOps.mirror(image)
    op = OPS[int(rng.integers(len(OPS)))]
    step, negative = int(rng.integers(NUM_BINS)), bool(rng.random() < 0.5)
    image = pillow_op(image, op=op, magnitude=resolve_magnitude(op, step=step, negative=negative))
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous().float().div(255)
    return (pixels - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)


def pillow_op(image: Image.Image, *, op: str, magnitude: float) -> Image.Image:
    """TrivialAugmentWide as one writes it with Pillow."""
    matrices = {
        "ShearX": (1, magnitude, 0, 0, 1, 0),
        "ShearY": (1, 0, 0, magnitude, 1, 0),
        "TranslateX": (1, 0, -magnitude, 0, 1, 0),
        "TranslateY": (1, 0, 0, 0, 1, -magnitude),
    }
    if op in matrices:
        return image.transform(image.size, Image.Transform.AFFINE, matrices[op], Image.Resampling.NEAREST)
    if op in ("Brightness", "Color", "Contrast", "Sharpness"):
        enhanced: Image.Image = getattr(ImageEnhance, op)(image).enhance(1 + magnitude)
        return enhanced
    functions: dict[str, Callable[[], Image.Image]] = {
        "Identity": lambda: image,
        "Rotate": lambda: image.rotate(magnitude, Image.Resampling.NEAREST),
        "Posterize": lambda: ImageOps.posterize(image, int(magnitude)),
        "Solarize": lambda: ImageOps.solarize(image, int(np.ceil(magnitude))),
        "AutoContrast": lambda: ImageOps.autocontrast(image),
        "Equalize": lambda: ImageOps.equalize(image),
    }
    return functions[op]()


def _read(folder: Path, num_photos: int) -> list[bytes]:
    paths = sorted(path for path in folder.iterdir() if path.suffix.lower() in (".jpg", ".jpeg"))
    if not paths:
        raise FileNotFoundError(
            f"no .jpg or .jpeg in {folder}; give a folder of photos, or none to make some."
        )
    return [path.read_bytes() for path in paths[:num_photos]]


def _shrink(data: bytes) -> bytes:
    image = Image.fromarray(decode(data))
    size = resized_size(image.size, resolution=RESOLUTION)
    return _encode(image.resize(size, Image.Resampling.BICUBIC))


def _photo_like(seed: int) -> bytes:
    """Noise with the 1/f spectrum of photographs, at 640 to 1000 px, in three correlated channels."""
    rng = np.random.default_rng(seed)
    width, height = int(rng.integers(640, 1001)), int(rng.integers(480, 751))
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None])
    spectrum = np.fft.rfft2(rng.standard_normal((4, height, width))) / (frequency + 1 / width)
    noise = np.fft.irfft2(spectrum, s=(height, width))
    channels = noise[:1] + 0.4 * noise[1:]
    channels = 128 + 50 * (channels - channels.mean()) / channels.std()
    return _encode(Image.fromarray(np.clip(channels, 0, 255).astype(np.uint8).transpose(1, 2, 0)))


def _encode(image: Image.Image) -> bytes:
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=QUALITY)
    return stream.getvalue()
