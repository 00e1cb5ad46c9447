"""Which optimizer owns which parameter: a student comes in, two lists of (name, parameter) go out.

The rule, for a Veca and for a plain ViT alike: NorMuon takes the weight of every `nn.Linear` inside a block,
except the last linear of the last block (its FFN output); AdamW takes everything else. Blocks are those
elements of an `nn.ModuleList` that hold linears without being one: a list of bare linears (the coordinate
heads) is no list of blocks. What stands outside the blocks (patch embedding, output projection) is AdamW's.
"""

from typing import NamedTuple

from torch import nn

NamedParameters = list[tuple[str, nn.Parameter]]


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


def _blocks(module: nn.Module) -> list[nn.Module]:
    """Elements of the outermost lists of blocks, in the order of registration."""
    if isinstance(module, nn.ModuleList) and any(map(_is_block, module)):
        return [element for element in module if _is_block(element)]
    return [block for child in module.children() for block in _blocks(child)]


def _is_block(module: nn.Module) -> bool:
    return not isinstance(module, nn.Linear) and bool(_linears(module))


def _linears(module: nn.Module) -> list[nn.Linear]:
    return [child for child in module.modules() if isinstance(child, nn.Linear)]
