"""Patches read alone against the full forward, and the file of what they read."""

import copy
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from tests.model.test_veca import doubled, images
from veca import Veca, create_model
from veca.model.regions import Memory, cut, grid_corners, load_memory, save_memory


def small_model() -> Veca:
    torch.manual_seed(0)
    return create_model("tiny", width=32, depth=3, num_heads=2, num_cores=16, core_group=4, out_width=24)


EXACT, SINGLE = doubled(small_model()), small_model().eval()


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 6),
    cols=st.integers(1, 6),
    batch=st.integers(1, 3),
    budget=st.sampled_from([4, 8, 12, 16]),
    data=st.data(),
)
@torch.no_grad()
def test_any_patches_come_out_as_in_the_full_forward(
    rows: int, cols: int, batch: int, budget: int, data: st.DataObject
) -> None:
    kept = data.draw(st.lists(st.booleans(), min_size=rows * cols, max_size=rows * cols))
    mask = torch.tensor(kept)
    x = images(batch, 3, 16 * rows, 16 * cols)
    for model, tolerance in ((EXACT, 1e-10), (SINGLE, 1e-5)):
        pixels = x.to(model.patch_embed.weight.dtype)
        memory = model.remember(pixels, budget)
        found = model.read(memory, *cut(pixels, grid_corners((16 * rows, 16 * cols))[mask]))
        expected = model(pixels, budget).patches[:, mask]
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
    assert memory.keys.numel() + memory.values.numel() == 2 * 3 * budget * 32 * batch
    assert (memory.budget, memory.grid, len(memory)) == (budget, (rows, cols), batch)


