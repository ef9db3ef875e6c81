"""The check of what makes an environment, in whatever Python that runs."""

from typing import Any

import gymnasium

from remotely_rl.errors import TrainingError


def checked(name: str, made: Any, kind: type = gymnasium.Env, shown: str = "gymnasium.Env") -> Any:
    """Return what the maker of this name has made.  Raises TrainingError unless it is of the kind.

    With the name alone, it is a wrapper.
    """
    if isinstance(made, kind):
        return made
    if hasattr(made, "possible_agents"):
        how = "SelfPlay" if takes_turns(made) else "MultiAgent"
        raise TrainingError(
            f"{name} returned {made}, which has several agents: pass its maker as"
            f" env=remotely_rl.{how}(...)"
        )
    raise TrainingError(f"{name} returned a {type(made).__name__}; expected a {shown}")


def takes_turns(game: object) -> bool:
    """Whether a game is one of PettingZoo's AEC environments, whose agents act one by one."""
    return hasattr(game, "last")
