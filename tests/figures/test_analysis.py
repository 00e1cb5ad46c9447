"""The analysis on models that are known to be stable, and as a user runs it."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from jsonargparse import auto_cli
from PIL import Image

from veca import Veca
from veca.data.decode import Pixels
from veca.data.views import View, centre_view, normalise, render_pixels
from veca.figures import analysis as module
from veca.figures.analysis import (
    SHOWN,
    Assigned,
    Conditions,
    Key,
    analysis,
    semantics,
    under_augmentation,
    under_change,
)
from veca.figures.inputs import LayerTrace, MaskedImage, open_masked, trace_cores

SIDE, GRID = 64, (16, 16)
CONDITIONS = Conditions(budgets=[4], resolutions=[SIDE], num_views=2, seed=0)


def bright_spot() -> Pixels:
    """A round spot off the centre of a wide image."""
    x, y = np.meshgrid(np.arange(108), np.arange(72))
    spot = 20 + 230 * np.exp(-((x - 48) ** 2 + (y - 30) ** 2) / 2 / 9**2)
    return Pixels(np.repeat(spot[..., None], 3, axis=-1).astype(np.uint8), (108, 72))


class MovedImage(MaskedImage):
    """Views that flip, turn and move, and leave colours alone."""

    def augmented(self, resolution: int, *, number: int, seed: int) -> View:
        op, magnitude = (("Rotate", 20.0), ("TranslateY", 6.0))[number]
        return centre_view(size=self.pixels.size, resolution=resolution)._replace(
            flip=True, op=op, magnitude=magnitude
        )


def follows_brightness(
    model: object, scene: MaskedImage, views: list[View], *, budget: int
) -> list[LayerTrace]:
    """Cores that look where it is bright and sit there: they move with the picture."""
    traces = []
    for view in views:
        grey = torch.from_numpy(render_pixels(scene.pixels, view)[0].astype(np.float32))
        cells = torch.nn.functional.avg_pool2d(grey[None], SIDE // GRID[0]).flatten()
        bright = (cells - 40).clamp_min(0)
        axis = (torch.arange(GRID[0]) + 0.5) / GRID[0] * 2 - 1
        y, x = torch.meshgrid(axis, axis, indexing="ij")
        place = torch.stack([(bright * each.flatten()).sum() / bright.sum() for each in (x, y)])
        maps, places = cells.expand(1, budget, -1), place.expand(1, budget, 2)
        traces.append(LayerTrace(torch.zeros(1, budget, 3), maps, places, GRID))
    return traces


def stays_in_place(model: object, scene: MaskedImage, views: list[View], *, budget: int) -> list[LayerTrace]:
    """Cores that do the same whatever they see."""
    generator = torch.Generator().manual_seed(0)
    maps = torch.rand(1, budget, GRID[0] * GRID[1], generator=generator)
    places = 2 * torch.rand(1, budget, 2, generator=generator) - 1
    return [LayerTrace(torch.zeros(1, budget, 3), maps, places, GRID) for _ in views]


def compared(monkeypatch: pytest.MonkeyPatch, cores: object, model: Veca) -> dict[Key, float]:
    monkeypatch.setattr(module, "trace_cores", cores)
    scene = MovedImage("spot", bright_spot(), None)
    (base,) = module.trace_cores(model, scene, [scene.plain(SIDE)], budget=4)
    return dict(under_augmentation(model, scene, base, CONDITIONS, budget=4))


def test_cores_that_follow_the_picture_are_stable_when_matched(
    monkeypatch: pytest.MonkeyPatch, tiny_student: Veca
) -> None:
    values = compared(monkeypatch, follows_brightness, tiny_student)
    assert values[Key("augmentation_maps", 4, 1)] > 0.98
    assert values[Key("augmentation_maps", 4, 1, "unmatched")] < 0.8
    assert values[Key("augmentation_places", 4, 1)] < 0.02
    assert values[Key("augmentation_places", 4, 1, "unmatched")] > 0.15


def test_cores_that_stay_are_stable_when_not_matched(
    monkeypatch: pytest.MonkeyPatch, tiny_student: Veca
) -> None:
    values = compared(monkeypatch, stays_in_place, tiny_student)
    assert values[Key("augmentation_maps", 4, 1, "unmatched")] == pytest.approx(1)
    assert abs(values[Key("augmentation_maps", 4, 1)]) < 0.3
    assert values[Key("augmentation_places", 4, 1, "unmatched")] == 0
    assert values[Key("augmentation_places", 4, 1)] > 0.1


def test_another_group_changes_nothing_when_attention_to_it_is_even(tiny_student: Veca) -> None:
    """Queries of zero read all tokens alike, however many there are; the largest budget has no next."""
    scene = MaskedImage("spot", bright_spot(), None)
    model = tiny_student.eval()
    with torch.no_grad():
        for block in model.blocks:
            block.attn.q.weight.zero_()
            block.attn.out.weight.zero_()  # so that layers after the first see the same tokens
            block.attn.out.weight.fill_diagonal_(1e-6)
    (base,) = trace_cores(model, scene, [scene.plain(SIDE)], budget=4)
    values = dict(under_change(model, scene, base, CONDITIONS, budget=4))
    for layer in (1, 2, 3):
        assert values[Key("budget_maps", 4, layer, "8 cores")] == pytest.approx(1, abs=1e-4)
        assert values[Key("budget_places", 4, layer, "8 cores")] == pytest.approx(0, abs=1e-6)
    assert list(under_change(model, scene, base, CONDITIONS, budget=16)) == []


def test_a_trace_has_what_the_layers_gave(tiny_student: Veca) -> None:
    scene = MaskedImage("spot", bright_spot(), None)
    model = tiny_student.eval()
    (seen,) = trace_cores(model, scene, [scene.plain(SIDE)], budget=8)
    assert (seen.cores.shape, seen.maps.shape, seen.places.shape) == ((3, 8, 32), (3, 8, 16), (3, 8, 2))
    images = torch.from_numpy(render_pixels(scene.pixels, scene.plain(SIDE)))[None]
    expected = model.final_norm(seen.cores[-1])
    torch.testing.assert_close(expected, model(normalise(images), budget=8).cores[0])
    assert not model.blocks[0]._forward_hooks


def test_cores_that_know_the_class_explain_it() -> None:
    """Core = class in every image, wherever it lies: all is explained, and with another's mask much less."""
    rng = np.random.default_rng(0)
    assigned = []
    for _ in range(12):
        cores = rng.permutation(np.arange(64) % 4)
        labels = np.repeat(10 * cores[:, None], 16, axis=1)
        labels[:, 0] = 255
        assigned.append(Assigned({(4, 1): cores}, labels))
    found = semantics(assigned, budgets=[4], depth=1, seed=0)
    for scope in ("within", "across"):
        assert found[Key(f"explained_{scope}", 4, 1)].value == pytest.approx(1)
        assert found[Key(f"purity_{scope}", 4, 1)] == (1, 0)
        assert found[Key(f"explained_{scope}", 4, 1, "other mask")].value < 0.15
        assert (found[Key(f"purity_{scope}", 4, 1, "other mask")].error or 0) > 0
    assert semantics([], budgets=[4], depth=1, seed=0) == {}


