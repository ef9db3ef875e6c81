"""SelfPlay: turn-based games against snapshots of the learning model.

    connect_four = partial(pettingzoo.make, "aec", "classic/connect_four-v3")
    ppo.train(ppo.Config(env=SelfPlay(connect_four)))

Once every `every` steps, the run writes a snapshot of its model into `opponents/` in its folder.
At the start of each game an actor draws one of the last `keep`, which plays the other seats until
the end.  So the learner plays against recent versions of itself, and does not forget how to beat
them (Bansal et al. 2018, https://arxiv.org/abs/1710.03748, section 3.2).

A run that is resumed has the opponents of its checkpoint: those written later are deleted, and
until there is another checkpoint, no older one is.

    writer    the run, through a hook (`SelfPlay.run_hooks`)
    reader    the actors, which list the folder at the start of each game
    draws     uniform, from the environments' random streams: a seed reproduces a run

Actors on other machines need the run's folder at the same path.  Without a run, as in the probe
before a run and in `evaluate`, opponents play at random.
"""

import copy
import io
import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import gymnasium
import numpy as np
import torch
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate
from torch import Tensor, nn

from remotely_rl import durable, networks, trees
from remotely_rl.config import Common
from remotely_rl.environments import action_spaces
from remotely_rl.environments.games import check_makes
from remotely_rl.environments.masks import Masks
from remotely_rl.environments.names import name_of_games
from remotely_rl.environments.observations import ACTION_MASK, OBSERVATION, Observations
from remotely_rl.environments.turn_based import Choice, Opponent, Turn, TurnBased, described
from remotely_rl.errors import TrainingError
from remotely_rl.runs.hooks import Hook
from remotely_rl.trees import Tree

if TYPE_CHECKING:
    from remotely_rl.runs.result import Result
    from remotely_rl.runs.session import Session

FOLDER = "opponents"  # in the folder of a run


class SelfPlay:
    """An `env` of a Config: it makes games in which the other seats are played by snapshots."""

    def __init__(
        self,
        make: Callable[[], Any],
        opponent: Callable[[Any, Any, np.random.Generator], Any] | None = None,
        *,
        every: int = 20_000,
        keep: int = 10,
    ):
        """`make` returns a new game in each call; one is made here, to read its spaces.

        `opponent`, a function of an observation, its mask (or None) and a random generator, plays
        the other seats instead of snapshots, for evaluation.  The run writes a snapshot after
        `every` steps; the last `keep` play.  Raises TrainingError for a game that is not
        turn-based, or whose players have different spaces.
        """
        for name, number in (("every", every), ("keep", keep)):
            if number < 1:
                raise TrainingError(f"{name} must be at least 1, not {number}")
        check_makes("SelfPlay", make)
        self.make = make
        game = make()
        try:
            _, self._observation_space, self._action_space = described(game)
            self.__qualname__ = name_of_games(make, game)
        finally:
            game.close()
        self.opponent = opponent
        self.run: Run | None = None  # the current run, whose snapshots play
        self.run_hooks: tuple[Hook, ...] = ()
        if opponent is None:
            self.run_hooks = (Snapshots(self, every, keep),)

    def __call__(self, num_envs: int) -> TurnBased:
        """Make `num_envs` games."""
        return TurnBased(self.make, num_envs, self._opponent())

    def _opponent(self) -> Opponent:
        """Return a new opponent: it tells games by their numbers, so it serves one TurnBased."""
        if self.opponent is not None:
            return Choice(self.opponent)
        return FormerSelves(self._observation_space, self._action_space, self.run)


class Snapshots(Hook):
    """Writes snapshots of the model, for actors to play against."""

    def __init__(self, env: SelfPlay, every: int, keep: int):
        self._env, self._every, self._keep = env, every, keep
        self._due = 0  # the number of steps at which the next one is written

    def on_start(self, session: "Session[Any]") -> None:
        """Use the snapshots of this run as opponents; the first one is the initial model."""
        folder = session.folder.path.resolve() / FOLDER
        folder.mkdir(exist_ok=True)
        model = networks.copy_to_cpu(session.model).eval()
        self._env.run = Run(folder, session.learner.config, model, self._keep)
        for name in snapshots(folder):
            if steps_at(name) > session.env_steps:
                (folder / name).unlink()
        if left := snapshots(folder):
            self._due = steps_at(left[-1]) + self._every
        else:
            self._write(session, folder)

    def on_update(self, session: "Session[Any]", metrics: Mapping[str, float]) -> None:
        """Write a snapshot if it is due."""
        if session.env_steps >= self._due:
            self._write(session, session.folder.path / FOLDER)

    def on_end(self, session: "Session[Any]", result: "Result") -> None:
        """Detach the env from this run."""
        self._env.run = None
        self._delete_old(session, session.folder.path / FOLDER)

    def _write(self, session: "Session[Any]", folder: Path) -> None:
        self._due = session.env_steps + self._every
        state = {name: tensor.cpu() for name, tensor in session.model.state_dict().items()}
        buffer = io.BytesIO()
        torch.save(state, buffer)
        durable.write(folder / f"{session.env_steps:012}.pt", [buffer.getbuffer()])
        self._delete_old(session, folder)

    def _delete_old(self, session: "Session[Any]", folder: Path) -> None:
        """Delete the snapshots that no longer play, nor would in a run from the last checkpoint."""
        saved = [name for name in snapshots(folder) if steps_at(name) <= session.saved_steps]
        for name in saved[: -self._keep]:
            (folder / name).unlink()


