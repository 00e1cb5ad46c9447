"""What streaming costs on top of decoding, and what a resume costs instead of training.

* `read_share`: reading a sample (pread, tar headers) as a share of rendering a view of it;
* `loader_share_0`: images per second of the loader in one process, as a share of rendering alone;
* `workers_1`, `workers_2`: how many times faster the loader is with workers, their start included;
* `resume_share`: going to position k in a fresh order, as a share of loading the k batches before it.
"""

import hashlib
import io
import tarfile
import tempfile
from pathlib import Path

import numpy as np
import simplejpeg
import torch

from veca.bench.goals import said
from veca.data.augment import render
from veca.data.batches import FreshViews
from veca.data.datamodule import ShardDataModule
from veca.data.index import INDEX_NAME, ShardIndex, ShardInfo, index_to_json, offsets_name, shard_name
from veca.data.order import EpochOrder, SourceCounts
from veca.data.reader import ShardReader
from veca.data.resolutions import Phase, ResolutionSchedule
from veca.data.sources import open_sources
from veca.utils.lightning_compat import quiet_lightning
from veca.utils.timing import compare, interleave

RESOLUTION = 256
SHORT_SIDE = 288
BATCH_SIZE = 16
NUM_SHARDS = 8
PASSES = 3  # over the images in one run of a loader, so that the start of its workers weighs less


def run(*, num_images: int = 512, repeats: int = 3) -> dict[str, float]:
    """Measure on generated photos of 384×288; returns shares, speed-ups and images per second."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with tempfile.TemporaryDirectory() as folder:
            write_shards(Path(folder), num_images=num_images)
            return _measure(folder, num_images, repeats)
    finally:
        torch.set_num_threads(threads)


def _measure(folder: str, num_images: int, repeats: int) -> dict[str, float]:
    source = open_sources(folder)[0]
    reader = ShardReader(source.shards("train"), cache=None, max_open=NUM_SHARDS)
    refs = [(shard, n) for shard, count in enumerate(source.counts("train").samples) for n in range(count)]
    samples = [reader.read(*ref) for ref in refs]
    views = FreshViews(seed=0)

    def read_all() -> None:
        for ref in refs:
            reader.read(*ref)

    def render_all() -> None:
        for sample in samples:
            render(sample.image, views.choose(sample, visit=0, resolution=RESOLUTION)[0])

    def skip_to_the_end() -> None:
        order = EpochOrder([SourceCounts(source.counts("train").samples, PASSES)], seed=42, window_shards=4)
        order.refs(0, order.samples_per_epoch - BATCH_SIZE, order.samples_per_epoch)

    timings = interleave(
        {
            "read": read_all,
            "render": render_all,
            "skip": skip_to_the_end,
            **{f"loader_{n}": (lambda n=n: load_all(folder, num_workers=n)) for n in (0, 1, 2)},  # type: ignore[misc]
        },
        repeats=repeats,
    )
    runs = {"read": 1, "render": 1, "loader_0": PASSES, "loader_1": PASSES, "loader_2": PASSES}
    rates = {f"{name}_per_s": passes * num_images / timings[name].median for name, passes in runs.items()}
    ratios = {
        "read_share": ("read", "render"),
        "workers_1": ("loader_0", "loader_1"),
        "workers_2": ("loader_0", "loader_2"),
        "resume_share": ("skip", "loader_0"),
    }
    share = compare(timings, {"loader_share_0": ("render", "loader_0")}, scale=PASSES)
    return said("loader", compare(timings, ratios) | share | rates)


def load_all(folder: str, *, num_workers: int) -> int:
    """An epoch of `PASSES` passes through a fresh loader; the images seen."""
    data = ShardDataModule(
        sources={folder: float(PASSES)},
        resolutions=ResolutionSchedule([Phase(0, {RESOLUTION: 1.0})], batch_size=BATCH_SIZE),
        window_shards=4,
        num_workers=num_workers,
    )
    data.setup("fit")
    with quiet_lightning():
        loader = data.train_loader()
    seen = sum(len(batch.images) for batch in loader)
    loader.close()
    return seen


def write_shards(folder: Path, *, num_images: int) -> None:
    """Shards of generated photos, `num_images` in all."""
    infos = []
    for shard, numbers in enumerate(np.array_split(np.arange(num_images), NUM_SHARDS)):
        path = folder / shard_name("train", shard)
        offsets = [0]
        with tarfile.open(path, "w") as archive:
            for number in numbers.tolist():
                for name, content in (
                    (f"{number:06d}.jpg", _photo_like(number)),
                    (f"{number:06d}.json", b"{}"),
                ):
                    entry = tarfile.TarInfo(name)
                    entry.size = len(content)
                    archive.addfile(entry, io.BytesIO(content))
                offsets.append(archive.offset)
        np.save(folder / offsets_name(path.name), np.array(offsets, np.uint64))
        data = path.read_bytes()
        infos.append(ShardInfo(path.name, len(numbers), len(data), hashlib.sha256(data).hexdigest()))
    index = ShardIndex(seed=0, options={}, splits={"train": infos})
    (folder / INDEX_NAME).write_text(index_to_json(index), encoding="utf-8")


def _photo_like(seed: int) -> bytes:
    """Colour at all scales, as photos have it: noise of many sizes, added up."""
    generator = torch.Generator().manual_seed(seed)
    size = (SHORT_SIDE, SHORT_SIDE * 4 // 3)
    image = torch.zeros(1, 3, *size)
    for scale in (4, 16, 64):
        noise = torch.randn(1, 3, scale, scale, generator=generator)
        image += torch.nn.functional.interpolate(noise, size=size, mode="bilinear") * 128 / scale**0.5
    pixels = (image[0] + 128).clamp(0, 255).to(torch.uint8).permute(1, 2, 0).contiguous().numpy()
    encoded: bytes = simplejpeg.encode_jpeg(pixels, quality=92)
    return encoded
