"""Mistakes in the data settings are all reported at once, with key, value and rule."""

import pytest

from veca.data.datamodule import ShardDataModule


def test_every_mistake_is_reported_at_once() -> None:
    with pytest.raises(ValueError, match="cannot be used") as error:
        ShardDataModule(
            sources={"a": -1.0, "https://host/b": 1.0, "pipe:cat c": 1.0, "s3://d": 1.0},
            seed=-1,
            window_shards=0,
            num_workers=-2,
            max_bad_share=1.5,
            val_batches={256: 0, 100: 1},
        )
    for part in (
        "sources[a] = -1.0: must be above 0",
        "cache_dir = null: must be a folder on a local disk, as https://host/b is remote",
        "source 'pipe:cat c': must be a folder, or a URL with one of http://, https://",
        "source 's3://d'",
        "seed = -1",
        "window_shards = 0: must be at least 1",
        "num_workers = -2",
        "max_bad_share = 1.5",
        "resolutions [100] are not among [256]",
        "must be at least 1; limit_val_batches=0 turns validation off",
    ):
        assert part in str(error.value)


def test_no_source_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="must name at least one"):
        ShardDataModule(sources={})
