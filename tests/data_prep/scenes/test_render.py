import numpy as np
import pytest

from veca_data.scenes import CLASSES, Scene, render_scene


@pytest.fixture(scope="module")
def scenes() -> dict[str, Scene]:
    return {
        name: render_scene(seed=1, index=index, label=name, size=96) for index, name in enumerate(CLASSES)
    }


def test_same_arguments_give_the_same_scene_and_others_another(scenes: dict[str, Scene]) -> None:
    again = render_scene(seed=1, index=4, label="cross", size=96)
    assert all(np.array_equal(a, b) for a, b in zip(again, scenes["cross"], strict=True))
    for seed, index in ((2, 4), (1, 5)):
        other = render_scene(seed=seed, index=index, label="cross", size=96)
        assert not np.array_equal(other.image, scenes["cross"].image)


def test_arrays_have_the_promised_types(scenes: dict[str, Scene]) -> None:
    for scene in scenes.values():
        assert scene.image.shape == (96, 96, 3)
        assert scene.semantic.shape == scene.instance.shape == scene.depth.shape == (96, 96)
        assert [array.dtype for array in scene] == [np.uint8, np.uint8, np.uint8, np.uint16]
        assert scene.depth.min() > 0


def test_every_instance_has_one_class_and_the_label_is_the_largest(scenes: dict[str, Scene]) -> None:
    for name, scene in scenes.items():
        assert np.array_equal(scene.semantic == 0, scene.instance == 0)
        numbers = np.arange(1, scene.instance.max() + 1)
        for number in numbers:
            assert len(np.unique(scene.semantic[scene.instance == number])) == 1
        largest = numbers[np.argmax([(scene.instance == number).sum() for number in numbers])]
        class_id = scene.semantic[scene.instance == largest][0]
        assert list(CLASSES)[class_id - 1] == name


def test_pictures_are_exposed_and_outlines_can_be_seen(scenes: dict[str, Scene]) -> None:
    for scene in scenes.values():
        image = scene.image.astype(np.float64)
        assert 60 < image.mean() < 210
        assert image.std() > 15
        assert (scene.image.min(axis=2) == 255).mean() < 0.35
        border = scene.instance[:, 1:] != scene.instance[:, :-1]
        steps = np.abs(np.diff(image, axis=1)).sum(axis=2)
        assert steps[border].mean() > 1.5 * steps[~border].mean()


@pytest.mark.parametrize("size", [32, 33])
def test_smallest_and_odd_sizes(size: int) -> None:
    assert render_scene(seed=0, index=0, label="bowl", size=size).image.shape == (size, size, 3)
