"""Atari games, with ale-py's native vector environment.

The defaults of `Atari` differ from Gymnasium's: no sticky actions, the minimal action set, and an
observation every four frames.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import gymnasium
from gymnasium.envs.registration import EnvSpec

from remotely_rl.supervision.vector import is_registered

if TYPE_CHECKING:
    from ale_py.vector_env import AtariVectorEnv


@dataclass(frozen=True)
class Atari:
    """Preprocessing of Atari games.

    The rest is fixed: 4 frames per step and the maximum of the last two, up to 30 no-ops at reset,
    then FIRE if the game has it, and at most 27,000 steps per episode.
    """

    image_size: int = 84
    gray: bool = True
    frame_stack: int = 4
    sticky_actions: float = 0.0
    life_loss_is_terminal: bool = False
    threads: int = 1  # for the games of an actor; each steps the next waiting game


def is_atari_id(env_id: str) -> bool:
    """Whether this is the Gymnasium id of an Atari game."""
    spec = gymnasium.registry[env_id] if is_registered(env_id) else None
    return spec is not None and spec.entry_point == "ale_py.env:AtariEnv"


def observes_ram(spec: EnvSpec) -> bool:
    """Whether an Atari game observes the console's memory instead of its screen."""
    return spec.kwargs.get("obs_type") == "ram"


# The arguments of ale-py's vector environment that no setting covers.
VECTOR_ARGUMENTS = (
    "full_action_space",
    "continuous",
    "continuous_action_threshold",
    "frameskip",
    "maxpool",
    "noop_max",
    "use_fire_reset",
    "max_num_frames_per_episode",
)


def make_vector(
    spec: EnvSpec, count: int, atari: Atari, kwargs: Mapping[str, Any] | None = None
) -> "AtariVectorEnv":
    """Make `count` environments of a Gymnasium spec's game; `kwargs` are VECTOR_ARGUMENTS."""
    from ale_py.vector_env import AtariVectorEnv  # noqa: PLC0415 - few need it

    return AtariVectorEnv(
        spec.kwargs["game"],
        count,
        num_threads=atari.threads,
        img_height=atari.image_size,
        img_width=atari.image_size,
        grayscale=atari.gray,
        stack_num=atari.frame_stack,
        repeat_action_probability=atari.sticky_actions,
        life_loss_info=atari.life_loss_is_terminal,
        reward_clipping=False,
        **{"use_fire_reset": True, **(kwargs or {})},
    )
