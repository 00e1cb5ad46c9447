"""Normalisation and the validation transform of a single picture."""

import numpy as np
import pytest
import torch
from PIL import Image

from veca.data.augment import centre_view, render
from veca.data.decode import decode
from veca.data.views import MEAN, STD, normalise, preprocess


@pytest.fixture
def photo_path(tmp_path):
    x, y = np.meshgrid(np.linspace(0, 1, 400), np.linspace(0, 1, 300))
    waves = np.stack([np.sin(20 * x), np.cos(17 * y), np.sin(9 * x * y)], axis=-1)
    path = tmp_path / "photo.jpg"
    Image.fromarray((127 + 120 * waves).astype(np.uint8)).save(path, quality=92)
    return path


def test_constants_are_those_of_imagenet():
    assert MEAN == (0.485, 0.456, 0.406)
    assert STD == (0.229, 0.224, 0.225)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_normalise_by_definition(memory_format):
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (2, 3, 5, 7), dtype=torch.uint8, generator=generator)
    images = images.contiguous(memory_format=memory_format)
    before = images.clone()
    normalised = normalise(images)
    mean, std = torch.tensor(MEAN, dtype=torch.float64), torch.tensor(STD, dtype=torch.float64)
    expected = (images.double() / 255 - mean.view(1, 3, 1, 1)) / std.view(1, 3, 1, 1)
    assert normalised.dtype == torch.float32
    assert (normalised.double() - expected).abs().max() < 1e-6
    assert torch.equal(images, before)


def test_normalise_rounds_once():
    images = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16).expand(1, 3, 16, 16)
    assert torch.equal(normalise(images, dtype=torch.bfloat16), normalise(images).bfloat16())


def test_normalise_with_other_constants():
    images = torch.full((1, 3, 2, 2), 255, dtype=torch.uint8)
    half = (0.5, 0.5, 0.5)
    assert torch.allclose(normalise(images, mean=half, std=half), torch.ones(1, 3, 2, 2))


@pytest.mark.parametrize(
    "images",
    [torch.zeros(1, 3, 4, 4), torch.zeros(3, 4, 4, dtype=torch.uint8), torch.zeros(1, 4, 4, 3).byte()],
)
def test_normalise_refuses_what_is_no_batch_of_bytes(images):
    with pytest.raises(ValueError, match="images must be uint8"):
        normalise(images)


@pytest.mark.parametrize("resolution", [64, 256])
def test_preprocess_is_the_validation_view(photo_path, resolution):
    tensor = preprocess(photo_path, resolution=resolution)
    assert tensor.shape == (1, 3, resolution, resolution)
    assert tensor.dtype == torch.float32
    view = centre_view(size=(400, 300), resolution=resolution)
    pixels = normalise(torch.from_numpy(render(photo_path.read_bytes(), view))[None])
    # Training decodes a large JPEG at a fraction of its size; a single picture is worth the whole.
    assert (tensor - pixels).abs().mean() < 0.02


def test_path_image_and_array_agree(photo_path):
    from_path = preprocess(photo_path, resolution=64)
    assert torch.equal(from_path, preprocess(str(photo_path), resolution=64))
    array = decode(photo_path.read_bytes())
    assert torch.equal(from_path, preprocess(array, resolution=64))
    assert torch.equal(from_path, preprocess(Image.fromarray(array), resolution=64))
    with Image.open(photo_path) as image:
        assert (from_path - preprocess(image, resolution=64)).abs().max() < 0.05


def test_an_opened_image_is_turned_upright(photo_path, tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = tmp_path / "turned.png"
    with Image.open(photo_path) as image:
        image.save(turned, exif=exif)
    with Image.open(turned) as image:
        assert torch.equal(preprocess(image, resolution=64), preprocess(turned, resolution=64))


def test_gray_and_alpha_arrays(photo_path):
    gray = decode(photo_path.read_bytes())[..., 0]
    three = np.repeat(gray[..., None], 3, axis=-1)
    four = np.concatenate([three, np.full_like(gray, 255)[..., None]], axis=-1)
    expected = preprocess(three, resolution=64)
    assert torch.equal(preprocess(gray, resolution=64), expected)
    assert torch.equal(preprocess(four, resolution=64), expected)


@pytest.mark.parametrize(
    "image", [np.zeros((9, 9, 3)), np.zeros((9, 9, 2), dtype=np.uint8), torch.zeros(3, 9, 9), 7]
)
def test_anything_else_is_refused(image):
    with pytest.raises(ValueError, match="image_or_path must be a path"):
        preprocess(image)


def test_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        preprocess(tmp_path / "absent.jpg")


def test_one_rule_says_which_resolutions_there_are(photo_path):
    with pytest.raises(ValueError, match=r"resolution must be a multiple of 16; got 264\. Try 256\."):
        preprocess(photo_path, resolution=264)
    assert preprocess(photo_path, resolution=264, patch_size=8).shape == (1, 3, 264, 264)
    with pytest.raises(ValueError, match="multiple of 56; got 238"):
        preprocess(photo_path, resolution=238, patch_size=14)
