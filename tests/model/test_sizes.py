import pytest
import torch

from veca import create_model


@pytest.mark.parametrize(
    ("name", "count"),
    [("small", 21_628_961), ("small_plus", 28_719_137), ("base", 85_725_089), ("large", 303_195_301)],
)
def test_parameter_counts_are_the_papers(name: str, count: int) -> None:
    with torch.device("meta"):
        model = create_model(name)
    assert sum(p.numel() for p in model.parameters()) == count


def test_tiny_has_about_three_million_parameters() -> None:
    assert 2.5e6 < sum(p.numel() for p in create_model("tiny").parameters()) < 3.5e6


def test_overrides_win_over_the_preset() -> None:
    model = create_model("tiny", depth=2, num_cores=16, out_width=48)
    assert (model.size.depth, model.size.num_cores, model.size.width) == (2, 16, 192)
    assert model.budgets == (8, 16)
    assert model(torch.zeros(1, 3, 32, 32)).cores.shape == (1, 16, 48)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"width": 200}, ["width=200", "num_heads=3", "Try width=198"]),
        ({"width": 30, "num_heads": 3}, ["multiple of 4", "got 10"]),
        ({"num_cores": 20}, ["num_cores=20", "core_group=8", "num_cores=24"]),
        ({"depth": 0, "patch_size": 2.5}, ["depth must be", "got 0", "patch_size must be", "got 2.5"]),
        (
            {"depth": 10**9, "patch_size": 2**31},
            ["depth must be at most 1,000", "patch_size must be at most"],
        ),
        ({"ffn_ratio": float("nan")}, ["ffn_ratio must be"]),
        ({"ffn_ratio": 0.001}, ["ffn_ratio·width"]),
        ({"widht": 64}, ["widht", "width, depth"]),
    ],
)
def test_contradictions_name_value_rule_and_way_out(overrides: dict[str, object], words: list[str]) -> None:
    with pytest.raises(ValueError) as error:
        create_model("tiny", **overrides)
    assert all(word in str(error.value) for word in words), str(error.value)


def test_unknown_size_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match="tiny, small, small_plus, base, large; got 'huge'"):
        create_model("huge")
