"""From images to batches beside the obvious ways: `pixels`, `loader` and `shards`."""

import io
import itertools
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg
import torch
from PIL import Image, ImageEnhance, ImageOps

from veca.bench.harness import Case, Goal, Ratio, Steps, benchmark, one_thread
from veca.data.datamodule import ShardDataModule
from veca.data.decode import decode, image_size
from veca.data.index import open_sources
from veca.data.loader import FreshViews
from veca.data.order import EpochOrder, SourceCounts
from veca.data.reader import Sample, ShardReader
from veca.data.resolutions import Phase, ResolutionSchedule
from veca.data.trivial_augment import NUM_BINS, OPS, resolve_magnitude
from veca.data.views import MEAN, STD, draw_view, render, render_all, resized_size, sample_generator
from veca.utils.lightning_compat import quiet_lightning

RESOLUTION = 256
QUALITY = 92
BATCH_SIZE = 16
NUM_SHARDS = 8
PASSES = 3  # over the images in one run of a loader, so that the start of its workers weighs less
NUM_FILES = 4000
NUM_REENCODED = 1200  # enough that starting workers does not count
NUM_PICTURES = 16  # different ones; the rest differ in a comment


@benchmark
def pixels(photos: Path | None = None, *, num_photos: int = 96, repeats: int = 9) -> Steps:
    """Images per second from encoded bytes to a training view, TrivialAugmentWide included, on one thread.

    Ours ends in uint8, which is what travels to the device; the obvious one in normalised floats. `small`
    is ours on photos re-encoded to the short side of training, `decode` decodes those and does nothing else.

    Args:
        photos: Folder of JPEGs; without one, photos are generated.
        num_photos: How many.
        repeats: Turns that each pipeline takes.
    """
    verbatim = [photo_like(number) for number in range(num_photos)] if photos is None else []
    if photos is not None:
        paths = sorted(path for path in photos.iterdir() if path.suffix.lower() in (".jpg", ".jpeg"))
        verbatim = [path.read_bytes() for path in paths[:num_photos]]
    if not verbatim:
        raise FileNotFoundError(
            f"no .jpg or .jpeg in {photos}; give a folder of photos, or none to make some."
        )
    small = [_shrink(data) for data in verbatim]
    candidates = {
        "obvious": _rounds(_obvious, verbatim),
        "verbatim": _rounds(_ours, verbatim),
        "small": _rounds(_ours, small),
        "decode": _rounds(_decode, small),
    }
    with one_thread():
        yield Case(
            candidates=candidates,
            ratios={
                "verbatim_vs_obvious": Ratio("obvious", "verbatim", Goal(1.5)),
                "small_vs_obvious": Ratio("obvious", "small", Goal(5.0)),
                "small_vs_decode": Ratio("decode", "small", Goal(0.75)),
            },
            unit="{}_per_s",
            amounts=dict.fromkeys(candidates, len(verbatim)),
            repeats=repeats,
        )


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
    for number, data in enumerate(images, first):
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
        image = _pillow_op(image, op, resolve_magnitude(op, step=step, negative=negative))
        floats = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous().float().div(255)
        (floats - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)


def _pillow_op(image: Image.Image, op: str, m: float) -> Image.Image:
    """TrivialAugmentWide as one writes it with Pillow, at magnitude `m`."""
    matrices = {
        "ShearX": (1, m, 0, 0, 1, 0),
        "ShearY": (1, 0, 0, m, 1, 0),
        "TranslateX": (1, 0, -m, 0, 1, 0),
        "TranslateY": (1, 0, 0, 0, 1, -m),
    }
    if op in matrices:
        return image.transform(image.size, Image.Transform.AFFINE, matrices[op], Image.Resampling.NEAREST)
    if op in ("Brightness", "Color", "Contrast", "Sharpness"):
        enhanced: Image.Image = getattr(ImageEnhance, op)(image).enhance(1 + m)
        return enhanced
    functions: dict[str, Callable[[], Image.Image]] = {
        "Identity": lambda: image,
        "Rotate": lambda: image.rotate(m, Image.Resampling.NEAREST),
        "Posterize": lambda: ImageOps.posterize(image, int(m)),
        "Solarize": lambda: ImageOps.solarize(image, int(np.ceil(m))),
        "AutoContrast": lambda: ImageOps.autocontrast(image),
        "Equalize": lambda: ImageOps.equalize(image),
    }
    return functions[op]()


