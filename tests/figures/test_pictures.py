"""The arrays behind the pictures against slow computations, and the pictures themselves as files."""

import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from jsonargparse import auto_cli
from PIL import Image
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.data import hostile
from veca import Veca, create_model
from veca.data.views import normalise
from veca.figures import pictures
from veca.figures.inputs import choose_budgets, find_images, read_view, trace_images
from veca.figures.pictures import patch_profiles
from veca.model.rope import rotate

VIEW = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (1, 3, 48, 48), dtype=np.uint8))


def run(function: Callable[..., None], *words: object) -> None:
    auto_cli(function, args=[str(word) for word in words], as_positional=False)


def naive_contributions(model: Veca, view: Tensor, budget: int) -> Tensor:
    """(L, C, N) pair by pair: ‖Σ_heads a_ij W_out v_j‖₂ over all tokens, divided by its sum, patches kept."""
    inputs: list[tuple[Tensor, Tensor]] = []
    for block in model.blocks:
        block.attn.register_forward_pre_hook(lambda _, args: inputs.append((args[0][0], args[1][0])))
    with torch.no_grad():
        model(normalise(view).double(), budget)
    layers = []
    for block, (x, turns) in zip(model.blocks, inputs, strict=True):
        heads, h = block.attn.num_heads, x.shape[1] // block.attn.num_heads
        q, k, v = (getattr(block.attn, name)(x).unflatten(1, (heads, h)) for name in "qkv")
        q, k = rotate(q, turns[:, None]), rotate(k, turns[:, None])
        shares = torch.zeros(budget, len(x)).double()
        weights = torch.stack(
            [torch.softmax(q[:budget, n] @ k[:, n].T / h**0.5, dim=1) for n in range(heads)]
        )
        for i in range(budget):
            for j in range(len(x)):
                vector = torch.zeros(x.shape[1]).double()
                for n in range(heads):
                    part = block.attn.out.weight[:, n * h : (n + 1) * h]
                    vector += weights[n, i, j] * (part @ v[j, n])
                shares[i, j] = vector.norm()
        layers.append((shares / shares.sum(1, keepdim=True))[:, budget:])
    return torch.stack(layers)


@pytest.mark.parametrize("budget", [4, 16])
def test_contributions_equal_a_computation_pair_by_pair(tiny_student: Veca, budget: int) -> None:
    model = tiny_student.double().eval()
    with torch.no_grad():
        expected = naive_contributions(model, VIEW, budget)
        found = trace_images(model, VIEW, budget=budget).contributions[:, 0]
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-9)
        profiles = patch_profiles(model, VIEW, budget=budget)
    assert len(profiles) == 2  # layers 2 and 3
    for layer, profile in enumerate(profiles, start=1):
        by_patch = expected[layer].T
        by_patch = by_patch / by_patch.norm(dim=1, keepdim=True)
        torch.testing.assert_close(profile.double(), by_patch, rtol=1e-5, atol=1e-7)


class Largest(TorchDispatchMode):
    """Notes the largest tensor that any operation makes."""

    numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else [out]:
            if isinstance(tensor, Tensor):
                self.numel = max(self.numel, tensor.numel())
        return out


def test_1024_pixels_fit_in_memory() -> None:
    """No tensor of cores × patches × width is made, let alone one with heads: that would be 33 M numbers."""
    model = create_model("tiny", width=128, depth=2, num_heads=4).eval()
    pixels = np.zeros((3, 1024, 1024), dtype=np.uint8)
    with Largest() as largest:
        profiles = patch_profiles(model, torch.from_numpy(pixels)[None], budget=64)
    assert profiles[0].shape == (4096, 64)
    tokens = 4096 + 64
    allowed = (
        max(2 * model.size.ffn_width, 3 * 128, 4 * 64) * tokens
    )  # feed-forward, q k v, attention weights
    assert largest.numel <= max(allowed, 3 * 1024**2)
    assert largest.numel < 64 * 4096 * 128 / 8


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_pictures_of_cores(model_dir: Path, image_dir: Path, tmp_path: Path, suffix: str) -> None:
    common = "--model", model_dir, "--image", image_dir / "0.png", "--resolution", 64, "--out"
    run(pictures.contributions, *common, tmp_path / f"a.{suffix}", "--method", "pca", "--budgets", "4,16")
    run(pictures.cores, *common, tmp_path / f"b.{suffix}", "--cores", "0,3")
    run(pictures.paths, *common, tmp_path / f"c.{suffix}", "--budgets", "4,8")
    for name in "abc":
        check_picture(tmp_path / f"{name}.{suffix}")


