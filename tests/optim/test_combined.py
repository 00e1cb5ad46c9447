"""One object for both: AdamW as torch has it, inactive parameters untouched, state that survives a file."""

import copy
import io
import sys
import types

import lightning
import pytest
import torch
from torch import nn
from transformers import DINOv3ViTConfig, DINOv3ViTModel

from veca import create_model
from veca.optim.combined import NorMuonAdamW, ParameterSplit, make_optimizer, split_parameters
from veca.optim.settings import Optimization

OPTIONS = {"lr": 1e-2, "weight_decay": 0.1, "backend": "veca"}


def parameters(split):
    return [parameter for _, parameter in [*split.matrices, *split.rest]]


def test_groups_name_their_algorithm(make_split):
    split = make_split()
    groups = make_optimizer(split, **OPTIONS).param_groups
    assert [group["algorithm"] for group in groups] == ["normuon", "adamw"]
    assert [len(group["params"]) for group in groups] == [len(split.matrices), len(split.rest)]
    assert all(group["lr"] == 1e-2 and group["weight_decay"] == 0.1 for group in groups)


def test_adamw_is_torch_adamw_bit_for_bit(make_split, draw_grads):
    ours, theirs = make_split(), make_split()
    optimizer = make_optimizer(ours, **OPTIONS)
    reference = torch.optim.AdamW(
        [parameter for _, parameter in theirs.rest], lr=1e-2, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.1
    )
    for step in range(6):
        for split in (ours, theirs):
            draw_grads(split, step, without=(4,) if step in (0, 3) else ())
        optimizer.step()
        reference.step()
    for (_, one), (_, other) in zip(ours.rest, theirs.rest, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("absent", [0, 3, 4, 6])  # matrices are 0–3, the rest 4–6
def test_without_a_gradient_nothing_changes(make_split, draw_grads, absent):
    split = make_split()
    optimizer = make_optimizer(split, **OPTIONS)
    for step in range(3):
        draw_grads(split, step)
        optimizer.step()
    parameter = parameters(split)[absent]
    weight, state = parameter.detach().clone(), copy.deepcopy(optimizer.state[parameter])
    others = [other.detach().clone() for other in parameters(split)]
    draw_grads(split, 3, without=(absent,))
    optimizer.step()
    assert torch.equal(parameter, weight)
    assert all(torch.equal(optimizer.state[parameter][key], value) for key, value in state.items())
    moved = [not torch.equal(a, b) for a, b in zip(parameters(split), others, strict=True)]
    assert moved == [index != absent for index in range(len(moved))]


def test_never_active_parameters_have_no_state(make_split, draw_grads):
    split = make_split()
    optimizer = make_optimizer(split, **OPTIONS)
    draw_grads(split, 0, without=(1, 5))
    optimizer.step()
    assert set(optimizer.state_dict()["state"]) == {0, 2, 3, 4, 6}


def test_resumed_run_equals_the_uninterrupted_one(make_split, draw_grads):
    def train(split, optimizer, steps):
        for step in steps:
            draw_grads(split, step, without=(step % 7,))
            optimizer.step()

    whole, first = make_split(), make_split()
    train(whole, make_optimizer(whole, **OPTIONS), range(8))
    saved = make_optimizer(first, **OPTIONS)
    train(first, saved, range(4))
    file = io.BytesIO()
    torch.save(saved.state_dict(), file)
    file.seek(0)

    resumed = make_optimizer(first, **OPTIONS | {"lr": 7.0})  # the saved rate counts, as in torch
    resumed.load_state_dict(torch.load(file, weights_only=True))
    train(first, resumed, range(4, 8))
    assert all(torch.equal(a, b) for a, b in zip(parameters(whole), parameters(first), strict=True))


def test_state_of_another_backend_is_refused(make_split):
    optimizer = make_optimizer(make_split(), **OPTIONS)
    state = optimizer.state_dict()
    for group in state["param_groups"]:
        group["mu"] = group.pop("momentum", None)
    with pytest.raises(ValueError, match=r"same backend; its normuon group has no momentum"):
        optimizer.load_state_dict(state)


def test_closure_runs_with_gradients_and_returns_the_loss(make_split):
    split = make_split()
    optimizer = make_optimizer(split, **OPTIONS)

    def closure():
        loss = sum(parameter.square().sum() for parameter in parameters(split))
        loss.backward()
        return loss

    before = closure().item()
    assert optimizer.step(closure).item() == before
    assert closure().item() < before


def test_step_never_reads_a_value_from_the_device(make_split):
    split = ParameterSplit(
        *(
            [(name, nn.Parameter(parameter.detach().to("meta"))) for name, parameter in part]
            for part in make_split()
        )
    )
    optimizer = make_optimizer(split, **OPTIONS)
    for _ in range(2):
        for parameter in parameters(split):
            parameter.grad = torch.empty_like(parameter)
        optimizer.step()  # a meta tensor has no values: reading one would raise


def test_a_backend_is_one_of_three(make_split):
    with pytest.raises(ValueError, match="backend must be one of auto, veca, dion; got 'adam'"):
        make_optimizer(make_split(), lr=1.0, weight_decay=0.0, backend="adam")


def test_without_dion_auto_is_ours_and_dion_an_error(make_split, monkeypatch):
    monkeypatch.setitem(sys.modules, "dion", None)  # import fails
    assert isinstance(make_optimizer(make_split(), lr=1.0, weight_decay=0.0), NorMuonAdamW)
    with pytest.raises(ValueError, match=r"pip install git\+https://github.com/microsoft/dion.*\"veca\""):
        make_optimizer(make_split(), lr=1.0, weight_decay=0.0, backend="dion")


class RecordingNorMuon(torch.optim.Optimizer):
    """Takes the arguments of dion.NorMuon and keeps them."""

    def __init__(self, params, **arguments):
        self.arguments = arguments
        super().__init__(params, {"algorithm": "normuon"})


def test_dion_is_asked_for_the_same_algorithm(make_split, monkeypatch):
    monkeypatch.setitem(sys.modules, "dion", types.SimpleNamespace(NorMuon=RecordingNorMuon))
    split = make_split()
    optimizer = make_optimizer(split, lr=1e-2, weight_decay=0.1)
    polar = optimizer.arguments.pop("newton_schulz_func")
    assert optimizer.arguments == {
        "distributed_mesh": None,
        "lr": 1e-2,
        "mu": 0.95,
        "muon_beta2": 0.95,
        "betas": (0.9, 0.999),
        "weight_decay": 0.1,
        "epsilon": 1e-8,
        "nesterov": True,
        "adjust_lr": "rms_norm",
        "flatten": False,
    }
    assert [(g["algorithm"], g["cautious_wd"]) for g in optimizer.param_groups] == [
        ("normuon", True),
        ("adamw", False),
    ]
    assert polar(torch.eye(3), epsilon=1e-8).shape == (3, 3)


def test_dion_gives_the_same_weights(make_split, draw_grads):
    pytest.importorskip("dion")
    ours, theirs = make_split(), make_split()
    starts = [parameter.detach().clone() for parameter in parameters(ours)]
    for split, backend in ((ours, "veca"), (theirs, "dion")):
        optimizer = make_optimizer(split, **OPTIONS | {"backend": backend})
        for step in range(5):
            draw_grads(split, step)
            optimizer.step()
    for start, one, other in zip(starts, parameters(ours), parameters(theirs), strict=True):
        difference = (one - other).norm() / (one - start).norm()
        assert difference < 0.05  # dion rounds the look-ahead to bf16 before the orthogonalisation


class Student(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(
            [nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4)) for _ in range(2)]
        )

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x)
        return x


