"""Multi-agent environments (PettingZoo's parallel API), with a row for each agent.

    ppo.train(ppo.Config(env=MultiAgent(simple_spread_v3.parallel_env)))

Each agent of a game is a row of a vector environment, so every algorithm learns one policy from the
experience of all agents (as in SuperSuit, https://github.com/Farama-Foundation/SuperSuit).  With
`separate`, observations contain the agent's index, and each agent has its own parameters
(networks/per_agent.py).

The row of an agent that is not in its game is an episode that is over:

    the agent                            its row
    acts                                 a normal step
    dies, or disappears                  terminated if the game says so, else truncated
    is absent                            terminated at each step, and not experience
    appears, or reappears                the first observation of an episode
    is the last one to leave             the next step starts a new game, for all agents

When a game is over, `info` has the return of each agent (environments/episodes.py).

These are the rows of an environment with next-step autoreset (NEXT_STEP), except for a game that
starts without some of its agents: `info` of the reset then marks those as `absent`.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import iterate

from remotely_rl.environments import episodes
from remotely_rl.environments.games import (
    ABSENT,
    Game,
    SideBySide,
    Step,
    check_makes,
    spaces_of,
)
from remotely_rl.environments.names import name_of_games
from remotely_rl.environments.observations import ACTION_MASK, AGENT, OBSERVATION
from remotely_rl.errors import TrainingError
from remotely_rl.supervision.made import takes_turns
from remotely_rl.supervision.rows import WrongShape
from remotely_rl.supervision.seeds import Seeds, of_each


class MultiAgent:
    """A maker of multi-agent games, for `env` of a Config.  It can be pickled.

    `agents` has the names of all agents that may appear, in the order of their rows.
    """

    def __init__(self, make: Callable[[], Game], *, separate: bool = False):
        """`make` returns a new parallel environment in each call; it is called once here.

        With `separate` each agent has its own parameters; by default all agents share them.
        Raises TrainingError for a turn-based environment, for one that does not name its agents,
        and for agents whose spaces differ.
        """
        check_makes("MultiAgent", make)
        self.make, self.separate = make, separate
        game = make()
        try:
            self.agents = _agents_of(game)
            self.observation_space, self.action_space = spaces_of(game, self.agents)
            self.__qualname__ = name_of_games(make, game)
        finally:
            game.close()

    def __call__(self, num_envs: int) -> "Games":
        """Make games with `num_envs` agents in total."""
        count, rest = divmod(num_envs, len(self.agents))
        if rest or not count:
            raise TrainingError(
                f"{num_envs} rows are not whole games: each game has {len(self.agents)} agents"
            )
        return Games(self, count)


class Games(SideBySide):
    """Several games; the rows of a game are its agents, in order."""

    def __init__(self, source: MultiAgent, count: int):
        self.agents = source.agents
        space = source.observation_space
        # With `separate` the observation is nested, so its mask is copied to `info`.
        self._numbered = source.separate
        self._masked = source.separate and (
            isinstance(space, spaces.Dict) and ACTION_MASK in space.spaces
        )
        if source.separate:
            index = spaces.Discrete(len(self.agents))
            space = spaces.Dict({OBSERVATION: space, AGENT: index})
        games, rows = [source.make() for _ in range(count)], count * len(self.agents)
        super().__init__(games, rows, space, source.action_space)
        space.seed(0)
        for row in range(rows):  # agents that have not appeared yet need some valid observation
            self._rows.write(row, space.sample())
        self._acts = np.zeros(rows, np.bool_)  # whether the row's agent can act
        self._returns = np.full(rows, np.nan)  # of agents that have acted in this game

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all games, or those of options["reset_mask"], which must cover whole games.

        If there are several seeds, a game uses that of its first row.
        """
        options = dict(options or {})
        mask = options.pop("reset_mask", np.ones(self.num_envs, np.bool_)).reshape(
            len(self.games), -1
        )
        if (mask.any(1) != mask.all(1)).any():
            raise ValueError("the agents of a game start together: reset all of its rows, or none")
        seeds = of_each(seed, self.num_envs)
        infos: dict[str, Any] = {}
        for number in np.flatnonzero(mask.all(1)):
            if (given := seeds[number * len(self.agents)]) is not None:
                self._seeds[number] = Seeds(given)
            infos = self._begin(int(number), options, infos)
        return self._rows.value(True), {**infos, ABSENT: ~self._acts}

    def step(self, actions: Any) -> Step:
        """Take a step in each game, or reset it if it is over."""
        actions = list(iterate(self.action_space, actions))
        self._reward[:] = 0.0
        self._truncated[:] = False
        infos: dict[str, Any] = {}
        for number, game in enumerate(self.games):
            if self._is_running(number):
                infos = self._play(number, game, actions, infos)
            else:
                infos = self._begin(number, None, infos)
        return self._stepped(infos)

    def _rows_of(self, number: int) -> Iterator[tuple[int, Any]]:
        """Yield the row and the name of each agent of a game."""
        return enumerate(self.agents, number * len(self.agents))

    def _begin(
        self, number: int, options: dict[str, Any] | None, infos: dict[str, Any]
    ) -> dict[str, Any]:
        """Reset a game; return the infos with those of its agents."""
        game = self.games[number]
        obs, agent_infos = game.reset(seed=self._seeds[number].next(), options=options or None)
        for row, agent in self._rows_of(number):
            self._acts[row] = agent in game.agents
            self._terminated[row] = not self._acts[row]
            self._returns[row] = np.nan
            infos = self._write(row, agent, obs, agent_infos, infos)
        return infos

    def _play(
        self, number: int, game: Game, actions: Sequence[Any], infos: dict[str, Any]
    ) -> dict[str, Any]:
        """Take a step in a game; return the infos with those of its agents."""
        present = set(game.agents)
        taken = {agent: actions[row] for row, agent in self._rows_of(number) if agent in present}
        obs, reward, terminated, truncated, agent_infos = game.step(taken)
        present = set(game.agents)
        for row, agent in self._rows_of(number):
            is_over = bool(terminated.get(agent, False)), bool(truncated.get(agent, False))
            acts = agent in present and not any(is_over)
            if self._acts[row]:
                self._reward[row] = float(reward.get(agent, 0.0))
                self._returns[row] = np.nan_to_num(self._returns[row]) + self._reward[row]
                if not (acts or any(is_over)):  # it has disappeared
                    is_over = False, True
                self._terminated[row], self._truncated[row] = is_over
            else:
                self._terminated[row] = not acts
            self._acts[row] = acts
            infos = self._write(row, agent, obs, agent_infos, infos)
        return infos if self._is_running(number) else self._add_returns(number, infos)

    def _is_running(self, number: int) -> bool:
        return any(self._acts[row] for row, _ in self._rows_of(number))

    def _add_returns(self, number: int, infos: dict[str, Any]) -> dict[str, Any]:
        """Add the return of each agent in a finished game, as metrics of the episode."""
        returns = {
            f"return_{agent}": float(self._returns[row])
            for row, agent in self._rows_of(number)
            if not np.isnan(self._returns[row])
        }
        return self._add_info(infos, {episodes.OWN: returns}, number * len(self.agents))

    def _write(
        self,
        row: int,
        agent: Any,
        obs: dict[Any, Any],
        agent_infos: dict[Any, dict[str, Any]],
        infos: dict[str, Any],
    ) -> dict[str, Any]:
        """Write an agent's observation, if there is one; return the infos with the agent's.

        Raises TrainingError for an observation outside its space.
        """
        info = agent_infos.get(agent) or {}
        if agent in obs:
            observed = obs[agent]
            if self._masked:
                info = {**info, ACTION_MASK: observed[ACTION_MASK]}
            if self._numbered:
                observed = {OBSERVATION: observed, AGENT: row % len(self.agents)}
            try:
                self._rows.write(row, observed)
            except WrongShape as error:
                raise TrainingError(f"agent {agent!r}: {error}") from None
        return self._add_info(infos, info, row) if info else infos


def _agents_of(game: Game) -> tuple[Any, ...]:
    if isinstance(game, gymnasium.Env):
        raise TrainingError(
            f"{game} is a gymnasium.Env, which has one agent: pass its maker as env, without"
            " MultiAgent"
        )
    if takes_turns(game):
        raise TrainingError(
            f"the agents of {game} take turns (an AECEnv), but those of MultiAgent act at once: use"
            " its parallel_env, or pettingzoo.utils.aec_to_parallel(env); for a game of two players"
            " there is SelfPlay"
        )
    agents = tuple(getattr(game, "possible_agents", ()))
    if not agents:
        raise TrainingError(
            f"{game} has no possible_agents, which must list all agents that may appear in it"
        )
    return agents