def test_models_stand_side_by_side(model_dir: Path, image_dir: Path, tmp_path: Path) -> None:
    common = (
        "--model",
        f"{model_dir},pixels,teacher:OfflineTeacher:tiny",
        "--image",
        image_dir / "0.png",
        "--out",
    )
    run(
        pictures.similarity,
        *common,
        tmp_path / "similarity.png",
        "--points",
        "0.5:0.5,0:1",
        "--resolution",
        64,
    )
    run(pictures.dense, *common, tmp_path / "dense.png", "--resolutions", "64,96", "--method", "pca")
    pictures.similarity(str(model_dir), str(image_dir / "0.png"), tmp_path / "one.png", resolution=64)
    with Image.open(tmp_path / "one.png") as one, Image.open(tmp_path / "similarity.png") as three:
        assert three.size[1] > 2 * one.size[1]
    check_picture(tmp_path / "dense.png")


def test_slow_pictures_show_progress(
    model_dir: Path, image_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = "--model", model_dir, "--image", image_dir / "0.png", "--method", "pca", "--out"
    run(pictures.contributions, *common, tmp_path / "a.png", "--budgets", "4,16", "--resolution", 64)
    assert "2/2" in capsys.readouterr().err
    run(pictures.dense, *common, tmp_path / "b.png", "--resolutions", "64,96")
    assert "1/1" in capsys.readouterr().err


def test_the_same_picture_has_the_same_bytes(model_dir: Path, image_dir: Path, tmp_path: Path) -> None:
    for suffix in ("png", "svg"):
        files = [tmp_path / f"{name}.{suffix}" for name in "ab"]
        for file in files:
            pictures.cores(str(model_dir), str(image_dir / "1.png"), file, resolution=32)
        assert files[0].read_bytes() == files[1].read_bytes()


def test_mistakes_are_named_before_the_work(model_dir: Path, image_dir: Path, tmp_path: Path) -> None:
    image, out = str(image_dir / "0.png"), tmp_path / "x.png"
    with pytest.raises(ValueError, match=r"ends in .png or .svg; got .*x.jpg"):
        pictures.cores(str(model_dir), image, out.with_suffix(".jpg"))
    with pytest.raises(ValueError, match="below the budget, 8; got 9"):
        pictures.cores(str(model_dir), image, out, cores="0,9", budget=8)
    with pytest.raises(ValueError, match="pixels has none"):
        pictures.paths("pixels", image, out)
    with pytest.raises(ValueError, match="budgets must be among 4, 8, 12, 16; got 5"):
        pictures.paths(str(model_dir), image, out, budgets="4,5")
    with pytest.raises(ValueError, match="points must be x:y"):
        pictures.similarity(str(model_dir), image, out, points="0.5,0.5")
    with pytest.raises(FileNotFoundError, match="no image"):
        pictures.dense(str(model_dir), "nowhere.png", out)
    with pytest.raises(ValueError, match="whole numbers"):
        pictures.dense(str(model_dir), image, out, resolutions="big")
    assert not list(tmp_path.glob("x.*"))


def test_inputs(image_dir: Path) -> None:
    assert [path.name for path in find_images(str(image_dir))] == ["0.png", "1.png", "2.png"]
    assert read_view(image_dir / "0.png", resolution=32).shape == (1, 3, 32, 32)
    assert choose_budgets(create_model("tiny"), None) == [8, 16, 32, 64]


def check_picture(path: Path) -> None:
    """A PNG that is no blank page, or an SVG that parses; and nothing half-written beside it."""
    if path.suffix == ".svg":
        assert ET.parse(path).getroot().tag.endswith("svg")
    else:
        with Image.open(path) as image:
            assert np.asarray(image.convert("L")).std() > 10
    assert not list(path.parent.glob(".*.tmp"))


@pytest.mark.parametrize("kind", hostile.SPECIAL)
def test_an_image_that_is_no_regular_file_is_named(image_dir: Path, tmp_path: Path, kind: str) -> None:
    what, make = hostile.SPECIAL[kind]
    path = tmp_path / "a.png"
    make(path)
    with hostile.bounds():
        with pytest.raises(ValueError, match=rf"a\.png is {what}"):
            find_images(str(path))
        with pytest.raises(ValueError, match=rf"a\.png: not-a-file: it is {what}"):
            read_view(path, resolution=32)
