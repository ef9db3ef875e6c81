"""Pictures of an agent's game, in colour, for people.

An Atari agent sees small, gray, stacked images that nobody wants to watch.  So there are two
copies of the game, one for the agent and one for the viewer: they start from the same seed and
receive the same actions, and their rewards must agree at every step.  All other environments
render themselves (`render_mode="rgb_array"`).
"""

from typing import Any, Protocol

import gymnasium
import numpy as np
from numpy.typing import NDArray

from remotely_rl.agents.load import Trained
from remotely_rl.environments import Environments, Step, is_atari, name_of
from remotely_rl.environments.atari import observes_ram
from remotely_rl.errors import TrainingError

ATARI_FPS = 15.0  # 60 frames a second, four of them a step
USUAL_FPS = 30.0  # of environments that do not say

Picture = NDArray[np.uint8]  # [height, width, 3], red, green and blue


class Screen(Protocol):
    """Pictures of one environment.  `fps` is the rate at which the game runs in real time."""

    fps: float

    def reset(self, seed: int) -> Picture:
        """The picture after a reset with `seed`; the agent's environment is reset first."""
        ...

    def step(self, action: NDArray[Any], step: Step) -> Picture:
        """The picture after `action`, which led to `step` in the agent's environment."""
        ...

    def close(self) -> None: ...


class SecondCopy:
    """Atari: the same game in its original colours and size, in lockstep with the agent's."""

    fps = ATARI_FPS

    def __init__(self, envs: Environments, env_id: str, sticky_actions: float):
        from ale_py.vector_env import AtariVectorEnv  # noqa: PLC0415 - few need it

        self._actions = envs.actions
        self._game = AtariVectorEnv(
            gymnasium.spec(env_id).kwargs["game"],
            1,
            num_threads=1,
            img_height=210,
            img_width=160,
            grayscale=False,
            stack_num=1,
            repeat_action_probability=sticky_actions,
            reward_clipping=False,
        )

    def reset(self, seed: int) -> Picture:
        obs, _ = self._game.reset(seed=seed)
        return np.array(obs[0, -1])

    def step(self, action: NDArray[Any], step: Step) -> Picture:
        """Raises TrainingError if the two copies diverge."""
        obs, *outcome, _ = self._game.step(self._actions.to_environment(action))
        seen = (step.reward, step.terminated, step.truncated)
        if any(here[0] != there[0] for here, there in zip(outcome, seen, strict=True)):
            raise TrainingError(
                "the filmed copy of the game diverged from the one that the agent plays: the video"
                " would show what did not happen"
            )
        return np.array(obs[0, -1])

    def close(self) -> None:
        self._game.close()


class OwnPictures:
    """Everything else: the agent's own environment renders itself."""

    def __init__(self, envs: Environments, name: str):
        self._vector = envs.vector
        self._name = name
        self.fps = float(self._vector.metadata.get("render_fps") or USUAL_FPS)

    def reset(self, seed: int) -> Picture:
        return self._picture()

    def step(self, action: NDArray[Any], step: Step) -> Picture:
        return self._picture()

    def close(self) -> None:
        """Nothing to do: the caller closes the agent's environment."""

    def _picture(self) -> Picture:
        """Raises TrainingError if there is none."""
        try:
            drawn = (self._vector.render() or [None])[0]
        except (gymnasium.error.Error, ImportError) as error:
            raise TrainingError(f"{self._name} cannot render: {error}") from error
        except NotImplementedError:
            drawn = None
        picture = np.asarray(drawn)
        if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] != 3:
            raise TrainingError(
                f"{self._name} renders no pictures: its render() must return uint8"
                " [height, width, 3], as with render_mode='rgb_array'"
            )
        return picture


def watched(agent: Trained) -> tuple[Environments, Screen]:
    """Makes one of an agent's environments, and a screen that shows it."""
    source = agent.config.env
    envs = agent.environments(1)
    if not isinstance(source, str):
        return envs, OwnPictures(envs, name_of(source))
    if is_atari(source) and not observes_ram(gymnasium.spec(source)):
        return envs, SecondCopy(envs, source, agent.config.sticky_actions)
    envs.close()
    envs = agent.environments(1, lambda: gymnasium.make(source, render_mode="rgb_array"))
    return envs, OwnPictures(envs, source)