class Regression(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.student = Student()
        self.rates, self.norms = [], []

    def training_step(self, batch, _):
        (x,) = batch
        return (100 * (self.student(x) - x.flip(-1))).square().mean()

    def on_before_optimizer_step(self, optimizer):
        self.rates.append([group["lr"] for group in optimizer.param_groups])

    def on_before_zero_grad(self, optimizer):
        grads = [p.grad for p in self.student.parameters() if p.grad is not None]
        if grads:
            self.norms.append(nn.utils.get_total_norm(grads).item())

    def configure_optimizers(self):
        settings = Optimization(**OPTIONS, min_lr=1e-3, warmup_steps=2)
        optimizer, scheduler = settings.make(self.student, max_steps=5, steps_per_epoch=5)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


@pytest.mark.filterwarnings("ignore:.*does not have many workers")
@pytest.mark.filterwarnings("ignore:.*LeafSpec.* is deprecated:FutureWarning")  # Lightning's own use of torch
def test_lightning_counts_accumulates_and_clips_with_one_counter():
    torch.manual_seed(0)
    module = Regression()
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_steps=5,
        accumulate_grad_batches=2,
        gradient_clip_val=0.5,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    data = torch.utils.data.TensorDataset(torch.randn(40, 4))
    trainer.fit(module, torch.utils.data.DataLoader(data, batch_size=4))
    optimizer = trainer.optimizers[0]
    assert trainer.global_step == 5
    assert {state["step"].item() for state in optimizer.state.values() if "step" in state} == {5.0}
    assert module.rates == [pytest.approx([rate] * 2) for rate in (1e-3, 5.5e-3, 1e-2, 7.75e-3, 3.25e-3)]
    assert max(module.norms) == pytest.approx(0.5, rel=1e-4)


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
