"""Images of environments: stacked, gray and scaled."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

from remotely_rl import environments
from remotely_rl.environments import Images
from remotely_rl.errors import TrainingError
from tests.remotely_rl import toys


class Screen(toys.Counting):
    """An environment whose image is redder at each step."""

    observation_space = spaces.Box(0, 255, (30, 24, 3), np.uint8)

    def _obs(self) -> np.ndarray:
        image = np.zeros((30, 24, 3), np.uint8)
        image[:, :, 0] = 50 * self.now
        return image


def screens(num_envs: int) -> SyncVectorEnv:
    return SyncVectorEnv([Screen] * num_envs)


@pytest.mark.parametrize(
    ("images", "shape"),
    [
        (Images(), (3, 30, 24)),
        (Images(gray=True), (1, 30, 24)),
        (Images(size=20), (3, 20, 20)),
        (Images(frame_stack=2), (6, 30, 24)),
        (Images(size=20, gray=True, frame_stack=4), (4, 20, 20)),
    ],
)
def test_images_are_preprocessed(images: Images, shape: tuple[int, ...]) -> None:
    if images.size:
        pytest.importorskip("cv2")
    envs = environments.make(Screen, 2, images=images)
    assert envs.spec.shape == shape
    obs = envs.reset(1)
    assert (obs.shape, obs.dtype) == ((2, *shape), np.uint8)
    envs.close()


def test_a_vector_environment_has_the_images_of_its_environments_and_keeps_them() -> None:
    pytest.importorskip("cv2")
    images = Images(size=20, gray=True)
    whole, single = (
        environments.make(screens, 2, images=images),
        environments.make(Screen, 2, images=images),
    )
    seen = [(whole.reset(1), single.reset(1))]
    action = np.array([0, 0])
    seen += [(whole.step(action).obs, single.step(action).obs) for _ in range(8)]  # and a reset
    for ours, expected in seen:
        np.testing.assert_array_equal(ours, expected)
    whole.close()
    single.close()


def test_the_channels_of_a_stack_are_the_last_frames_the_newest_last() -> None:
    envs = environments.make(Screen, 1, images=Images(frame_stack=3))
    assert envs.reset(1)[0, :, 0, 0].tolist() == [0] * 9
    envs.step(np.array([0]))
    obs = envs.step(np.array([0])).obs
    assert obs[0, :, 5, 7].tolist() == [0, 0, 0, 50, 0, 0, 100, 0, 0]
    envs.close()


@pytest.mark.parametrize(
    ("shape", "stacked"),
    [
        ((3, 16, 12), (12, 16, 12)),  # channels first
        ((7, 7, 3), (12, 7, 7)),  # the stack has more channels than rows
        ((16, 12, 6), (24, 16, 12)),
        ((16, 12), (4, 16, 12)),
    ],
)
def test_a_stack_is_one_image_whatever_its_layout_and_size(
    shape: tuple[int, ...], stacked: tuple[int, ...]
) -> None:
    space = spaces.Box(0, 1, shape, np.float32)
    envs = environments.make(lambda: toys.Blank(space), 2, images=Images(frame_stack=4))
    assert envs.spec.shape == stacked
    frame = envs.reset(1)[1].reshape(4, -1, *stacked[1:])[2]
    once = environments.make(lambda: toys.Blank(space), 2).reset(1)[1].reshape(frame.shape)
    np.testing.assert_array_equal(frame, once)


@pytest.mark.parametrize(
    ("env", "images", "said"),
    [
        (toys.Counting, Images(gray=True), "gray cannot be applied: "),
        (toys.Counting, Images(size=42), "image_size cannot be applied: an image is"),
        (toys.Counting, Images(frame_stack=4), "frame_stack needs an environment whose observatio"),
        (
            lambda: toys.Blank(spaces.Box(0, 255, (3, 64, 64), np.uint8)),
            Images(size=42),
            r"an image is \[height, width\] or \[height, width, channels\], not Box",
        ),
        (toys.counting_vector, Images(gray=True), "gray cannot be applied: "),
    ],
)
def test_preprocessing_without_images_is_rejected(env: Any, images: Images, said: str) -> None:
    with pytest.raises(TrainingError, match=said):
        environments.make(env, 1, images=images)


def test_without_opencv_scaling_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    class NoOpenCV:
        def __init__(self, *args: Any) -> None:
            raise gymnasium.error.DependencyNotInstalled("opencv (cv2) is not installed")

    monkeypatch.setattr(gymnasium.wrappers, "ResizeObservation", NoOpenCV)
    with pytest.raises(TrainingError, match="pip install opencv-python-headless"):
        environments.make(Screen, 1, images=Images(size=20))