@settings(max_examples=20, deadline=None)
@given(left=st.integers(0, 90), top=st.integers(0, 60), width=st.integers(1, 90), height=st.integers(1, 60))
@torch.no_grad()
def test_a_box_is_every_cell_that_it_touches(left: int, top: int, width: int, height: int) -> None:
    size = 64, 96
    box = left, top, left + width, top + height
    pixels = torch.zeros(size, dtype=torch.bool)
    pixels[top : top + height, left : left + width] = True
    touched = pixels.unfold(0, 16, 16).unfold(1, 16, 16).flatten(2).any(-1)
    if not touched.any():
        with pytest.raises(ValueError, match="no patch"):
            grid_corners(size, box=box)
        return
    corners = grid_corners(size, box=box)
    assert (corners.flip(1) // 16).tolist() == touched.nonzero().tolist()
    x = images(1, 3, *size)
    found = EXACT.read(EXACT.remember(x, 8), *cut(x, corners))
    torch.testing.assert_close(found, EXACT(x, 8).patches[:, touched.flatten()], rtol=1e-10, atol=1e-10)


@torch.no_grad()
def test_a_patch_between_cells_is_what_the_model_makes_of_its_pixels_there() -> None:
    """Its place is that of its centre in the whole image, its neighbours on no grid do not matter."""
    x = images(1, 3, 48, 64)
    memory = EXACT.remember(x)
    corners = grid_corners((48, 64), stride=4)
    assert len(corners) == 9 * 13
    dense = EXACT.read(memory, *cut(x, corners)).unflatten(1, (9, 13))
    torch.testing.assert_close(dense[:, ::4, ::4].flatten(1, 2), EXACT(x).patches, rtol=1e-10, atol=1e-10)
    (place,) = (corners == torch.tensor([20, 4])).all(1).nonzero()[0]
    one = EXACT.read(memory, x[None, ..., 4:20, 20:36], torch.tensor([[56 / 64 - 1, 24 / 48 - 1]]))
    torch.testing.assert_close(one[0, 0], dense.flatten(1, 2)[0, place], rtol=1e-10, atol=1e-10)


@torch.no_grad()
def test_images_of_a_memory_are_chosen_and_repeated() -> None:
    x = images(3, 3, 32, 48)
    memory = EXACT.remember(x, 8)
    chosen = [2, 0, 2]
    found = EXACT.read(memory.of(chosen), *cut(x[chosen], grid_corners((32, 48))))
    torch.testing.assert_close(found, EXACT(x, 8).patches[chosen], rtol=1e-10, atol=1e-10)
    assert len(memory.of(1)) == 1


@torch.no_grad()
def test_no_patches_are_no_features() -> None:
    memory = EXACT.remember(images(1, 3, 32, 32))
    empty = cut(images(1, 3, 32, 32), torch.zeros(0, 2, dtype=torch.long))
    assert EXACT.read(memory, *empty).shape == (1, 0, 24)


def test_places_are_true_in_training_and_gradients_pass() -> None:
    model = copy.deepcopy(EXACT).train()
    x = images(1, 3, 32, 32)
    memory = model.remember(x, 8)
    found = model.read(memory, *cut(x, grid_corners((32, 32))))
    torch.testing.assert_close(found, EXACT(x, 8).patches, rtol=1e-10, atol=1e-10)
    found.square().sum().backward()
    plain = copy.deepcopy(EXACT)
    plain(x, 8).patches.square().sum().backward()
    for (name, one), other in zip(model.named_parameters(), plain.parameters(), strict=True):
        assert (one.grad is None) == (other.grad is None), name
        if one.grad is not None:
            torch.testing.assert_close(one.grad, other.grad, rtol=1e-9, atol=1e-9, msg=name)


@torch.no_grad()
def test_autocast_reads_what_autocast_remembered() -> None:
    x = images(1, 3, 48, 48).float()
    exact = SINGLE(x).patches
    with torch.autocast("cpu", dtype=torch.bfloat16):
        memory = SINGLE.remember(x)
        found = SINGLE.read(memory, *cut(x, grid_corners((48, 48))))
    torch.testing.assert_close(found.float(), exact, rtol=0.1, atol=0.1)
    short = SINGLE.remember(x).to(torch.bfloat16)
    again = SINGLE.read(short, *cut(x, grid_corners((48, 48))))
    torch.testing.assert_close(again, exact, rtol=0.05, atol=0.05)


@torch.no_grad()
def test_a_memory_survives_its_file(tmp_path: Path) -> None:
    x = images(2, 3, 32, 48).float()
    memory = SINGLE.remember(x, 8)
    save_memory(memory, tmp_path / "m.safetensors")
    again = load_memory(tmp_path / "m.safetensors", SINGLE)
    assert torch.equal(again.keys, memory.keys)
    assert torch.equal(again.values, memory.values)
    assert (again.grid, again.weights, again.budget) == ((2, 3), memory.weights, 8)
    save_memory(memory.to(torch.bfloat16), tmp_path / "short.safetensors")
    numbers = 2 * 2 * 3 * 8 * 32
    assert (tmp_path / "short.safetensors").stat().st_size < 2 * numbers + 1000
    assert load_memory(tmp_path / "short.safetensors", SINGLE).keys.dtype == torch.bfloat16


@torch.no_grad()
def test_a_file_that_is_not_this_models_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    memory = SINGLE.remember(images(1, 3, 32, 32).float(), 8)
    save_memory(memory, path)
    with safe_open(path, framework="pt") as file:
        facts = file.metadata()
    tensors = load_file(path)

    def refused(words: str, model: Veca = SINGLE) -> None:
        with pytest.raises(ValueError, match=words) as error:
            load_memory(path, model)
        assert str(path) in str(error.value)
        assert "Remember the images again" in str(error.value)

    trained = copy.deepcopy(SINGLE)
    trained.final_norm.bias.add_(1e-6)
    refused("other weights", trained)
    refused("another size", create_model("tiny", width=32, depth=2, num_heads=2))
    wider = create_model("tiny", width=32, depth=3, num_heads=2, num_cores=64, core_group=16)
    refused("budget is 8, the model's are 16, 32, 48, 64", wider)
    save_file(tensors, path, {**facts, "version": "2"})
    refused("its version is 2, this veca reads version 1")
    save_file(tensors, path)
    refused("it holds no memory")
    path.write_bytes(b"no tensors")
    refused("no safetensors file")
    with pytest.raises(FileNotFoundError):
        load_memory(tmp_path / "absent", SINGLE)


@torch.no_grad()
def test_mistakes_are_named() -> None:
    x = images(1, 3, 32, 32).float()
    memory = SINGLE.remember(x, 8)
    cells = cut(x, grid_corners((32, 32)))

    def refused(words: str, memory: Memory = memory, **changed: torch.Tensor) -> None:
        with pytest.raises(ValueError, match=words):
            SINGLE.read(memory, **{**cells._asdict(), **changed})

    refused(r"crops must be normalised floats of shape \(B, n, 3, 16, 16\)", crops=x)
    refused("torch.uint8", crops=cells.crops.byte())
    refused(r"holds 3 images, crops are of 1. Choose images with memory.of", memory=memory.of([0, 0, 0]))
    refused(r"places must have shape \(1, 4, 2\) or \(4, 2\)", places=cells.places[:, :3])
    with pytest.raises(ValueError, match=r"must lie in the image of 32×32.*got \[17, 0\]"):
        cut(x, torch.tensor([[17, 0]]))
    with pytest.raises(ValueError, match="is empty"):
        grid_corners((32, 32), box=(9, 0, 3, 8))
    with pytest.raises(ValueError, match="stride must be"):
        grid_corners((32, 32), stride=0)
    with pytest.raises(ValueError, match="budget must be one of"):
        SINGLE.remember(x, 5)
    with pytest.raises(ValueError, match="multiples of 16"):
        SINGLE.remember(x[..., :20], 8)
