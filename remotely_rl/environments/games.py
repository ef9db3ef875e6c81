"""Several games with several players each, with simultaneous or alternating moves.

PettingZoo is not imported: a game is any object with the attributes used here.
"""

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from remotely_rl.errors import TrainingError
from remotely_rl.supervision.rows import EnvRows
from remotely_rl.supervision.seeds import Seeds
from remotely_rl.supervision.statistics import layers_of

ABSENT = "absent"  # the key of an info of `reset`

Game = Any  # pettingzoo.ParallelEnv, pettingzoo.AECEnv, or an object with their interface
Step = tuple[Any, NDArray[Any], NDArray[Any], NDArray[Any], dict[str, Any]]


class SideBySide(VectorEnv[Any, Any, NDArray[Any]]):
    """Games that are stepped together, as the rows of a vector environment.

    They reset in the step after their end.
    """

    def __init__(
        self,
        games: Sequence[Game],
        rows: int,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
    ):
        """The spaces are those of a row."""
        self.games = games
        self.num_envs = rows
        self._rows_of_each = rows // len(games)
        self.single_observation_space = observation_space
        self.single_action_space = action_space
        self.observation_space = batch_space(observation_space, rows)
        self.action_space = batch_space(action_space, rows)
        self.render_mode = getattr(games[0], "render_mode", None)
        metadata = getattr(games[0], "metadata", {})
        self.metadata = {**metadata, "autoreset_mode": AutoresetMode.NEXT_STEP}
        self._rows = EnvRows(observation_space, rows)
        self._seeds = [Seeds() for _ in games]
        self._reward = np.zeros(rows)
        self._terminated = np.zeros(rows, np.bool_)
        self._truncated = np.zeros(rows, np.bool_)

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Read an attribute of each row's game.  Raises AttributeError if they do not have it."""
        values = [getattr(_owner_of(name, game), name) for game in self.games]
        return tuple(value for value in values for _ in range(self._rows_of_each))

    def set_attr(self, name: str, values: Sequence[Any]) -> None:
        """Set an attribute of each game to the value for its first row.  Raises as `get_attr`."""
        for game, value in zip(self.games, values[:: self._rows_of_each], strict=True):
            setattr(_owner_of(name, game), name, value)

    def render(self) -> tuple[Any, ...]:
        """Return an image of each game."""
        return tuple(game.render() for game in self.games)

    def close_extras(self, **kwargs: Any) -> None:
        """Close the games."""
        for game in self.games:
            game.close()

    def _stepped(self, infos: dict[str, Any]) -> Step:
        """Return the result of `step`, as copies that the caller owns."""
        rows = self._reward.copy(), self._terminated.copy(), self._truncated.copy()
        return (self._rows.value(True), *rows, infos)


def _owner_of(name: str, game: Game) -> Any:
    """Return the layer of a game that has an attribute: wrappers of PettingZoo's only read it.

    Raises AttributeError if none has it.
    """
    for layer in (*layers_of(game), getattr(game, "unwrapped", game)):
        if name in getattr(layer, "__dict__", ()) or hasattr(type(layer), name):
            return layer
    raise AttributeError(f"{type(game).__name__!r} object has no attribute {name!r}")


EXAMPLES = {"MultiAgent": "simple_spread_v3.parallel_env", "SelfPlay": "connect_four_v3.env"}


def check_makes(by: str, make: object) -> None:
    """Raise TrainingError unless `make`, the argument of `by`, can be called: it may be a name."""
    if not callable(make):
        raise TrainingError(
            f"{by} takes a function that makes a new game in each call, not {make!r}: of"
            f" PettingZoo, {by}({EXAMPLES[by]}), or a functools.partial of that"
        )


def spaces_of(
    game: Game, agents: tuple[Any, ...]
) -> tuple[gymnasium.Space[Any], gymnasium.Space[Any]]:
    found = [(game.observation_space(agent), game.action_space(agent)) for agent in agents]
    for agent, other in zip(agents, found, strict=True):
        for what, space, first in zip(("observations", "actions"), other, found[0], strict=True):
            if space != first:
                raise TrainingError(
                    f"the {what} of agent {agent!r} are {space}, and those of {agents[0]!r}"
                    f" {first}: agents that learn together need the same spaces; pad them"
                    " (supersuit.pad_observations_v0, pad_action_space_v0)"
                )
    return found[0]
