"""The benchmark runs, and its numbers are of the right kind."""

import pytest

from veca.bench.cache import flop_speedup, run


def test_it_measures_something() -> None:
    results = run(size="tiny", num_images=32, num_steps=1, repeats=1)
    assert results["cached_speedup"] > 0
    assert 0 < results["reading_share"] < 10
    assert 0 < results["int8_read_share"] < 10


def test_the_arithmetic_by_hand() -> None:
    """Small at 256 px: products of 24·D² FLOPs per token and layer, and attention; a step is three passes."""
    width, depth, patches = 384, 12, 256

    def layers(tokens: int, scores: int) -> int:
        return depth * (24 * width**2 * tokens + 4 * width * scores)

    def student(cores: int) -> int:
        return layers(patches + cores, cores * (patches + cores) + patches * cores)

    weights = {8: 1, 16: 1, 24: 2, 32: 2, 40: 3, 48: 3, 56: 4, 64: 4}
    step = 3 * sum(weight * student(cores) for cores, weight in weights.items()) / 20
    expected = 1 + layers(patches + 5, (patches + 5) ** 2) / step
    assert flop_speedup("small", batch_size=10**9) == pytest.approx(expected, rel=0.005)
    assert flop_speedup("small", batch_size=16) < 0.96 * expected
