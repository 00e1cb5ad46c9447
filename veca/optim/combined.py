"""One optimizer object that steps both algorithms: NorMuon for the matrices, AdamW for the rest.

Lightning's automatic optimization takes one optimizer; two would need manual optimization, which counts
`global_step` twice and ignores accumulation and clipping. Each parameter group names its `algorithm`.
A parameter without a gradient keeps its weight, moments and step count, bit for bit: so do inactive cores.

The paper used the dion library, which installs from its repository only: it is taken where it can be
imported, ours otherwise.

Which algorithm owns which parameter, for a Veca and for a plain ViT alike: NorMuon takes the weight of every
`nn.Linear` inside a block, except the last linear of the last block (its FFN output); AdamW takes everything
else. Blocks are those elements of an `nn.ModuleList` that hold linears without being one: a list of bare
linears (the coordinate heads) is no list of blocks. What stands outside the blocks (patch embedding, output
projection) is AdamW's.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, overload

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim.adamw import adamw

from veca.optim.normuon import normuon_step, num_ranks, polar_express

NamedParameters = list[tuple[str, nn.Parameter]]
Backend = Literal["auto", "veca", "dion"]
DION = "pip install git+https://github.com/microsoft/dion"  # no extra: PyPI refuses URLs in metadata
ADAMW_EPS = 1e-8


class ParameterSplit(NamedTuple):
    """Every trainable parameter, once."""

    matrices: NamedParameters  # NorMuon
    rest: NamedParameters  # AdamW

    def describe(self) -> str:
        """One line for the log."""
        parts = (("NorMuon", "matrices", self.matrices), ("AdamW", "tensors", self.rest))
        return "; ".join(
            f"{optimizer}: {len(named)} {kind}, {sum(p.numel() for _, p in named):,} parameters"
            for optimizer, kind, named in parts
        )


def split_parameters(student: nn.Module) -> ParameterSplit:
    """Divide the trainable parameters of `student` between NorMuon and AdamW."""
    linears = [linear for block in _blocks(student) for linear in _linears(block)]
    if not linears:
        raise ValueError(
            f"student must hold its blocks in an nn.ModuleList, for NorMuon to find their matrices; "
            f"{type(student).__name__} has no such list. Wrap its blocks: nn.ModuleList([block, …])."
        )
    # Identity, not name or equality: a weight shared by two modules is one parameter.
    hidden = {id(linear.weight) for linear in linears} - {id(linears[-1].weight)}
    split = ParameterSplit([], [])
    for name, parameter in student.named_parameters():
        if parameter.requires_grad:
            (split.matrices if id(parameter) in hidden else split.rest).append((name, parameter))
    return split


def make_optimizer(
    split: ParameterSplit,
    *,
    lr: float,
    weight_decay: float,
    momentum: float = 0.95,
    beta2: float = 0.95,
    betas: tuple[float, float] = (0.9, 0.999),
    backend: Backend = "auto",
    bf16_on_cpu: bool = False,
) -> torch.optim.Optimizer:
    """NorMuon for `split.matrices`, AdamW for `split.rest`, in one object with two parameter groups.

    Decay is cautious for the matrices, plain for everything else; `bf16_on_cpu` lets NorMuon orthogonalise in
    bf16 on a CPU too, as it does on GPUs. dion corrects AdamW's bias by the steps of the run, ours (like
    torch) by the steps in which the parameter had a gradient.
    """
    if backend not in ("auto", "veca", "dion"):
        raise ValueError(f"backend must be one of auto, veca, dion; got {backend!r}. Try auto.")
    make_dion = None if backend == "veca" else _find_dion()
    if backend == "dion" and make_dion is None:
        raise ValueError(
            'backend "dion" needs the dion library, which cannot be imported. '
            f'Install it with `{DION}`, or choose backend "veca".'
        )
    make = NorMuonAdamW if make_dion is None else make_dion
    return make(
        split,
        lr=lr,
        weight_decay=weight_decay,
        momentum=momentum,
        beta2=beta2,
        betas=betas,
        bf16_on_cpu=bf16_on_cpu,
    )


class NorMuonAdamW(torch.optim.Optimizer):
    """Our implementation of both: group 0 is "normuon", group 1 "adamw"."""

    def __init__(
        self,
        split: ParameterSplit,
        *,
        lr: float,
        weight_decay: float,
        momentum: float,
        beta2: float,
        betas: tuple[float, float],
        bf16_on_cpu: bool = False,
    ) -> None:
        self._bf16_on_cpu = bf16_on_cpu
        matrices, rest = _parameters(split.matrices), _parameters(split.rest)
        groups: list[dict[str, Any]] = [
            {"params": matrices, "algorithm": "normuon", "momentum": momentum, "beta2": beta2},
            {"params": rest, "algorithm": "adamw", "betas": betas, "eps": ADAMW_EPS},
        ]
        super().__init__(groups, {"lr": lr, "weight_decay": weight_decay})

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            if group["algorithm"] == "normuon":
                self._step_normuon(group)
            else:
                self._step_adamw(group)
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As torch does, after a check that the same implementation wrote the state."""
        for ours, saved in zip(self.param_groups, state_dict["param_groups"], strict=False):
            missing = ours.keys() - saved.keys() - {"initial_lr"}
            if missing:
                raise ValueError(
                    f"optimizer state must come from the same backend; its {ours['algorithm']} group has no "
                    f'{", ".join(sorted(missing))}. Choose the backend that wrote it ("dion"?).'
                )
        super().load_state_dict(state_dict)

    def _step_normuon(self, group: dict[str, Any]) -> None:
        hyper = {key: group[key] for key in ("lr", "weight_decay", "momentum", "beta2")}
        normuon_step(group["params"], self.state, bf16_on_cpu=self._bf16_on_cpu, **hyper)

    def _step_adamw(self, group: dict[str, Any]) -> None:
        active = [parameter for parameter in group["params"] if parameter.grad is not None]
        if not active:
            return
        states = [self._adamw_state(parameter) for parameter in active]
        adamw(
            active,
            [parameter.grad for parameter in active],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [state["step"] for state in states],
            amsgrad=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )

    def _adamw_state(self, parameter: Tensor) -> dict[str, Tensor]:
        state: dict[str, Tensor] = self.state[parameter]
        if not state:
            # On the CPU, as in torch.optim.AdamW: the bias correction then needs no device sync.
            state["step"] = torch.tensor(0.0, dtype=torch.float32)
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        return state