def snapshots(folder: Path) -> list[str]:
    """Return the names of the snapshots in a folder, oldest first; none if there is no folder.

    Files of other names, such as a copy that a user keeps there, are none.
    """
    paths = [Path(name) for name in os.listdir(folder)] if folder.is_dir() else []
    return sorted(path.name for path in paths if path.suffix == ".pt" and path.stem.isdecimal())


def steps_at(name: str) -> int:
    """Return the number of steps at which the snapshot of this name was written."""
    return int(Path(name).stem)


class Run(NamedTuple):
    """A run whose snapshots play."""

    folder: Path  # of the snapshots
    config: Common
    model: nn.Module  # with the architecture of all snapshots
    keep: int  # how many of the last ones play

    @property
    def opponents(self) -> list[str]:
        """The names of the snapshots that play."""
        return snapshots(self.folder)[-self.keep :]


class FormerSelves:
    """The opponents of an actor: in each game a snapshot of the model."""

    def __init__(
        self,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        run: Run | None = None,
    ):
        """Snapshots of `run` play; without a run, opponents play at random."""
        self._observation_space, self._action_space = observation_space, action_space
        self._batch_of_actions = batch_space(action_space)  # `iterate` ignores the size
        self._actions = action_spaces.of(action_space)
        self._observations = Observations(observation_space)
        self.run = run
        self._models: dict[str, nn.Module] = {}  # by name, of the snapshots that play
        self._playing: dict[int, str] = {}  # the name of the snapshot in each game
        self._memory: dict[int, Tensor] = {}  # the recurrent state [S] in each game
        self._generator = torch.Generator()

    def begin(self, game: int, random: np.random.Generator) -> None:
        """Draw the opponent of a game."""
        self._memory.pop(game, None)
        if self.run is None:
            return
        name = None
        while name is None:
            names = self.run.opponents
            if not names:
                raise TrainingError(
                    f"{self.run.folder} has no opponents: actors on other machines need the run's"
                    " folder at the same path"
                )
            name = self._loaded(names[random.integers(len(names))], self.run)
        self._playing[game] = name
        for unused in self._models.keys() - self._playing.values():
            del self._models[unused]

    def act(
        self, games: Sequence[int], turns: Sequence[Turn], random: np.random.Generator
    ) -> Sequence[Any]:
        """Draw an action in each game, with one pass of each network that plays."""
        if self.run is None:
            self._action_space.seed(int(random.integers(2**31)))
            return [self._action_space.sample(turn.mask) for turn in turns]
        taken: list[Any] = [None] * len(games)
        self._generator.manual_seed(int(random.integers(2**31)))
        of_each = sorted(range(len(games)), key=lambda i: self._playing[games[i]])
        for name, group in itertools.groupby(of_each, lambda i: self._playing[games[i]]):
            which = list(group)
            turns_of_one = [turns[i] for i in which]
            actions = self._draw(name, self.run.config, [games[i] for i in which], turns_of_one)
            for i, action in zip(which, actions, strict=True):
                taken[i] = action
        return taken

    @torch.inference_mode()
    def _draw(self, name: str, config: Common, games: Sequence[int], turns: Sequence[Turn]) -> Any:
        """Return the actions of one network, in several games."""
        model, count = self._models[name], len(games)
        into: Any = create_empty_array(self._observation_space, count)
        batch = concatenate(self._observation_space, [turn.obs for turn in turns], into)
        seen = self._observations.of(batch)
        if turns[0].mask is not None:
            seen = {OBSERVATION: seen, ACTION_MASK: self._masks([turn.mask for turn in turns])}
        obs: Tree = trees.map_tree(lambda x: torch.from_numpy(x)[None], seen)
        start = networks.initial_state(model, count)
        memory = torch.stack([self._memory.get(game, start[i]) for i, game in enumerate(games)])
        begins = torch.tensor([[game not in self._memory for game in games]])
        policy, _, memory = networks.unroll(model, obs, memory, begins)
        if memory.shape[1]:
            self._memory.update(zip(games, memory, strict=True))
        action = config.draw(self._actions, policy[0].float(), self._generator)
        taken = self._actions.to_environment(action.numpy())
        return iterate(self._batch_of_actions, taken)

    def _masks(self, masks: Sequence[Any]) -> Any:
        if isinstance(masks[0], np.ndarray):
            return Masks(self._actions, len(masks)).of(np.stack(masks))
        return np.concatenate([Masks(self._actions, 1).of_one(mask) for mask in masks])

    def _loaded(self, name: str, run: Run) -> str | None:
        """Load the network of a snapshot; return its name, or None if it has been deleted."""
        if name in self._models:
            return name
        try:
            state = torch.load(run.folder / name, map_location="cpu", weights_only=True)
        except FileNotFoundError:
            return None
        self._models[name] = copy.deepcopy(run.model)
        self._models[name].load_state_dict(state)
        return name

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_generator": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Raise FileNotFoundError if the run's folder has moved: its games cannot continue."""
        self.__dict__.update(state, _generator=torch.Generator())
        if self.run is not None:
            self.run.folder.stat()
