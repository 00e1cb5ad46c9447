"""NorMuon against the method's text in NumPy, a recorded dion run and an independent library."""

import functools
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from subprocess import PIPE

import numpy as np
import pytest
import pytorch_optimizer.optimizer.muon.normuon as oracle
import torch
from torch import nn

from veca.optim.combined import ParameterSplit, make_optimizer
from veca.optim.normuon import POLAR_COEFFICIENTS, owners, polar_dtype, polar_express

RECORD = Path(__file__).resolve().parents[2] / ".." / "shared" / "data" / "normuon_dion.npz"
SHAPES = ((12, 20), (20, 12), (16, 16), (1, 8), (12, 20))


def normuon(weights, *, lr=1e-3, weight_decay=0.05):
    split = ParameterSplit(matrices=[(f"{i}", weight) for i, weight in enumerate(weights)], rest=[])
    return make_optimizer(split, lr=lr, weight_decay=weight_decay, backend="veca")


def draw(shapes, *, seed, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]


def run(starts, grads, **options):
    """Weights after each step."""
    weights = [nn.Parameter(start.clone()) for start in starts]
    optimizer = normuon(weights, **options)
    history = []
    for step in grads:
        for weight, grad in zip(weights, step, strict=True):
            weight.grad = grad.clone()
        optimizer.step()
        history.append([weight.detach().clone() for weight in weights])
    return history


class Reference:
    """The method's six steps for one matrix, in NumPy and float64, nothing shared with the implementation."""

    def __init__(self, weight, *, lr, weight_decay):
        self.weight = weight.numpy().copy()
        self.lr, self.weight_decay = lr, weight_decay
        self.momentum = np.zeros_like(self.weight)
        self.second_moment = np.zeros(len(self.weight))

    def step(self, grad):
        grad = grad.numpy()
        self.momentum = 0.95 * self.momentum + grad
        direction = self.polar(grad + 0.95 * self.momentum)
        norm = np.linalg.norm(direction)
        self.second_moment = 0.95 * self.second_moment + 0.05 * (direction**2).mean(axis=1)
        direction = direction / (np.sqrt(self.second_moment)[:, None] + 1e-8)
        direction = direction * (norm / np.linalg.norm(direction))
        decay = np.where(self.weight * direction >= 0, self.lr * self.weight_decay, 0.0)
        self.weight = self.weight * (1 - decay)
        self.weight = self.weight - self.lr * 0.2 * np.sqrt(max(self.weight.shape)) * direction

    @staticmethod
    def polar(update):
        if update.shape[0] > update.shape[1]:
            return Reference.polar(update.T).T
        x = update / (1.01 * np.linalg.norm(update) + 1e-7)
        for a, b, c in (
            (8.2373125, -23.1577474, 16.6805684),
            (4.0824420, -2.8930477, 0.5252849),
            (3.9263480, -2.8547468, 0.5318022),
            (3.2982187, -2.4245420, 0.4863201),
            (2.3200073, -1.6862170, 0.4206803),
        ):
            gram = x @ x.T
            x = a * x + (b * gram + c * gram @ gram) @ x
        return x


def test_float64_equals_the_method():
    starts = draw(SHAPES, seed=0)
    grads = [draw(SHAPES, seed=1 + step) for step in range(8)]
    references = [Reference(start, lr=1e-2, weight_decay=0.5) for start in starts]
    for weights, step_grads in zip(run(starts, grads, lr=1e-2, weight_decay=0.5), grads, strict=True):
        for reference, weight, grad in zip(references, weights, step_grads, strict=True):
            reference.step(grad)
            np.testing.assert_allclose(weight.numpy(), reference.weight, rtol=0, atol=1e-10)


def test_float32_equals_float64_up_to_rounding():
    starts, grads = draw(SHAPES, seed=0), [draw(SHAPES, seed=1 + step) for step in range(4)]
    exact = run(starts, grads)[-1]
    single = run([start.float() for start in starts], [[g.float() for g in step] for step in grads])[-1]
    for start, one, other in zip(starts, exact, single, strict=True):
        assert relative_difference(one - start, other.double() - start.float().double()) < 1e-4


@pytest.mark.skipif(not RECORD.exists(), reason="the recorded dion run is not beside this checkout")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("matrix", range(4))
def test_follows_the_recorded_dion_run(matrix, dtype):
    with np.load(RECORD, allow_pickle=False) as record:
        start = torch.from_numpy(record[f"start{matrix}"])
        grads = [[torch.from_numpy(record[f"grad{matrix}_{t}"]).to(dtype)] for t in range(20)]
        recorded = {t: torch.from_numpy(record[f"after{matrix}_{t}"]).double() for t in (0, 1, 4, 9, 19)}
    history = run([start.to(dtype)], grads)
    # The record orthogonalised in bf16. A single row has one singular value, where bf16 cancels worst.
    allowed = (
        {0: 0.04, 1: 0.035, 4: 0.025, 9: 0.019, 19: 0.014} if matrix != 3 else dict.fromkeys(recorded, 0.105)
    )
    for t, after in recorded.items():
        ours = history[t][0].double() - start.double()
        assert relative_difference(after - start.double(), ours) < allowed[t], f"step {t}"


