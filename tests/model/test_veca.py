import copy

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounter

from tests.model import reference
from veca import Veca, create_model


def doubled(model: Veca) -> Veca:
    """Float64, with weights large enough that every path matters."""
    model = model.double().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "coordinates" not in name:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def images(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1)).double()


@pytest.mark.parametrize(("budget", "size"), [(16, (48, 64)), (4, (32, 32)), (8, (16, 16))])
def test_equals_masked_full_attention_forward_and_backward(
    tiny_student: Veca, budget: int, size: tuple[int, int]
) -> None:
    model, x = doubled(tiny_student), images(2, 3, *size)
    features = model(x, budget=budget)
    found = torch.cat((features.cores, features.patches), 1)
    weights = {name: p.detach().clone().requires_grad_() for name, p in model.named_parameters()}
    expected = reference.forward(weights, x, num_heads=2, num_cores=budget)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    assert torch.equal(features.cls, features.cores[:, 0])

    probe = images(*expected.shape)
    (found * probe).sum().backward()
    (expected * probe).sum().backward()
    for name, parameter in model.named_parameters():
        if parameter.grad is None:  # an inactive group: the reference sees zeros
            assert name.startswith("cores.")
            assert not weights[name].grad.any()
        else:
            torch.testing.assert_close(parameter.grad, weights[name].grad, rtol=1e-10, atol=1e-10, msg=name)


def test_patches_reach_patches_only_through_cores(tiny_student: Veca) -> None:
    model = doubled(tiny_student)
    x = images(1, 3, 64, 64)
    changed = x.clone()
    changed[..., :16, :16] += 1  # the first patch
    one, two = (
        [layer[0] for layer in model.get_intermediate_layers(pixels, n=[0, 1], norm=False)]
        for pixels in (x, changed)
    )
    assert torch.equal(one[0][1:], two[0][1:])  # after one block no other patch knows
    assert not torch.equal(one[0][0], two[0][0])
    assert (one[1] != two[1]).any(-1).all()  # after two, all do


def test_with_cores_blind_to_patches_no_patch_influences_another(tiny_student: Veca) -> None:
    """Cut the only road, cores reading patches, and the gradient from patch to patch vanishes."""
    model = doubled(tiny_student)
    for block in model.blocks:

        def blind(x: Tensor, turns: Tensor, budget: int, attend=block.attn.forward) -> Tensor:
            detached = torch.cat((x[:, :budget], x[:, budget:].detach()), 1)
            cores, patches = attend(detached, turns, budget), attend(x, turns, budget)
            return torch.cat((cores[:, :budget], patches[:, budget:]), 1)

        block.attn.forward = blind
    x = images(1, 3, 32, 32).requires_grad_()
    model(x).patches[0, 0].sum().backward()
    touched = x.grad[0].abs().sum(0)
    assert touched[:16, :16].all()
    touched[:16, :16] = 0
    assert not touched.any()


@pytest.mark.parametrize("budget", [4, 8, 12, 16])
def test_a_budget_equals_a_truncated_bank(tiny_student: Veca, budget: int) -> None:
    model = tiny_student.eval()
    size = {**model.size.as_dict(), "num_cores": budget}
    short = Veca(**size).eval()
    groups = budget // 4
    kept = {
        name: value
        for name, value in model.state_dict().items()
        if not name.startswith("cores.") or int(name.split(".")[-1]) < groups
    }
    short.load_state_dict(kept)
    x = torch.randn(2, 3, 32, 48)
    for found, expected in zip(model(x, budget)[:3], short(x)[:3], strict=True):
        assert torch.equal(found, expected)

    model.zero_grad()
    model(x, budget).patches.sum().backward()
    for number in range(4):
        active = number < groups
        assert (model.cores.tokens[number].grad is not None) == active
        assert (model.cores.coordinates[number].grad is not None) == active


