"""The split by name, for the student and for a plain ViT."""

import pytest
from torch import nn
from transformers import DINOv3ViTConfig, DINOv3ViTModel

from veca import create_model
from veca.optim import split_parameters


def names(named):
    return [name for name, _ in named]


@pytest.fixture(scope="module")
def base_like():
    """Base's depth and names at a width that builds at once."""
    return create_model("base", width=32, num_heads=2, out_width=48)


def test_base_gives_71_matrices_by_name(base_like):
    expected = [
        f"blocks.{layer}.{part}.weight"
        for layer in range(12)
        for part in ("attn.q", "attn.k", "attn.v", "attn.out", "ffn.fc1", "ffn.fc2")
    ]
    expected.remove("blocks.11.ffn.fc2.weight")
    assert len(expected) == 71
    assert sorted(names(split_parameters(base_like).matrices)) == sorted(expected)


def test_heads_projection_cores_norms_and_biases_go_to_adamw(base_like):
    rest = set(names(split_parameters(base_like).rest))
    assert {
        "patch_embed.weight",
        "cores.tokens.0",
        "cores.coordinates.7",
        "coordinate_scales",
        "coordinate_heads.0.weight",
        "coordinate_heads.10.bias",
        "blocks.0.attn.q.bias",
        "blocks.3.norm_ffn.weight",
        "blocks.11.ffn.fc2.weight",
        "final_norm.bias",
        "output_proj.weight",
    } <= rest


@pytest.mark.parametrize("gated", [False, True])
def test_a_plain_vit_follows_the_same_rule(gated):
    vit = DINOv3ViTModel(
        DINOv3ViTConfig(
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=3,
            num_attention_heads=2,
            use_gated_mlp=gated,
        )
    )
    split = split_parameters(vit)
    linears = [f"{name}.weight" for name, module in vit.named_modules() if isinstance(module, nn.Linear)]
    last = next(name for name in linears if name.endswith("layer.2.mlp.down_proj.weight"))
    assert sorted(names(split.matrices)) == sorted(set(linears) - {last})
    assert last in names(split.rest)


def test_every_trainable_parameter_is_listed_once(base_like):
    split = split_parameters(base_like)
    listed = [id(parameter) for _, parameter in [*split.matrices, *split.rest]]
    assert len(listed) == len(set(listed))
    assert set(listed) == {id(parameter) for parameter in base_like.parameters()}
    assert all(parameter.ndim == 2 for _, parameter in split.matrices)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn = nn.Linear(4, 4)
        self.ffn = nn.ModuleList(
            [nn.Linear(4, 8), nn.Linear(8, 4)]
        )  # a list inside a block is no list of blocks


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(4, 2)


def test_lists_inside_a_block_belong_to_it():
    matrices = names(split_parameters(Plain()).matrices)
    assert matrices == [
        "blocks.0.attn.weight",
        "blocks.0.ffn.0.weight",
        "blocks.0.ffn.1.weight",
        "blocks.1.attn.weight",
        "blocks.1.ffn.0.weight",
    ]


def test_frozen_parameters_are_left_out_and_shared_ones_listed_once():
    student = Plain()
    student.blocks[0].attn.requires_grad_(False)
    student.blocks[1].attn.weight = student.blocks[0].ffn[1].weight = nn.Parameter(
        student.head.weight.new_ones(4, 4)
    )
    split = split_parameters(student)
    listed = names(split.matrices) + names(split.rest)
    assert not any(name.startswith("blocks.0.attn") for name in listed)
    assert "blocks.0.ffn.1.weight" in listed
    assert "blocks.1.attn.weight" not in listed


def test_no_blocks_is_an_error_with_a_way_out():
    with pytest.raises(ValueError, match=r"ModuleList.*Linear has no such list"):
        split_parameters(nn.Linear(3, 3))


def test_describe_counts_both_sides():
    assert split_parameters(Plain()).describe() == (
        "NorMuon: 5 matrices, 128 parameters; AdamW: 9 tensors, 74 parameters"
    )
