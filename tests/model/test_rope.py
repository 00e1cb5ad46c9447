import math

import torch

from veca.model.rope import augment_coordinates, frequencies, patch_coordinates, rotate, rotation

CPU = torch.device("cpu")


def turns(coordinates: torch.Tensor, head_width: int = 64) -> torch.Tensor:
    return rotation(coordinates, frequencies(head_width, device=CPU, dtype=coordinates.dtype))


def test_patch_coordinates_are_cell_centres_row_major_x_first() -> None:
    found = patch_coordinates(2, 4, device=CPU, dtype=torch.float64)
    expected = [(x, y) for y in (-0.5, 0.5) for x in (-0.75, -0.25, 0.25, 0.75)]
    assert torch.equal(found[0], torch.tensor(expected, dtype=torch.float64))


def test_a_joint_shift_leaves_scores_unchanged() -> None:
    torch.manual_seed(0)
    q, k, places = torch.randn(5, 64).double(), torch.randn(7, 64).double(), torch.rand(12, 2).double()

    def scores(shift: torch.Tensor) -> torch.Tensor:
        at = turns(places + shift)
        return rotate(q, at[:5]) @ rotate(k, at[5:]).T

    still = scores(torch.zeros(2).double())
    moved = scores(torch.tensor([0.37, -1.2]).double())
    torch.testing.assert_close(still, moved, rtol=1e-12, atol=1e-12)
    assert not torch.allclose(q @ k.T, still)  # the rotation does something


def test_channels_of_infinite_periods_do_not_rotate() -> None:
    x = torch.randn(9, 64).double()
    turned = rotate(x, turns(torch.rand(9, 2).double() * 2 - 1))
    # 16 periods an axis, the longest two infinite: the last 4 channels of each half.
    still = [*range(28, 32), *range(60, 64)]
    assert torch.equal(turned[:, still], x[:, still])
    moving = [c for c in range(64) if c not in still]
    assert (turned[:, moving] != x[:, moving]).all()


def test_the_real_formula_equals_the_complex_one() -> None:
    """Half precision and the compiler take the real formula; float32 takes the complex product."""
    x, at = torch.randn(2, 5, 64), turns(torch.rand(5, 2))
    compiled = torch.compile(rotate, backend="eager")
    torch.testing.assert_close(compiled(x, at), rotate(x, at), rtol=1e-6, atol=1e-6)
    half = rotate(x.bfloat16(), at)
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.float(), rotate(x, at), rtol=0.02, atol=0.05)


def test_augmentation_shifts_then_scales_within_bounds_and_repeats() -> None:
    grid = patch_coordinates(4, 4, device=CPU, dtype=torch.float64)
    torch.manual_seed(3)
    scales, shifts = [], []
    for _ in range(400):
        drawn = augment_coordinates(grid)[0]
        scale = (drawn[1, 0] - drawn[0, 0]) / (grid[0, 1, 0] - grid[0, 0, 0])
        shifts.append(drawn[0] / scale - grid[0, 0])
        scales.append(float(scale))
        torch.testing.assert_close(drawn, (grid[0] + shifts[-1]) * scale)
    assert 0.5 <= min(scales) < 0.53
    assert 1.9 < max(scales) <= 2
    assert 0.075 < torch.stack(shifts).abs().max() <= 0.08
    assert abs(sum(math.log(s) for s in scales) / 400) < 0.1  # log-uniform about 1
    torch.manual_seed(5)
    first = augment_coordinates(grid)
    torch.manual_seed(5)
    assert torch.equal(first, augment_coordinates(grid))