def _find_dion() -> Callable[..., torch.optim.Optimizer] | None:
    """A maker with the arguments of NorMuonAdamW, or None where dion cannot be imported."""
    try:
        from dion import NorMuon
    except ImportError:
        return None

    def make(
        split: ParameterSplit, *, momentum: float, beta2: float, bf16_on_cpu: bool, **common: Any
    ) -> torch.optim.Optimizer:
        optimizer: torch.optim.Optimizer = NorMuon(
            [
                {"params": _parameters(split.matrices), "cautious_wd": True},
                {"params": _parameters(split.rest), "algorithm": "adamw", "cautious_wd": False},
            ],
            distributed_mesh=dist.group.WORLD if num_ranks() > 1 else None,
            mu=momentum,
            muon_beta2=beta2,
            epsilon=ADAMW_EPS,
            nesterov=True,
            adjust_lr="rms_norm",
            flatten=False,
            # dion's own default coefficients differ slightly; its second argument is its own epsilon.
            newton_schulz_func=lambda updates, epsilon: polar_express(updates, bf16_on_cpu=bf16_on_cpu),
            **common,  # lr, weight_decay, betas
        )
        return optimizer

    return make


def _parameters(named: NamedParameters) -> list[nn.Parameter]:
    return [parameter for _, parameter in named]


def _blocks(module: nn.Module) -> list[nn.Module]:
    """Elements of the outermost lists of blocks, in the order of registration."""
    if isinstance(module, nn.ModuleList) and any(map(_is_block, module)):
        return [element for element in module if _is_block(element)]
    return [block for child in module.children() for block in _blocks(child)]


def _is_block(module: nn.Module) -> bool:
    return not isinstance(module, nn.Linear) and bool(_linears(module))


def _linears(module: nn.Module) -> list[nn.Linear]:
    return [child for child in module.modules() if isinstance(child, nn.Linear)]