def _shrink(data: bytes) -> bytes:
    image = Image.fromarray(decode(data))
    size = resized_size(image.size, resolution=RESOLUTION)
    return _encode(image.resize(size, Image.Resampling.BICUBIC))


def photo_like(seed: int, size: tuple[int, int] | None = None, *, quality: int = QUALITY) -> bytes:
    """A JPEG of noise with the 1/f spectrum of photographs, in three correlated channels.

    Without a size, it is 640 to 1000 px wide.
    """
    rng = np.random.default_rng(seed)
    width, height = size or (int(rng.integers(640, 1001)), int(rng.integers(480, 751)))
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None])
    spectrum = np.fft.rfft2(rng.standard_normal((4, height, width))) / (frequency + 1 / width)
    noise = np.fft.irfft2(spectrum, s=(height, width))
    channels = noise[:1] + 0.4 * noise[1:]
    channels = 128 + 50 * (channels - channels.mean()) / channels.std()
    return _encode(Image.fromarray(np.clip(channels, 0, 255).astype(np.uint8).transpose(1, 2, 0)), quality)


def _encode(image: Image.Image, quality: int = QUALITY) -> bytes:
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=quality)
    return stream.getvalue()


@benchmark
def loader(*, num_images: int = 512, repeats: int = 3) -> Steps:
    """What streaming costs on top of decoding, and what a resume costs instead of training.

    `read_share` and `loader_share_0` are shares of rendering, `workers_N` of the loader in one process, the
    start of workers included; `resume_share` is going to a position over loading all that lies before it.

    Args:
        num_images: Photos of 384×288 in the shards.
        repeats: Rounds.
    """
    with one_thread(), photo_shards(num_images) as folder:
        read_all = sample_reader(folder)
        samples = read_all()
        views = FreshViews(seed=0)
        counts = open_sources(folder)[0].counts("train").samples

        def render_views() -> None:
            for sample in samples:
                render(sample.image, views.choose(sample, visit=0, resolution=RESOLUTION)[0])

        def skip_to_the_end() -> None:
            order = EpochOrder([SourceCounts(counts, PASSES)], seed=42, window_shards=4)
            order.refs(0, order.samples_per_epoch - BATCH_SIZE, order.samples_per_epoch)

        yield Case(
            candidates={"read": read_all, "render": render_views, "skip": skip_to_the_end}
            | {f"loader_{workers}": partial(_load_all, folder, workers) for workers in range(3)},
            ratios={
                "read_share": Ratio("read", "render"),
                "workers_1": Ratio("loader_0", "loader_1"),
                "workers_2": Ratio("loader_0", "loader_2"),
                "resume_share": Ratio("skip", "loader_0", Goal(0.02, at_most=True)),
                "loader_share_0": Ratio("render", "loader_0", scale=PASSES),
            },
            unit="{}_per_s",
            amounts=dict.fromkeys(("read", "render"), num_images)
            | {f"loader_{workers}": PASSES * num_images for workers in range(3)},
            repeats=repeats,
        )


def sample_reader(folder: str) -> Callable[[], list[Sample]]:
    """A call reads all training samples of the shards in a folder, shard by shard."""
    (source,) = open_sources(folder)
    reader = ShardReader(source.shards("train"), cache=None, max_open=NUM_SHARDS)
    counts = source.counts("train").samples
    refs = [(shard, number) for shard, count in enumerate(counts) for number in range(count)]
    return lambda: [reader.read(*ref) for ref in refs]


