import torch

from veca.model.cores import CoreBank, spread_points


def test_every_prefix_covers_the_plane() -> None:
    torch.manual_seed(0)
    points = spread_points(64)
    assert points.abs().max() <= 0.95
    assert points[0].norm() < 0.1  # starts nearest the origin
    probes = torch.rand(2000, 2, dtype=torch.float64) * 1.9 - 0.95
    for budget, reach in ((8, 0.95), (16, 0.65), (64, 0.35)):
        worst = torch.cdist(probes, points[:budget]).min(1).values.max()
        assert worst < reach, (budget, float(worst))


def test_farthest_point_order_against_a_loop() -> None:
    torch.manual_seed(4)
    points = spread_points(20)
    torch.manual_seed(4)
    cloud = (2 * torch.rand(1000, 2, dtype=torch.float64) - 1) * 0.95
    chosen = [min(cloud, key=lambda p: float(p.norm()))]
    while len(chosen) < 20:
        chosen.append(max(cloud, key=lambda p: min(float((p - c).norm()) for c in chosen)))
    assert torch.equal(points, torch.stack(chosen))


def test_tokens_have_variance_one_over_width_and_places_are_kept() -> None:
    torch.manual_seed(0)
    bank = CoreBank(width=256, num_cores=64, core_group=8)
    tokens, coordinates = (x.detach() for x in bank(64))
    assert tokens.shape == (1, 64, 256)
    assert abs(float(tokens.var()) * 256 - 1) < 0.05
    assert coordinates.tanh().abs().max() <= 0.9501


def test_inactive_groups_have_no_gradient() -> None:
    bank = CoreBank(width=8, num_cores=16, core_group=4)
    tokens, coordinates = bank(8)
    (tokens.sum() + coordinates.sum()).backward()
    assert [p.grad is not None for p in bank.tokens] == [True, True, False, False]
    assert [p.grad is not None for p in bank.coordinates] == [True, True, False, False]
