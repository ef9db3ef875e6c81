"""Preprocessing of observations that are one image, by Gymnasium's own wrappers.

    gray           one channel in place of three
    size           scaled to size x size pixels (needs OpenCV)
    frame_stack    the last frames as further channels; the first frame is repeated at a reset

Atari games have the same by their native environment (`atari.py`).
"""

from dataclasses import dataclass
from typing import Any

import gymnasium
from gymnasium.wrappers import FrameStackObservation, GrayscaleObservation, ResizeObservation

from remotely_rl.errors import TrainingError

NEEDS_OPENCV = (
    "image_size scales images with OpenCV, which is not installed:"
    " pip install opencv-python-headless"
)


@dataclass(frozen=True)
class Images:
    """What is done to images; nothing by default."""

    size: int | None = None
    gray: bool = False
    frame_stack: int = 1

    @property
    def asked_for(self) -> str:
        """The settings that are not the default, for messages."""
        given = {"image_size": self.size, "gray": self.gray, "frame_stack": self.frame_stack > 1}
        return ", ".join(name for name, value in given.items() if value)


def preprocessed(env: gymnasium.Env[Any, Any], images: Images) -> gymnasium.Env[Any, Any]:
    """Return the environment with these images.

    Raise TrainingError if its observations are not one image of bytes, [height, width] or [height,
    width, channels], or if OpenCV is missing.
    """
    if not images.asked_for:
        return env
    try:
        if images.gray:
            env = GrayscaleObservation(env, keep_dim=True)
        if images.size is not None:
            env = ResizeObservation(env, (images.size, images.size))
    except gymnasium.error.DependencyNotInstalled as error:
        raise TrainingError(NEEDS_OPENCV) from error
    except (TypeError, ValueError) as error:
        raise TrainingError(
            f"{images.asked_for} needs an environment whose observation is one image: {error}"
        ) from error
    if images.frame_stack > 1:
        if len(env.observation_space.shape or ()) not in (2, 3):
            raise TrainingError(
                "frame_stack needs an environment whose observation is one image, [height, width]"
                f" or [height, width, channels]; this one's is {env.observation_space}"
            )
        env = FrameStackObservation(env, images.frame_stack)
    return env
