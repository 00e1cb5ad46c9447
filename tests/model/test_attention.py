import itertools

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from veca.model.attention import CoreAttention
from veca.model.rope import frequencies, rotation
from veca.model.sizes import SIZES


def flops(name: str, patches: int, cores: int) -> int:
    size = SIZES[name]
    with torch.device("meta"):
        attention = CoreAttention(width=size.width, num_heads=size.num_heads)
        x = torch.empty(1, cores + patches, size.width)
        turns = torch.empty(1, cores + patches, size.head_width // 2, 2)
    with FlopCounterMode(display=False) as counter:
        attention(x, turns, cores)
    return int(counter.get_total_flops())


@pytest.mark.parametrize(("name", "giga"), [("small", 5.72), ("base", 21.25), ("large", 37.06)])
def test_flops_equal_the_papers_formula(name: str, giga: float) -> None:
    d, n, c = SIZES[name].width, 4096, 64
    counted = flops(name, n, c)
    assert counted == 8 * (n + c) * d**2 + 4 * d * (c * (n + c) + n * c)
    assert round(counted / 1e9, 2) == giga


def test_cost_is_linear_in_patches() -> None:
    steps = [flops("small", n, 64) for n in (256, 512, 768, 1024)]
    assert len({b - a for a, b in itertools.pairwise(steps)}) == 1


def test_without_gradients_the_result_is_the_same() -> None:
    """Three products there, one of joined weights here."""
    torch.manual_seed(0)
    attention = CoreAttention(width=16, num_heads=2).double()
    x = torch.randn(2, 8, 16).double()
    turns = rotation(torch.rand(2, 8, 2).double(), frequencies(8, device=x.device, dtype=x.dtype))
    with_gradients = attention(x, turns, 3)
    with torch.no_grad():
        torch.testing.assert_close(attention(x, turns, 3), with_gradients, rtol=1e-12, atol=1e-13)


def test_contributions_equal_a_loop_over_pairs() -> None:
    torch.manual_seed(0)
    heads, width, cores, total = 2, 16, 3, 8
    h = width // heads
    attention = CoreAttention(width=width, num_heads=heads).double()
    x = torch.randn(2, total, width).double()
    turns = rotation(torch.rand(2, total, 2).double(), frequencies(h, device=x.device, dtype=x.dtype))
    found = attention.contributions(x, turns, cores)

    q, k, v = attention.project(x, turns)
    out = attention.out.weight
    for b in range(2):
        for i in range(cores):
            norms = []
            for j in range(total):
                vector = torch.zeros(width).double()
                for n in range(heads):
                    a = torch.softmax(q[b, n, i] @ k[b, n].T / h**0.5, 0)[j]
                    vector += a * (out[:, n * h : (n + 1) * h] @ v[b, n, j])
                norms.append(vector.norm())
            shares = torch.stack(norms) / sum(norms)
            torch.testing.assert_close(found[b, i], shares[cores:], rtol=1e-9, atol=1e-12)