def test_cores_that_divide_each_image_anew_agree_within_but_not_across() -> None:
    rng = np.random.default_rng(1)
    assigned = []
    for _ in range(40):
        classes = np.arange(64) % 4
        assigned.append(Assigned({(4, 1): rng.permutation(4)[classes]}, classes[:, None]))
    found = semantics(assigned, budgets=[4], depth=1, seed=0)
    assert found[Key("purity_within", 4, 1)].value == 1
    assert found[Key("purity_across", 4, 1)].value < 0.5
    assert found[Key("explained_across", 4, 1)].value < 0.1


def test_masks_come_with_their_images(image_dir: Path) -> None:
    scenes = list(open_masked(str(image_dir), image_dir.parent / "masks", count=2))
    assert [scene.name for scene in scenes] == ["0.png", "2.png"]
    view = centre_view(size=(96, 72), resolution=64)  # the image itself without its margins
    labels = scenes[0].labels(view, (4, 4))
    with Image.open(image_dir.parent / "masks" / "0.png") as stored:
        mask = np.asarray(stored)[view.top :, view.left :]
    for patch in range(16):
        row, col = divmod(patch, 4)
        cell = mask[16 * row : 16 * row + 16, 16 * col : 16 * col + 16]
        assert labels[patch].reshape(4, 4).tolist() == cell[2::4, 2::4].tolist()


def test_the_command_writes_numbers_and_a_plot(model_dir: Path, image_dir: Path, tmp_path: Path) -> None:
    out, masks = tmp_path / "out", image_dir.parent / "masks"
    args = f"--model {model_dir} --images {image_dir} --masks {masks} --out {out} --budgets 4,8"
    auto_cli(analysis, args=f"{args} --resolutions 64,96 --num_views 2".split(), as_positional=False)
    body = json.loads((out / "analysis.json").read_text())
    assert (body["format"], body["num_images"], body["resolutions"]) == ("veca-analysis", 3, [64, 96])
    found = {(m["metric"], m["budget"], m["layer"], m["against"]): m for m in body["measures"]}
    names = {metric for metric, *_ in found}
    assert names == set(SHOWN)
    assert len([key for key in found if key[0] == "core_rank"]) == 2 * 3
    assert all(
        m["error"] is not None and np.isfinite([m["value"], m["error"]]).all() for m in body["measures"]
    )
    assert 1 <= found["core_rank", 8, 3, ""]["value"] <= 8
    assert found["budget_maps", 4, 2, "8 cores"]["value"] <= 1
    with Image.open(out / "analysis.png") as plot:
        assert np.asarray(plot.convert("L")).std() > 10
