"""Preprocessing of image observations, with Gymnasium's wrappers.

    gray           one channel instead of three
    size           scaled to size x size pixels (needs OpenCV)
    frame_stack    the last frames as more channels, [channels, height, width]; at a reset the first
                   frame is repeated

Vector environments have gray and size, row by row.  Atari games have all three in their native
environment (`atari.py`).
"""

from dataclasses import dataclass
from typing import Any, TypeVar, cast

import gymnasium
import numpy as np
from gymnasium import wrappers
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from remotely_rl.environments.observations import is_channels_last
from remotely_rl.errors import TrainingError

NEEDS_OPENCV = (
    "image_size scales images with OpenCV, which is not installed:"
    " pip install opencv-python-headless"
)

E = TypeVar("E", bound=gymnasium.Env[Any, Any] | VectorEnv[Any, Any, Any])


@dataclass(frozen=True)
class Images:
    """The preprocessing of images; none by default."""

    size: int | None = None
    gray: bool = False
    frame_stack: int = 1

    @property
    def asked_for(self) -> str:
        """The settings that are not the default, for messages."""
        given = {"image_size": self.size, "gray": self.gray, "frame_stack": self.frame_stack > 1}
        return ", ".join(name for name, value in given.items() if value)


def preprocessed(env: E, images: Images) -> E:
    """Return the environment, or the vector environment, with this preprocessing.

    A vector environment has no frame_stack.  Raises TrainingError if observations are not one image
    (for gray and size, of bytes with the channels last), or if OpenCV is missing.
    """
    if not images.asked_for:
        return env
    kit: Any = wrappers.vector if isinstance(env, VectorEnv) else wrappers
    space: Any = (
        env.single_observation_space if isinstance(env, VectorEnv) else env.observation_space
    )
    preprocessing: Any = env
    try:
        if images.gray:
            preprocessing = kit.GrayscaleObservation(preprocessing, keep_dim=True)
        if images.size is not None and not _has_size(space, images.size):
            preprocessing = kit.ResizeObservation(preprocessing, (images.size, images.size))
    except gymnasium.error.DependencyNotInstalled as error:
        raise TrainingError(NEEDS_OPENCV) from error
    except (TypeError, ValueError) as error:
        raise TrainingError(f"{images.asked_for} cannot be applied: {error}") from error
    if images.frame_stack > 1:
        preprocessing = _stacked(preprocessing, images.frame_stack)
    return cast(E, preprocessing)


def _has_size(space: gymnasium.Space[Any], size: int) -> bool:
    """Whether images have this size already.  Raises ValueError if they cannot be scaled.

    Gymnasium would take the channels of an image that has them first for its height.
    """
    shape = space.shape or ()
    if len(shape) != 2 and not is_channels_last(shape):
        raise ValueError(f"an image is [height, width] or [height, width, channels], not {space}")
    return shape[:2] == (size, size)


def _stacked(env: gymnasium.Env[Any, Any], count: int) -> gymnasium.Env[Any, Any]:
    """Return the environment with stacked frames as the channels of one image."""
    shape = env.observation_space.shape or ()
    if len(shape) not in (2, 3) or not isinstance(env.observation_space, gymnasium.spaces.Box):
        raise TrainingError(
            "frame_stack needs an environment whose observation is one image, [height, width]"
            f" or [height, width, channels]; this one's is {env.observation_space}"
        )
    stacked = wrappers.FrameStackObservation(env, count)
    if len(shape) == 2:
        return stacked
    channels_last = is_channels_last(shape)

    def fold(frames: NDArray[Any]) -> NDArray[Any]:
        first = np.moveaxis(frames, -1, 1) if channels_last else frames
        return np.ascontiguousarray(first).reshape(-1, *first.shape[2:])

    space: Any = stacked.observation_space
    return wrappers.TransformObservation(
        stacked, fold, gymnasium.spaces.Box(fold(space.low), fold(space.high), dtype=space.dtype)
    )