def _load_all(folder: str, num_workers: int) -> None:
    """An epoch of `PASSES` passes through a fresh loader."""
    data = ShardDataModule(
        sources={folder: float(PASSES)},
        resolutions=ResolutionSchedule([Phase(0, {RESOLUTION: 1.0})], batch_size=BATCH_SIZE),
        window_shards=4,
        num_workers=num_workers,
    )
    data.setup("fit")
    with quiet_lightning():
        batches = data.train_loader()
    for _ in batches:
        pass
    batches.close()


@contextmanager
def photo_shards(num_images: int) -> Iterator[str]:
    """A folder with shards of generated photos of 384×288, while the context lasts."""
    with tempfile.TemporaryDirectory() as folder:
        photos, shards = Path(folder) / "photos", Path(folder) / "shards"
        photos.mkdir()
        for number in range(num_images):
            (photos / f"{number:06d}.jpg").write_bytes(photo_like(number, (384, 288), quality=65))
        _make_shards(photos, shards, shard_samples=max(1, num_images // NUM_SHARDS), workers=1)
        yield str(shards)


@benchmark
def shards(folder: str | None = None, *, repeats: int = 5) -> Steps:
    """How fast images become shards, next to GNU tar over the same files.

    Files are in the page cache and everybody writes to the same disk, so the numbers are those of the code.
    GNU tar returns before its bytes are on the disk, shards are synced one by one: so tar is timed as it is,
    and followed by a sync of its file.

    Args:
        folder: Images; without a folder, JPEGs of about 150 kB are generated.
        repeats: Turns.
    """
    with tempfile.TemporaryDirectory() as scratch:
        work = Path(scratch)
        files = Path(folder) if folder else _make_files(work / "files", NUM_FILES)
        few = _some_files(files, work / "few", NUM_REENCODED)
        megabytes = sum(path.stat().st_size for path in files.rglob("*") if path.is_file()) / 1e6
        small = {"shard_samples": 25, "max_short_side": 256}
        yield Case(
            candidates={
                "tar": partial(_tar, files, work, sync=False),
                "tar_sync": partial(_tar, files, work, sync=True),
                "verbatim": partial(_make_shards, files, work / "out", shard_bytes=150_000_000),
                "reencode_1": partial(_make_shards, few, work / "out", **small, workers=1),
                "reencode_2": partial(_make_shards, few, work / "out", **small, workers=2),
            },
            ratios={
                "verbatim_vs_tar": Ratio("tar", "verbatim", Goal(0.6)),
                "verbatim_vs_tar_sync": Ratio("tar_sync", "verbatim"),
                "reencode_2_workers_vs_1": Ratio("reencode_1", "reencode_2", Goal(1.7)),
            },
            unit="{}_mb_per_s",
            amounts=dict.fromkeys(("tar", "tar_sync", "verbatim"), megabytes),
            repeats=repeats,
        )


def _tar(files: Path, work: Path, *, sync: bool) -> None:
    target = work / "tar" / "files.tar"
    shutil.rmtree(target.parent, ignore_errors=True)
    target.parent.mkdir()
    subprocess.run(["tar", "-cf", str(target), "-C", str(files), "."], check=True)
    if sync:
        subprocess.run(["sync", str(target)], check=True)


def _make_shards(files: Path, out: Path, **options: Any) -> None:
    # Only here: the library itself does not need the stage that comes before it.
    from veca_data.pack import make_shards

    shutil.rmtree(out, ignore_errors=True)
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        make_shards(files, out, val_share=0, max_rejects=1, **options)


def _make_files(folder: Path, count: int) -> Path:
    folder.mkdir()
    pictures = [photo_like(seed, (640, 480), quality=82) for seed in range(NUM_PICTURES)]
    for i in range(count):
        comment = b"\xff\xfe\x00\x0a%08d" % i
        (folder / f"image_{i:06d}.jpg").write_bytes(pictures[i % NUM_PICTURES][:-2] + comment + b"\xff\xd9")
    return folder


def _some_files(files: Path, folder: Path, count: int) -> Path:
    folder.mkdir()
    for path in sorted(path for path in files.rglob("*") if path.is_file())[:count]:
        (folder / path.name).symlink_to(path.resolve())
    return folder
