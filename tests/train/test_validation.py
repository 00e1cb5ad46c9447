import pytest
import torch

from veca.train.losses import Losses, distillation_loss
from veca.train.validation import ConstantBaseline, GridMean
from veca.types import Features, Targets


def random_targets(batch: int, seed: int) -> Targets:
    generator = torch.Generator().manual_seed(seed)
    mean = torch.randn(6, 8, generator=torch.Generator().manual_seed(99))
    patches = mean + 0.5 * torch.randn(batch, 6, 8, generator=generator)
    return Targets(torch.randn(batch, 8, generator=generator) + 1, patches)


def test_the_constant_equals_a_predictor_of_the_mean() -> None:
    batches = [random_targets(5, 1), random_targets(3, 2)]
    metric = ConstantBaseline(width=8, num_patches=6, dense_weight=0.7, mse_weight=1.3)
    for batch in batches:
        metric.update(batch)
    found = metric.compute()

    both = Targets(*(torch.cat(parts) for parts in zip(*batches, strict=True)))
    constant = Features(
        both.cls.mean(0).expand(8, -1), both.patches.mean(0).expand(8, -1, -1), both.cls[:, None], (2, 3)
    )
    expected = distillation_loss(constant, both, dense_weight=0.7, mse_weight=1.3)
    torch.testing.assert_close(found["constant/loss"], expected.loss)
    torch.testing.assert_close(found["constant/loss_cls"], expected.loss_cls)
    torch.testing.assert_close(found["constant/loss_dense"], expected.loss_dense)


def test_means_weigh_by_sample_count() -> None:
    metric = GridMean((8, 64))

    def losses(value: float) -> Losses:
        return Losses(*(torch.tensor(value + i) for i in range(5)))

    metric.update(8, losses(1.0), 30)
    metric.update(8, losses(2.0), 10)
    metric.update(64, losses(5.0), 40)
    means = metric.compute()
    assert float(means["b8/loss"]) == 1.25
    assert float(means["b8/loss_dense"]) == 3.25
    assert float(means["b64/loss_cls"]) == 6.0


@pytest.mark.filterwarnings("ignore:The ``compute`` method")
def test_no_samples_give_no_numbers() -> None:
    assert GridMean((8,)).compute() == {}
    assert ConstantBaseline(width=2, num_patches=1, dense_weight=1, mse_weight=1).compute() == {}
