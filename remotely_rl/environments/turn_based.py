"""Turn-based games (PettingZoo's AEC API), as environments of one of their players.

The learner has one seat in each game, and the next seat in the next game.  An `Opponent` has all
other seats in all games, so that a network chooses for them in one batch.  A step is the learner's
move and the moves of the others until its next turn; its reward is the sum in between.

A game is any object with `possible_agents`, `observation_space`, `action_space`, `reset`,
`agent_selection`, `last` and `step` as in PettingZoo: after the end each player has a last turn, in
which the others pass with `step(None)`.
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
)
from remotely_rl.environments.observations import ACTION_MASK
from remotely_rl.errors import TrainingError
from remotely_rl.supervision.made import takes_turns
from remotely_rl.supervision.rows import WrongShape
from remotely_rl.supervision.seeds import Seeds, of_each


class Turn(NamedTuple):
    """A player's turn: its observation and its mask, which is None if all actions are legal."""

    obs: Any
    mask: Any


class Opponent(Protocol):
    """The player of all seats but the learner's, in several games."""

    def begin(self, game: int, random: np.random.Generator) -> None:
        """Prepare for a new game, identified by its number."""
        ...

    def act(
        self, games: Sequence[int], turns: Sequence[Turn], random: np.random.Generator
    ) -> Sequence[Any]:
        """Return an action for each of these games."""
        ...


class Described(NamedTuple):
    """The seats and the spaces of a game."""

    seats: tuple[Any, ...]
    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]


def described(game: Game) -> Described:
    """Return the seats and spaces of a game.

    Raises TrainingError if it is not turn-based, has fewer than two seats, or their spaces differ.
    """
    if isinstance(game, gymnasium.Env) or not takes_turns(game):
        what = "has one agent" if isinstance(game, gymnasium.Env) else "lets all agents act at once"
        raise TrainingError(
            f"{game} {what}: SelfPlay takes turn-based games, such as PettingZoo's AECEnv; for"
            " agents that act at once there is MultiAgent"
        )
    seats = tuple(getattr(game, "possible_agents", ()))
    if len(seats) < 2:
        raise TrainingError(f"{game} has possible_agents {seats}: self-play needs two or more")
    return Described(seats, *spaces_of(game, seats))


class TurnBased(SideBySide):
    """Several games; a row is the learner's seat in one."""

    def __init__(self, make: Callable[[], Game], count: int, opponent: Opponent):
        games = [make() for _ in range(count)]
        self._seats, space, action_space = described(games[0])
        super().__init__(games, count, space, action_space)
        self._mask_is_observed = isinstance(space, spaces.Dict) and ACTION_MASK in space.spaces
        self._opponent = opponent
        self._begun = list(range(count))  # games begun; the learner's next seat is this, modulo
        self._seat: list[Any] = [self._seats[0]] * count
        self._random = np.random.default_rng()

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all games, or those of options["reset_mask"]."""
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
        # As after a step, because a game may be over before the learner's first turn.
        return self._rows.value(True), {**infos, ABSENT: self._terminated | self._truncated}

    def step(self, actions: Any) -> Step:
        """Move in each game, or reset it if it is over."""
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
        """Let the opponent move in these games until the learner's turn; write the learner's rows.

        Returns their infos.
        """
        infos: dict[str, Any] = {}
        while games:
            waiting: list[int] = []
            turns: list[Turn] = []
            for number in games:
                game, seat = self.games[number], self._seat[number]
                obs, reward, terminated, truncated, info = game.last()
                while game.agent_selection != seat and (terminated or truncated):
                    game.step(None)  # a player's last turn after the end
                    obs, reward, terminated, truncated, info = game.last()
                if game.agent_selection == seat:
                    self._write(number, obs)
                    self._reward[number] = reward
                    self._terminated[number], self._truncated[number] = terminated, truncated
                    infos = self._add_info(infos, info, number) if info else infos
                else:
                    waiting.append(number)
                    source = obs if self._mask_is_observed else info
                    turns.append(Turn(obs, source.get(ACTION_MASK)))
            if waiting:
                actions = self._opponent.act(waiting, turns, self._random)
                for number, action in zip(waiting, actions, strict=True):
                    self.games[number].step(action)
            games = waiting
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
        """Do nothing: the function plays every game."""

    def act(
        self, games: Sequence[int], turns: Sequence[Turn], random: np.random.Generator
    ) -> Sequence[Any]:
        """Call the function for each game."""
        return [self._choose(obs, mask, random) for obs, mask in turns]
