"""MultiAgent: environments of several agents, PettingZoo's parallel ones, as rows of agents.

    ppo.train(ppo.Config(env=MultiAgent(simple_spread_v3.parallel_env)))

Each agent of a game is a row of a vector environment, so that every algorithm learns one policy
from the experience of all (as SuperSuit does it, https://github.com/Farama-Foundation/SuperSuit).
With `separate`, observations say which agent sees them, and each has parameters of its own
(networks/per_agent.py).

An agent that is not in its game is a row whose episode is over:

    what happens to the agent            its row
    it acts                              a step like any other
    it dies, or is gone without a word   terminated, as the game says; or truncated
    it is absent                         terminated again and again, which is no experience
    it appears, or appears again         the first observation of an episode
    no agent is left                     the step after it begins another game, for all

When a game is over, `info` tells what each agent has got in it (environments/episodes.py).

Such rows are what an environment returns that resets itself in the step after the end (NEXT_STEP),
but for a game that begins without some of its agents: `info` of the reset then says which are
`absent`.
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
    spaces_of,
    takes_turns,
)
from remotely_rl.environments.names import name_of_games
from remotely_rl.environments.observations import ACTION_MASK, AGENT, OBSERVATION
from remotely_rl.errors import TrainingError
from remotely_rl.supervision.rows import WrongShape
from remotely_rl.supervision.seeds import Seeds, of_each


class MultiAgent:
    """Makes games of several agents: an `env` of a Config.  It can be sent to other processes.

    `agents` are the names of all that may appear, in the order of their rows.
    """

    def __init__(self, make: Callable[[], Game], *, separate: bool = False):
        """`make` returns a new parallel environment in each call; one is made here, and looked at.

        With `separate` each agent has parameters of its own, by default all share theirs.
        Raises TrainingError for an environment that takes turns, one that does not name its agents,
        and agents whose spaces differ.
        """
        self.make, self.separate = make, separate
        game = make()
        try:
            self.agents = _agents_of(game)
            self.observation_space, self.action_space = spaces_of(game, self.agents)
            self.__qualname__ = name_of_games(make, game)
        finally:
            game.close()

    def __call__(self, num_envs: int) -> "Games":
        """Make as many games as have `num_envs` agents in all."""
        count, rest = divmod(num_envs, len(self.agents))
        if rest or not count:
            raise TrainingError(
                f"{num_envs} rows are no whole games: each has {len(self.agents)} agents"
            )
        return Games(self, count)


class Games(SideBySide):
    """Games side by side; the rows of a game are its agents, in their order."""

    def __init__(self, source: MultiAgent, count: int):
        self.agents = source.agents
        seen = source.observation_space
        # The mask of a nested observation would not be found: it is in `info`.
        self._numbered = source.separate
        self._masked = source.separate and (
            isinstance(seen, spaces.Dict) and ACTION_MASK in seen.spaces
        )
        if source.separate:
            which = spaces.Discrete(len(self.agents))
            seen = spaces.Dict({OBSERVATION: seen, AGENT: which})
        games, rows = [source.make() for _ in range(count)], count * len(self.agents)
        super().__init__(games, rows, seen, source.action_space)
        seen.seed(0)
        for row in range(rows):  # of agents that were never there: anything that is an observation
            self._rows.write(row, seen.sample())
        self._acts = np.zeros(rows, np.bool_)  # that the row has an agent which can act
        self._returns = np.full(rows, np.nan)  # of agents that have acted in this game

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Begin all games, or those of options["reset_mask"], whose rows are whole games.

        Of several seeds, that of its first row is the seed of a game.
        """
        options = dict(options or {})
        mask = options.pop("reset_mask", np.ones(self.num_envs, np.bool_)).reshape(
            len(self.games), -1
        )
        if (mask.any(1) != mask.all(1)).any():
            raise ValueError("the agents of a game begin together: reset all of its rows, or none")
        seeds = of_each(seed, self.num_envs)
        infos: dict[str, Any] = {}
        for number in np.flatnonzero(mask.all(1)):
            if (given := seeds[number * len(self.agents)]) is not None:
                self._seeds[number] = Seeds(given)
            infos = self._begin(int(number), options, infos)
        return self._rows.value(True), {**infos, ABSENT: ~self._acts}

    def step(self, actions: Any) -> Step:
        """Take a step in each game, or begin another where the last one is over."""
        each = list(iterate(self.action_space, actions))
        self._reward[:] = 0.0
        self._truncated[:] = False
        infos: dict[str, Any] = {}
        for number, game in enumerate(self.games):
            if self._is_on(number):
                infos = self._play(number, game, each, infos)
            else:
                infos = self._begin(number, None, infos)
        return self._stepped(infos)

    def _rows_of(self, number: int) -> Iterator[tuple[int, Any]]:
        """Yield the row and the name of each agent of a game."""
        return enumerate(self.agents, number * len(self.agents))

    def _begin(
        self, number: int, options: dict[str, Any] | None, infos: dict[str, Any]
    ) -> dict[str, Any]:
        """Begin a game; return the infos with those of its agents."""
        game = self.games[number]
        obs, told = game.reset(seed=self._seeds[number].next(), options=options or None)
        for row, agent in self._rows_of(number):
            self._acts[row] = agent in game.agents
            self._terminated[row] = not self._acts[row]
            self._returns[row] = np.nan
            infos = self._see(row, agent, obs, told, infos)
        return infos

    def _play(
        self, number: int, game: Game, actions: Sequence[Any], infos: dict[str, Any]
    ) -> dict[str, Any]:
        """Take a step in a game; return the infos with those of its agents."""
        present = set(game.agents)
        taken = {agent: actions[row] for row, agent in self._rows_of(number) if agent in present}
        obs, reward, terminated, truncated, told = game.step(taken)
        present = set(game.agents)
        for row, agent in self._rows_of(number):
            is_over = bool(terminated.get(agent, False)), bool(truncated.get(agent, False))
            acts = agent in present and not any(is_over)
            if self._acts[row]:
                self._reward[row] = float(reward.get(agent, 0.0))
                self._returns[row] = np.nan_to_num(self._returns[row]) + self._reward[row]
                if not (acts or any(is_over)):  # gone without a word
                    is_over = False, True
                self._terminated[row], self._truncated[row] = is_over
            else:
                self._terminated[row] = not acts
            self._acts[row] = acts
            infos = self._see(row, agent, obs, told, infos)
        return infos if self._is_on(number) else self._add_returns(number, infos)

    def _is_on(self, number: int) -> bool:
        return any(self._acts[row] for row, _ in self._rows_of(number))

    def _add_returns(self, number: int, infos: dict[str, Any]) -> dict[str, Any]:
        """Tell of a game that is over what each agent has got in it, as metrics of the episode."""
        of_each = {
            f"return_{agent}": float(self._returns[row])
            for row, agent in self._rows_of(number)
            if not np.isnan(self._returns[row])
        }
        return self._add_info(infos, {episodes.OWN: of_each}, number * len(self.agents))

    def _see(
        self,
        row: int,
        agent: Any,
        obs: dict[Any, Any],
        told: dict[Any, dict[str, Any]],
        infos: dict[str, Any],
    ) -> dict[str, Any]:
        """Write what an agent observes, if it does; return the infos with its own.

        Raises TrainingError for what is not of its space.
        """
        info = told.get(agent) or {}
        if agent in obs:
            seen = obs[agent]
            if self._masked:
                info = {**info, ACTION_MASK: seen[ACTION_MASK]}
            if self._numbered:
                seen = {OBSERVATION: seen, AGENT: row % len(self.agents)}
            try:
                self._rows.write(row, seen)
            except WrongShape as error:
                raise TrainingError(f"agent {agent!r}: {error}") from None
        return self._add_info(infos, info, row) if info else infos


def _agents_of(game: Game) -> tuple[Any, ...]:
    if isinstance(game, gymnasium.Env):
        raise TrainingError(
            f"{game} is a gymnasium.Env, which has one agent: pass what makes it as env, without"
            " MultiAgent"
        )
    if takes_turns(game):
        raise TrainingError(
            f"the agents of {game} take turns (an AECEnv), and those of MultiAgent act at once: use"
            " its parallel_env, or pettingzoo.utils.aec_to_parallel(env); for a game of two players"
            " there is SelfPlay"
        )
    agents = tuple(getattr(game, "possible_agents", ()))
    if not agents:
        raise TrainingError(
            f"{game} has no possible_agents: let that be a list of all agents that may appear in it"
        )
    return agents
