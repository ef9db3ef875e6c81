"""Turn-based games, PettingZoo's AEC ones, as environments of one of their players.

The learner has a seat in each game, another one in the next; an `Opponent` has all other seats, in
all games at once, so that a network chooses for them together.  A step is the learner's move, and
the moves of the others until it is its turn again; its reward is what the game has given it
meanwhile.

A game is whatever has `possible_agents`, `observation_space`, `action_space`, `reset`,
`agent_selection`, `last` and `step` with their meaning in PettingZoo: after the end each player
gets its last turn, in which the others pass by `step(None)`.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import iterate

from remotely_rl.environments.games import (
    ABSENT,
    Game,
    SideBySide,
    Step,
    spaces_of,
    takes_turns,
)
from remotely_rl.environments.observations import ACTION_MASK
from remotely_rl.errors import TrainingError
from remotely_rl.supervision.rows import WrongShape
from remotely_rl.supervision.seeds import Seeds, of_each


class Turn(NamedTuple):
    """A turn of a player: what it sees, and which actions are legal; None where all are."""

    obs: Any
    mask: Any


class Opponent(Protocol):
    """Who has the other seats of games that are played side by side."""

    def begin(self, game: int, random: np.random.Generator) -> None:
        """A game begins, known by its number: decide who plays it."""
        ...

    def act(
        self, games: Sequence[int], turns: Sequence[Turn], random: np.random.Generator
    ) -> Sequence[Any]:
        """Return an action for each of these games."""
        ...


class Described(NamedTuple):
    """What is known of a game before it is played."""

    seats: tuple[Any, ...]
    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]


def described(game: Game) -> Described:
    """Look at a game.  Raises TrainingError for one that is not turn-based, or cannot be shared."""
    if isinstance(game, gymnasium.Env) or not takes_turns(game):
        what = "has one agent" if isinstance(game, gymnasium.Env) else "lets all agents act at once"
        raise TrainingError(
            f"{game} {what}: SelfPlay takes games in turns, as PettingZoo's AECEnv; for agents that"
            " act at once there is MultiAgent"
        )
    seats = tuple(getattr(game, "possible_agents", ()))
    if len(seats) < 2:
        raise TrainingError(f"{game} has possible_agents {seats}: self-play needs two or more")
    return Described(seats, *spaces_of(game, seats))


class TurnBased(SideBySide):
    """Games side by side: a row is the learner's seat in one."""

    def __init__(self, make: Callable[[], Game], count: int, opponent: Opponent):
        games = [make() for _ in range(count)]
        self._seats, space, action_space = described(games[0])
        super().__init__(games, count, space, action_space)
        self._mask_is_observed = isinstance(space, spaces.Dict) and ACTION_MASK in space.spaces
        self._opponent = opponent
        self._begun = list(range(count))  # of which the learner's seat in the next game follows
        self._seat: list[Any] = [self._seats[0]] * count
        self._random = np.random.default_rng()

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Begin all games, or those of options["reset_mask"]."""
        options = dict(options or {})
        mask = options.pop("reset_mask", np.ones(self.num_envs, np.bool_))
        seeds = of_each(seed, self.num_envs)
        if seeds[0] is not None:
            self._random = np.random.default_rng(seeds[0])
        which = np.flatnonzero(mask).tolist()
        for number in which:
            if (given := seeds[number]) is not None:
                self._seeds[number], self._begun[number] = Seeds(given), number
            self._begin(number, options)
        infos = self._let_others_move(which)
        # As after a step: a game may be over before the learner's first turn.
        return self._rows.value(True), {**infos, ABSENT: self._terminated | self._truncated}

    def step(self, actions: Any) -> Step:
        """Move in each game, or begin another where the last one is over."""
        for number, action in enumerate(iterate(self.action_space, actions)):
            if self._terminated[number] or self._truncated[number]:
                self._begin(number, {})
            else:
                self.games[number].step(action)
        infos = self._let_others_move(range(self.num_envs))
        return self._stepped(infos)

    def _begin(self, number: int, options: dict[str, Any]) -> None:
        self.games[number].reset(seed=self._seeds[number].next(), options=options or None)
        self._seat[number] = self._seats[self._begun[number] % len(self._seats)]
        self._begun[number] += 1
        self._opponent.begin(number, self._random)

    def _let_others_move(self, games: Sequence[int]) -> dict[str, Any]:
        """Let the others move in these games until it is the learner's turn; write its rows.

        Returns their infos.
        """
        infos: dict[str, Any] = {}
        while games:
            asked: list[int] = []
            turns: list[Turn] = []
            for number in games:
                game, seat = self.games[number], self._seat[number]
                obs, reward, terminated, truncated, info = game.last()
                while game.agent_selection != seat and (terminated or truncated):
                    game.step(None)  # a player leaves whose game is over
                    obs, reward, terminated, truncated, info = game.last()
                if game.agent_selection == seat:
                    self._write(number, obs)
                    self._reward[number] = reward
                    self._terminated[number], self._truncated[number] = terminated, truncated
                    infos = self._add_info(infos, info, number) if info else infos
                else:
                    asked.append(number)
                    told = obs if self._mask_is_observed else info
                    turns.append(Turn(obs, told.get(ACTION_MASK)))
            if asked:
                actions = self._opponent.act(asked, turns, self._random)
                for number, action in zip(asked, actions, strict=True):
                    self.games[number].step(action)
            games = asked
        return infos

    def _write(self, number: int, obs: Any) -> None:
        try:
            self._rows.write(number, obs)
        except WrongShape as error:
            raise TrainingError(f"player {self._seat[number]!r}: {error}") from None


class Choice:
    """An opponent that is a function of a player's observation."""

    def __init__(self, choose: Callable[[Any, Any, np.random.Generator], Any]):
        """`choose(obs, mask, random)` returns an action."""
        self._choose = choose

    def begin(self, game: int, random: np.random.Generator) -> None:
        """It plays every game."""

    def act(
        self, games: Sequence[int], turns: Sequence[Turn], random: np.random.Generator
    ) -> Sequence[Any]:
        """Ask the function, game by game."""
        return [self._choose(obs, mask, random) for obs, mask in turns]
