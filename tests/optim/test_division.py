"""The division over ranks: balanced, deterministic, and the same weights as on one rank."""

import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from subprocess import PIPE

import pytest
import torch

from veca.optim.division import owners

WORKER = Path(__file__).with_name("rank_worker.py")
BASE = [(768, 768)] * 48 + [(4096, 768)] * 12 + [(768, 2048)] * 11


def cost(shape):
    return min(shape) ** 2 * (2 * max(shape) + min(shape))


@pytest.mark.parametrize("num_ranks", [1, 2, 6, 8])
def test_work_is_balanced_and_the_same_on_every_rank(num_ranks):
    shapes = [torch.Size(shape) for shape in BASE]
    owner = owners(shapes, num_ranks=num_ranks)
    assert owner == owners(shapes, num_ranks=num_ranks)
    loads = [0] * num_ranks
    for rank, shape in zip(owner, BASE, strict=True):
        loads[rank] += cost(shape)
    assert max(loads) < 1.1 * sum(loads) / num_ranks


def test_more_ranks_than_matrices():
    assert sorted(owners([torch.Size((4, 4))] * 3, num_ranks=5)) == [0, 1, 2]


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    with ExitStack() as stack:
        workers = [
            stack.enter_context(
                subprocess.Popen([sys.executable, WORKER, str(rank), "2", folder], stderr=PIPE)
            )
            for rank in range(2)
        ]
        try:
            errors = [worker.communicate(timeout=120)[1].decode() for worker in workers]
        finally:
            for worker in workers:
                worker.kill()
    assert [worker.returncode for worker in workers] == [0, 0], "\n".join(errors)
    return [torch.load(folder / f"rank{rank}.pt", weights_only=True) for rank in range(2)]


def test_weights_are_bit_identical_across_ranks(two_ranks):
    first, second = (result["weights"] for result in two_ranks)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_two_ranks_equal_one(two_ranks):
    for result in two_ranks:
        for name, weight in result["weights"].items():
            torch.testing.assert_close(weight, result["alone"][name], rtol=1e-6, atol=1e-7)


def test_a_gradient_missing_on_one_rank_is_an_error_on_both_and_no_hang(two_ranks):
    for result in two_ranks:
        assert "gradient on some ranks and none on others" in result["disagreement"]
