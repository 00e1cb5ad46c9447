import json
from pathlib import Path

import pytest

from veca.figures.cost import PEER, Part, Plan, cost, count_flops, measure


@pytest.mark.parametrize(("size", "veca", "dino"), [("small", 5.72, 30.67), ("base", 21.25, 71.02)])
def test_flops_are_the_papers(size: str, veca: float, dino: float) -> None:
    flops = count_flops(Plan(size, "attention", [64], 1), resolution=1024)
    assert round(flops["Veca, 64 cores"] / 1e9, 2) == veca
    assert round(flops[PEER] / 1e9, 2) == dino


def test_attention_and_model_are_timed_beside_their_peer() -> None:
    parts: tuple[Part, ...] = ("attention", "model")
    for part in parts:
        timings = measure(Plan("tiny", part, [8], 1), resolution=32, batch=1)
        assert all(timings[name].median > 0 for name in ("Veca, 8 cores", PEER))


def test_numbers_lie_beside_the_picture(tmp_path: Path) -> None:
    out = tmp_path / "new" / "cost.png"
    cost(out, size="tiny", resolutions="64", batch_sizes="2", batch_resolution=32, repeats=1, budgets="8,64")
    body = json.loads(out.with_suffix(".json").read_text())
    assert out.stat().st_size > 10_000
    names = ["Veca, 8 cores", "Veca, 64 cores", PEER]
    for table, key in (("flops", "64"), ("seconds", "64"), ("seconds_of_batch", "2")):
        assert list(body[table]) == [key]
        assert all(list(row) == names for row in body[table].values())
    assert body["flops"]["64"][names[0]] < body["flops"]["64"][names[1]]
    assert all(row[name]["median"] > 0 for row in body["seconds"].values() for name in names)


def test_an_unknown_size_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="size must be one of tiny, small"):
        cost(tmp_path / "x.png", size="huge")