def test_a_batch_of_one_equals_a_row_of_many(tiny_student: Veca) -> None:
    model, x = doubled(tiny_student), images(5, 3, 32, 48)
    many = model(x, 8)
    for row in range(5):
        one = model(x[row : row + 1], 8)
        torch.testing.assert_close(one.patches[0], many.patches[row], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(one.cls[0], many.cls[row], rtol=1e-12, atol=1e-12)


def test_one_patch_and_rectangles(tiny_student: Veca) -> None:
    assert tiny_student(torch.randn(1, 3, 16, 16)).patches.shape == (1, 1, 32)
    features = tiny_student(torch.randn(2, 3, 16, 80), 4)
    assert features.grid == (1, 5)
    assert features.patches.shape == (2, 5, 32)


def test_rope_augmentation_in_training_only_and_seeded(tiny_student: Veca) -> None:
    x = torch.randn(1, 3, 32, 32)

    def run(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return tiny_student(x).patches

    tiny_student.train()
    assert torch.equal(run(1), run(1))
    assert not torch.equal(run(1), run(2))
    tiny_student.augment_rope = False
    assert torch.equal(run(1), run(2))
    tiny_student.augment_rope = True
    tiny_student.eval()
    assert torch.equal(run(1), run(2))


def test_core_coordinates_move_with_the_image_and_accumulate(tiny_student: Veca) -> None:
    model = doubled(tiny_student)
    trace = model.trace(images(2, 3, 32, 32), 8)
    assert trace.places.shape == (3, 2, 8, 2)
    assert trace.contributions.shape == (3, 2, 8, 4)
    start = torch.cat(list(model.cores.coordinates[:2]), 1).tanh()
    assert torch.equal(trace.places[0], start.expand(2, -1, -1))
    assert not torch.equal(trace.places[1, 0], trace.places[1, 1])
    assert (trace.places.diff(dim=0).abs().amax((1, 2, 3)) > 0).all()
    with torch.no_grad():
        features = model(images(2, 3, 32, 32), 8)
    assert torch.equal(trace.features.patches, features.patches)


def test_intermediate_layers_follow_the_dino_convention(tiny_student: Veca) -> None:
    model, x = tiny_student.eval(), torch.randn(2, 3, 32, 48)
    features = model(x, 8)
    (last,) = model.get_intermediate_layers(x, budget=8)
    assert torch.equal(last, features.patches)
    pairs = model.get_intermediate_layers(x, n=2, reshape=True, return_class_token=True, budget=8)
    assert [patches.shape for patches, _ in pairs] == [(2, 32, 2, 3)] * 2
    maps, cls = pairs[-1]
    assert torch.equal(maps.flatten(2).transpose(1, 2), features.patches)
    assert torch.equal(cls, features.cls)
    chosen = model.get_intermediate_layers(x, n=[2, 0], budget=8)
    assert torch.equal(chosen[0], last)
    for wrong in (0, 4, [3], []):
        with pytest.raises(ValueError, match="n must"):
            model.get_intermediate_layers(x, n=wrong)


def test_compiles_once_for_all_budgets_and_resolutions(tiny_student: Veca) -> None:
    model = tiny_student.eval()
    plain = copy.deepcopy(model)
    names = list(model.state_dict())
    torch._dynamo.reset()
    counter = CompileCounter()
    model.compile_blocks(backend=counter)
    for budget in model.budgets:
        for side in (32, 48, 64, 96):
            x = torch.randn(2, 3, side, side)
            torch.testing.assert_close(model(x, budget).patches, plain(x, budget).patches)
    assert counter.frame_count <= 2
    assert list(model.state_dict()) == names


def test_the_whole_model_compiles_within_the_limit(tiny_student: Veca) -> None:
    torch._dynamo.reset()
    counter = CompileCounter()
    model = torch.compile(create_model("tiny", depth=2).eval(), backend=counter, dynamic=True)
    for budget in range(8, 65, 8):
        for side in (32, 48, 64, 96):
            model(torch.randn(2, 3, side, side), budget)
    assert counter.frame_count <= 4


def test_activation_checkpointing_changes_no_gradient(tiny_student: Veca) -> None:
    x = torch.randn(2, 3, 32, 32)
    grads = []
    for switch in (False, True):
        tiny_student.activation_checkpointing = switch
        tiny_student.zero_grad()
        torch.manual_seed(0)
        tiny_student(x, 8).patches.square().sum().backward()
        grads.append({n: p.grad.clone() for n, p in tiny_student.named_parameters() if p.grad is not None})
    assert grads[0].keys() == grads[1].keys()
    assert all(torch.equal(grads[0][name], grads[1][name]) for name in grads[0])


def test_autocast_keeps_angles_exact(tiny_student: Veca) -> None:
    model, x = tiny_student.eval(), torch.randn(2, 3, 32, 32)
    exact = model.trace(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = model.trace(x)
        model(x).patches.sum().backward()
    assert mixed.places.dtype == torch.float32
    assert torch.equal(mixed.places[0], exact.places[0])
    torch.testing.assert_close(mixed.features.patches.float(), exact.features.patches, rtol=0.1, atol=0.1)
    half = copy.deepcopy(model).bfloat16().trace(x.bfloat16())
    assert half.places.dtype == torch.float32
    assert half.features.patches.dtype == torch.bfloat16


def test_inputs_are_not_changed_in_place(tiny_student: Veca) -> None:
    x = torch.randn(1, 3, 32, 32)
    before, weights = x.clone(), copy.deepcopy(tiny_student.state_dict())
    tiny_student(x).cls.sum().backward()
    assert torch.equal(x, before)
    assert all(torch.equal(weights[n], v) for n, v in tiny_student.state_dict().items())


@pytest.mark.parametrize(
    ("shape", "budget", "words"),
    [
        ((1, 3, 30, 32), None, ["multiples of 16", "30×32", "32×32"]),
        ((1, 3, 0, 32), None, ["multiples of 16", "0×32"]),
        ((1, 1, 32, 32), None, ["(B, 3, H, W)", "(1, 1, 32, 32)"]),
        ((3, 32, 32), None, ["image[None]"]),
        ((1, 3, 32, 32), 5, ["4, 8, 12, 16", "got 5", "Try 4 or 8"]),
        ((1, 3, 32, 32), 32, ["got 32"]),
        ((1, 3, 32, 32), True, ["got True"]),
        ((1, 3, 32, 32), "8", ["got '8'"]),
    ],
)
def test_bad_input_names_value_rule_and_way_out(
    tiny_student: Veca, shape: tuple[int, ...], budget: object, words: list[str]
) -> None:
    with pytest.raises(ValueError) as error:
        tiny_student(torch.zeros(shape), budget)
    assert all(word in str(error.value) for word in words), str(error.value)


def test_bytes_are_refused_with_the_way_out(tiny_student: Veca) -> None:
    with pytest.raises(ValueError, match=r"torch.uint8. Use veca.preprocess"):
        tiny_student(torch.zeros(1, 3, 32, 32, dtype=torch.uint8))


def test_patch_embedding_comes_from_a_teacher_when_shapes_agree(tiny_student: Veca) -> None:
    weight, bias = torch.randn(32, 3, 16, 16), torch.randn(32)
    assert tiny_student.load_patch_embedding(weight, bias)
    assert torch.equal(tiny_student.patch_embed.weight, weight)
    assert torch.equal(tiny_student.patch_embed.bias, bias)
    assert not tiny_student.load_patch_embedding(torch.randn(64, 3, 16, 16), torch.randn(64))
    assert torch.equal(tiny_student.patch_embed.weight, weight)


def test_fresh_weights_follow_the_method(tiny_student: Veca) -> None:
    model = create_model("tiny")
    assert model.training
    for name, parameter in model.named_parameters():
        if name.endswith("weight") and parameter.ndim >= 2:
            assert abs(float(parameter.detach().std()) / 0.02 - 1) < 0.2, name
        elif name.endswith("bias"):
            assert not parameter.any(), name
        elif "norm" in name:
            assert (parameter == 1).all(), name
    assert torch.equal(model.coordinate_scales, torch.full((5,), 0.01))
