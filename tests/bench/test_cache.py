"""The benchmark runs, and its numbers are of the right kind."""

from veca.bench.cache import run


def test_it_measures_something() -> None:
    results = run(size="tiny", num_images=16, num_steps=1, repeats=1)
    assert results["cached_speedup"] > 0
    assert 0 < results["reading_share"] < 10
    assert 0 < results["int8_read_share"] < 10
