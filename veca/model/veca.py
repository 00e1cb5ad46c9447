"""The student: a vision transformer whose patches talk only through a small bank of cores (paper §3).

In: normalised images (B, 3, H, W), any multiple of the patch size, and a budget, the number of active
cores. Out: `Features`. One set of weights serves every budget, because a budget is a prefix of the bank.

Shapes: B batch, C active cores, N patches, T = C + N tokens, D width, L layers, h head width.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from veca.model.block import NORM_EPS, Block
from veca.model.cores import CoreBank
from veca.model.hub import HubFolder
from veca.model.regions import Memory, read, remember
from veca.model.rope import augment_coordinates, frequencies, patch_coordinates, rotation
from veca.model.sizes import Size, check_size, resolve_size
from veca.types import Features, check_images

INIT_STD = 0.02
COORDINATE_STEP = 0.01


class Layer(NamedTuple):
    """What an observer of the forward pass sees of one layer."""

    block: Block
    before: Tensor  # (B, T, D) residual stream that enters the block, cores first
    after: Tensor  # (B, T, D)
    places: Tensor  # (B, C, 2) core coordinates in [-1, 1]², used by this layer
    rotation: Tensor  # (B, T, h/2, 2)


class Trace(NamedTuple):
    """A forward pass with what the cores did, layer by layer."""

    features: Features
    places: Tensor  # (L, B, C, 2), (x, y) in [-1, 1]²
    contributions: Tensor  # (L, B, C, N), share of each core's output that each patch contributes


class Veca(nn.Module, HubFolder):
    """Visual Elastic Core Attention.

    Args:
        width: channels per token, D.
        depth: number of layers, L.
        num_heads: attention heads; the head width is width / num_heads.
        ffn_ratio: hidden width of the feed-forward, as a multiple of `width`.
        num_cores: size of the core bank, M.
        core_group: cores are switched on in groups of this size; budgets are its multiples.
        patch_size: side of a patch in pixels.
        in_channels: image channels.
        out_width: width of a linear projection of the output; None for no projection.
    """

    def __init__(
        self,
        *,
        width: int,
        depth: int,
        num_heads: int,
        ffn_ratio: float,
        num_cores: int = 64,
        core_group: int = 8,
        patch_size: int = 16,
        in_channels: int = 3,
        out_width: int | None = None,
    ) -> None:
        super().__init__()
        self.size = Size(
            width=width,
            depth=depth,
            num_heads=num_heads,
            ffn_ratio=ffn_ratio,
            num_cores=num_cores,
            core_group=core_group,
            patch_size=patch_size,
            in_channels=in_channels,
            out_width=out_width,
        )
        check_size(self.size)
        self.patch_embed = nn.Conv2d(in_channels, width, patch_size, stride=patch_size)
        self.cores = CoreBank(width=width, num_cores=num_cores, core_group=core_group)
        self.coordinate_heads = nn.ModuleList(nn.Linear(width, 2) for _ in range(depth - 1))
        self.coordinate_scales = nn.Parameter(torch.empty(depth - 1))
        self.blocks = nn.ModuleList(
            Block(width=width, num_heads=num_heads, ffn_width=self.size.ffn_width) for _ in range(depth)
        )
        self.final_norm = nn.LayerNorm(width, eps=NORM_EPS)
        self.output_proj = nn.Linear(width, out_width) if out_width else None

        self.activation_checkpointing = False  # recompute blocks in backward: less memory, more time
        self.augment_rope = True  # in training mode only
        self._eager_inference = False
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Conv2d):
                nn.init.trunc_normal_(module.weight, std=INIT_STD)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        nn.init.constant_(self.coordinate_scales, COORDINATE_STEP)

    @property
    def budgets(self) -> tuple[int, ...]:
        return self.size.budgets

    def forward(self, images: Tensor, budget: int | None = None) -> Features:
        """Features at a budget (default: all cores)."""
        return self._run(images, budget, None)

    def get_intermediate_layers(
        self,
        images: Tensor,
        n: int | Sequence[int] = 1,
        *,
        reshape: bool = False,
        return_class_token: bool = False,
        norm: bool = True,
        budget: int | None = None,
    ) -> tuple[Tensor, ...] | tuple[tuple[Tensor, Tensor], ...]:
        """Patches of the last `n` layers, or of the layers listed in `n`, as DINO users know it.

        Each entry is (B, N, D), or (B, D, rows, cols) with `reshape`, or a pair (patches, cls) with
        `return_class_token`. `norm` applies the final norm. The output projection belongs to the last
        layer's distillation head and is not applied here.
        """
        wanted = self._layer_numbers(n)
        outputs: dict[int, Tensor] = {}

        def keep(number: int, layer: Layer) -> None:
            if number in wanted:
                outputs[number] = self.final_norm(layer.after) if norm else layer.after

        features = self._run(images, budget, keep)
        cores = features.cores.shape[1]
        classes = [outputs[number][:, 0] for number in wanted]
        patches = [outputs[number][:, cores:] for number in wanted]
        if reshape:
            patches = [x.transpose(1, 2).unflatten(2, features.grid).contiguous() for x in patches]
        return tuple(zip(patches, classes, strict=True)) if return_class_token else tuple(patches)

    @torch.no_grad()
    def trace(self, images: Tensor, budget: int | None = None) -> Trace:
        """Features together with every layer's core places and attention contributions."""
        places, contributions = [], []

        def keep(number: int, layer: Layer) -> None:
            x = layer.block.norm_attn(layer.before)
            places.append(layer.places)
            contributions.append(layer.block.attn.contributions(x, layer.rotation, layer.places.shape[1]))

        features = self._run(images, budget, keep)
        return Trace(features, torch.stack(places), torch.stack(contributions))

    def remember(self, images: Tensor, budget: int | None = None) -> Memory:
        """What patches of these images read from the cores: with it, `read` gives their features alone."""
        return remember(self, images, budget)

    def read(self, memory: Memory, crops: Tensor, places: Tensor) -> Tensor:
        """Features (B, n, D) of the patches and places that `veca.model.regions.cut` gives."""
        return read(self, memory, crops, places)

    def compile_blocks(self, **options: Any) -> None:
        """Compile the layers in place, one graph for all of them, every budget and image size.

        Parameter names do not change. `options` go to `torch.compile`. With `dynamic=False` each budget and
        size has a graph of its own, for training alone: evaluation meets too many sizes.
        """
        options = {"dynamic": True, **options}
        self._eager_inference = not options["dynamic"]
        for block in self.blocks:
            block.compile(**options)

    def attend_plainly(self) -> None:
        """Train with plain products in place of torch's fused attention: faster in bf16 on a CPU."""
        for block in self.blocks:
            assert isinstance(block, Block)
            block.attn.plain = True

    @torch.no_grad()
    def load_patch_embedding(self, weight: Tensor, bias: Tensor) -> bool:
        """Start from a teacher's patch projection; False, and no change, when its shape is another."""
        if weight.shape != self.patch_embed.weight.shape:
            return False
        assert self.patch_embed.bias is not None
        self.patch_embed.weight.copy_(weight)
        self.patch_embed.bias.copy_(bias)
        return True

    def _run(
        self, images: Tensor, budget: int | None, observe: Callable[[int, Layer], None] | None
    ) -> Features:
        self._check_images(images)
        budget = self._check_budget(budget)
        patches = self.patch_embed(images)
        rows, cols = patches.shape[-2:]
        cores, coordinates = self.cores(budget)
        batch = images.shape[0]  # not len(), which would make an exported graph's batch a constant
        x = torch.cat((cores.expand(batch, -1, -1), patches.flatten(2).transpose(1, 2)), dim=1)

        precision = torch.promote_types(coordinates.dtype, torch.float32)
        turn_rate = frequencies(self.size.head_width, device=x.device, dtype=precision)
        centres = patch_coordinates(rows, cols, device=x.device, dtype=precision)
        if self.training and self.augment_rope:
            centres = augment_coordinates(centres)
        patch_rotation = rotation(centres, turn_rate).expand(batch, -1, -1, -1)
        coordinates = coordinates.to(precision).expand(batch, -1, -1)
        for number, block in enumerate(self.blocks):
            if number:
                coordinates = self._move(coordinates, x[:, :budget], number - 1)
            places = coordinates.tanh()
            turns = torch.cat((rotation(places, turn_rate), patch_rotation), dim=1)
            before, x = x, self._apply_block(block, x, turns, budget)
            if observe is not None:
                assert isinstance(block, Block)
                observe(number, Layer(block, before, x, places, turns))

        x = self.final_norm(x)
        if self.output_proj is not None:
            x = self.output_proj(x)
        return Features(cls=x[:, 0], patches=x[:, budget:], cores=x[:, :budget], grid=(rows, cols))

    def _apply_block(self, block: nn.Module, x: Tensor, turns: Tensor, budget: int) -> Tensor:
        if self.activation_checkpointing and torch.is_grad_enabled():
            out: Tensor = checkpoint(block, x, turns, budget, use_reentrant=False)
        elif self._eager_inference and not torch.is_grad_enabled():
            out = block.forward(x, turns, budget)
        else:
            out = block(x, turns, budget)
        return out

    def _move(self, coordinates: Tensor, cores: Tensor, k: int) -> Tensor:
        """The image-dependent step of the core coordinates, never below float32."""
        head, dtype = self.coordinate_heads[k], coordinates.dtype
        assert isinstance(head, nn.Linear)
        device = cores.device.type
        available = torch.amp.is_autocast_available(device)  # not on the meta device
        plain: AbstractContextManager[object]
        plain = torch.autocast(device, enabled=False) if available else nullcontext()
        with plain:
            step = nn.functional.linear(cores.to(dtype), head.weight.to(dtype), head.bias.to(dtype))
        return coordinates + self.coordinate_scales[k].to(dtype) * step

    def _layer_numbers(self, n: int | Sequence[int]) -> list[int]:
        depth = self.size.depth
        if isinstance(n, int):
            if not 1 <= n <= depth:
                raise ValueError(f"n must be between 1 and the number of layers, {depth}; got {n}.")
            return list(range(depth - n, depth))
        wrong = [number for number in n if not 0 <= number < depth]
        if wrong or not n:
            raise ValueError(f"n must list layers between 0 and {depth - 1}; got {list(n)}.")
        return list(n)

    def _check_images(self, images: Tensor) -> None:
        size = self.size
        check_images(images, channels=size.in_channels, patch_size=size.patch_size, normalised=True)

    def _check_budget(self, budget: int | None) -> int:
        if budget is None:
            return self.size.num_cores
        if isinstance(budget, bool) or budget not in self.budgets:
            near = sorted(self.budgets, key=lambda b: abs(b - budget))[:2] if isinstance(budget, int) else ()
            hint = f" Try {' or '.join(str(b) for b in sorted(near))}." if near else ""
            listed = ", ".join(map(str, self.budgets))
            raise ValueError(f"budget must be one of {listed}; got {budget!r}.{hint}")
        return budget


def create_model(name: str, **overrides: Any) -> Veca:
    """A model of a named size with fresh weights, in training mode.

    `overrides` replace fields of the preset: width, depth, num_heads, ffn_ratio, num_cores,
    core_group, patch_size, in_channels, out_width.
    """
    return Veca(**resolve_size(name, overrides).as_dict())