def relative_difference(one, other):
    return ((one - other).norm() / one.norm()).item()


def test_agrees_with_pytorch_optimizer(monkeypatch):
    # Its bf16 iteration runs in float64 here, so that only the algorithms are compared. It normalises by the
    # norm alone: dividing by 1.01 moves into the first quintic.
    exact_polar = functools.partial(oracle.zero_power_via_newton_schulz_5, dtype=torch.float64)
    monkeypatch.setattr(oracle, "zero_power_via_newton_schulz_5", exact_polar)
    a, b, c = POLAR_COEFFICIENTS[0]
    coefficients = ((a / 1.01, b / 1.01**3, c / 1.01**5), *POLAR_COEFFICIENTS[1:])
    starts, grads = draw(SHAPES, seed=3), [draw(SHAPES, seed=4 + step) for step in range(6)]
    weights = [nn.Parameter(start.clone()) for start in starts]
    theirs = oracle.NorMuon(
        [{"params": weights, "use_muon": True}],
        lr=1e-2,
        weight_decay=0.0,
        ns_coeffs=coefficients,
        use_adjusted_lr=True,
        eps=1e-8,
        foreach=False,
    )
    for step in grads:
        for weight, grad in zip(weights, step, strict=True):
            weight.grad = grad.clone()  # it changes gradients in place
        theirs.step()
    ours = run(starts, grads, lr=1e-2, weight_decay=0.0)[-1]
    for start, weight, other in zip(starts, weights, ours, strict=True):
        assert relative_difference(weight.detach() - start, other - start) < 1e-5


@pytest.mark.parametrize("shape", [(24, 40), (40, 24), (32, 32)])
def test_polar_is_near_the_exact_factor(shape):
    (matrix,) = draw([shape], seed=0)
    left, _, right = torch.linalg.svd(matrix, full_matrices=False)
    # Five quintics bring singular values from 1e-3 … 1 to within some ten per cent of 1.
    assert relative_difference(left @ right, polar_express(matrix)) < 0.12


def test_polar_of_a_stack_a_transpose_and_a_multiple():
    stack = torch.stack(draw([(6, 10)] * 3, seed=0))
    together = polar_express(stack)
    for matrix, result in zip(stack, together, strict=True):
        torch.testing.assert_close(polar_express(matrix), result, rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(polar_express(matrix.mT), result.mT, rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(polar_express(1000 * matrix), result, rtol=1e-5, atol=1e-7)


def test_orthogonalisation_dtype():
    assert polar_dtype(torch.empty(2, 2)) == torch.float32
    assert polar_dtype(torch.empty(2, 2, dtype=torch.bfloat16)) == torch.float32
    assert polar_dtype(torch.empty(2, 2, dtype=torch.float64)) == torch.float64
    assert polar_dtype(torch.empty(2, 2, device="meta")) == torch.bfloat16  # any device but the CPU


def degenerate_gradients():
    full = torch.randn(8, 12, generator=torch.Generator().manual_seed(0))
    zero_row, rank_one = full.clone(), full[:, :1] @ full[:1]
    zero_row[3] = 0
    return {
        "rank one": rank_one,
        "zero row": zero_row,
        "zero": torch.zeros(8, 12),
        "tiny": full * 1e-30,
        "huge": full * 1e15,
        "one row": full[:1],
        "one column": full[:, :1],
        "one element": full[:1, :1],
    }


@pytest.mark.parametrize(("name", "grad"), degenerate_gradients().items())
def test_degenerate_gradients_give_finite_bounded_steps(name, grad):
    start = torch.ones_like(grad)
    for weights in run([start], [[grad]] * 5, lr=1e-2, weight_decay=0.0):
        assert torch.isfinite(weights[0]).all()
    # Singular values end near 1, so a step moves the weights by about lr · 0.2·√max · √rank at most.
    limit = 5 * 1e-2 * 0.2 * max(grad.shape) ** 0.5 * min(grad.shape) ** 0.5 * 1.2
    assert (weights[0] - start).norm() <= limit
    if name in ("zero", "zero row"):
        still = grad.abs().sum(1) == 0
        assert torch.equal(weights[0][still], start[still])


def test_zero_gradient_still_decays():
    start = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    ((after,),) = run([start], [[torch.zeros(4, 6)]], lr=1e-2, weight_decay=0.5)
    torch.testing.assert_close(after, start * (1 - 1e-2 * 0.5))


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
