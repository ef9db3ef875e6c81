"""What makes the environment of a Gymnasium id in another process.

An id is known only where it has been registered: in the process of the user's script.  Its spec can
be sent to any process.
"""

import importlib
from functools import partial
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec

from remotely_rl.supervision.vector import Make


def spec_of(env_id: str) -> EnvSpec:
    """Return the spec of an id, or of `module:id` once the module is imported.

    Raises ImportError if there is no such module, and Gymnasium's error for an unknown id.
    """
    module, _, name = env_id.rpartition(":")
    if module:
        importlib.import_module(module)
    return gymnasium.spec(name)


def maker_of(env_id: str, kwargs: dict[str, Any] | None = None) -> Make:
    """Return what makes an environment, with `kwargs` for `gymnasium.make`, in any process."""
    return partial(gymnasium.make, spec_of(env_id), **(kwargs or {}))
