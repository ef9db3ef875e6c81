"""Host: an actor with some of the environments of a VectorEnv.

On the VectorEnv's machine one call, `serve`, runs for as long as it is asked for nothing but steps:
a bell wakes it for each, and its rows are in shared memory.  Everything else is an ordinary call,
for which the VectorEnv rings PAUSE first.  On another machine a step is an ordinary call as well.
"""

import os
import pickle
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import cloudpickle
import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

import remotely
from remotely_rl.supervision import CrashReport, SupervisedVectorEnv, failures, flight
from remotely_rl.supervision.vector import CRASH, Make
from remotely_rl.supervision.watchdog import SWITCH, Watch
from remotely_rl.vector.bells import MORE, STEP, Address, Bell
from remotely_rl.vector.board import FAILED, MAIL, Board
from remotely_rl.vector.whole import Whole


class Settings(NamedTuple):
    """What a host needs to know of its VectorEnv."""

    autoreset_mode: AutoresetMode
    episode_seeds: bool
    check_finite: bool
    step_timeout_s: float
    cpus: float  # that a host reserves
    # All makes of a host are one, which makes its environments as a whole: given their number, and
    # how they are watched over.  Of infos the VectorEnv then needs some keys alone.
    are_whole: bool = False
    keys: frozenset[str] | None = None
    keys_at_end: frozenset[str] = frozenset()  # and these, in a step in which an episode ends
    first_index: int = 0  # of the VectorEnv's environments, where they are a part of all
    waits: bool = False  # an environment whose episode is over may be stepped: it stays as it is


class Description(NamedTuple):
    """What a VectorEnv needs to know of its environments."""

    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]
    metadata: dict[str, Any]
    render_mode: str | None
    pid: int


class Rest(NamedTuple):
    """What a row has that is not in arrays."""

    infos: dict[str, Any]
    crashes: list[CrashReport]


class Message(NamedTuple):
    """The rows of a step, or of a reset, as a message."""

    observations: list[NDArray[Any]]  # of the leaves that are arrays
    objects: list[list[Any]]  # of the others
    outcomes: tuple[NDArray[Any], ...]  # rewards, terminated, truncated
    rest: Rest


@remotely.remote_class
class Host:
    """See the module's docstring.  Without environments at first: a spare one has none."""

    envs: Any  # a SupervisedVectorEnv, or what has its methods
    _bell: Bell | None = None
    _parity = 0

    def make(
        self,
        makes: Sequence[Make],
        settings: Settings,
        attributes: Mapping[str, dict[int, Any]] = MappingProxyType({}),
        is_replacement: bool = False,
        first_index: int = 0,
    ) -> None:
        """Make the environments, from the VectorEnv's `first_index` on; set attributes of each.

        Those of a replacement have ended: its first step begins an episode of each.
        """
        if is_replacement:
            failures.disable_stack_dumps()
        is_alone = remotely.current_actor() is not None  # else it is in the user's process
        self._keys, self._keys_at_end = settings.keys, settings.keys_at_end
        self._watch = Watch(
            remotely.flight_recorder(flight.nbytes_of(len(makes))),
            settings.step_timeout_s if is_alone else 0.0,
        )
        if settings.are_whole:
            make: Any = makes[0]
            vector = make(len(makes), self._watch)
            if isinstance(vector, SupervisedVectorEnv):
                vector.copy, vector.first_index = False, settings.first_index + first_index
            self.envs = vector if isinstance(vector, SupervisedVectorEnv) else Whole(vector)
        else:
            self.envs = SupervisedVectorEnv(
                makes,
                copy=False,
                autoreset_mode=settings.autoreset_mode,
                episode_seeds=settings.episode_seeds,
                check_finite=settings.check_finite,
                step_timeout_s=self._watch.step_timeout_s,
                flight=self._watch.flight,
                first_index=first_index,
            )
        for name, values in attributes.items():
            self.set_attr(name, values)
        if is_replacement:
            self.end_episodes(range(len(makes)))

    def ping(self) -> None:
        """Return, which a host that has died does not."""

    def describe(self) -> Description:
        """Return what the environments are."""
        envs = self.envs
        return Description(
            envs.single_observation_space,
            envs.single_action_space,
            envs.metadata,
            envs.render_mode,
            os.getpid(),
        )

    def share(self, board: Board, address: Address) -> int:
        """Write rows into this memory from now on, and be woken by this bell; return the pid."""
        self._bell = Bell(address)
        self._board, self._index = board, address.host
        self._write_into(board)
        return os.getpid()

    def _write_into(self, board: Board) -> None:
        rows = slice(*board.begins[self._index : self._index + 2])
        self.envs.write_into(
            [[array[rows] for array in arrays] for arrays in board.observations],
            board.rewards[rows],
            board.terminated[rows],
            board.truncated[rows],
        )
        self._parity = 0

    def serve(self) -> None:
        """Take a step whenever the bell rings for one; return when it rings for anything else."""
        bell, board, index = self._bell, self._board, self._index
        assert bell is not None
        while (what := bell.wait()) in STEP:  # 3 of bells.py
            try:
                self._turn(STEP.index(what))
                infos = self._needed(self.envs.step(board.read_actions(index))[-1])
                if infos or self.envs.crashes:
                    self._send(bell, _pickled(Rest(infos, self.envs.pop_crashes())))
                else:
                    board.mail_nbytes[index] = 0  # 4: rows are written before
            except BaseException:
                # Before the call raises: the VectorEnv then does not wait for rows that never come.
                board.mail_nbytes[index] = FAILED
                bell.answer()
                raise
            bell.answer()  # 5

    def step(self, actions: Any) -> Message:
        """Take a step; return its rows."""
        return self._message(self.envs.step(actions)[-1])

    def reset(
        self, seeds: Sequence[int | None], options: dict[str, Any] | None, parity: int
    ) -> Message | Rest:
        """Reset the environments; return the rows, or the rest of them if they are shared."""
        if self._bell is None:
            return self._message(self.envs.reset(seed=seeds, options=options)[1])
        self._turn(parity, swap=False)
        infos = self.envs.reset(seed=seeds, options=options)[1]
        return Rest(self._needed(infos), self.envs.pop_crashes())

    def end_episodes(self, which: Sequence[int]) -> None:
        """Let the next step of these environments be one that resets them."""
        self.envs.end_episodes(which)

    def call(self, which: Sequence[int], name: str, args: Any, kwargs: Any) -> list[Any]:
        """Call a method of these environments, or read an attribute."""
        with SWITCH.paused():
            return [self.envs.call_one(i, name, *args, **kwargs) for i in which]

    def set_attr(self, name: str, values: dict[int, Any]) -> None:
        """Set an attribute of some environments."""
        with SWITCH.paused():
            for i, value in values.items():
                self.envs.set_attr_of(i, name, value)

    def render(self) -> tuple[Any, ...] | None:
        """Return a frame of each environment."""
        with SWITCH.paused():
            frames: tuple[Any, ...] | None = self.envs.render()
            return frames

    def are_wrapped(self, which: Sequence[int], wrapper: type) -> list[bool]:
        """Return which of these environments have a wrapper of a class."""
        return [_is_wrapped(self.envs.envs[i], wrapper) for i in which]

    def pause(self) -> bytes:
        """Return a state from which `resume` goes on bit by bit.

        It is empty if the environments cannot be saved.
        """
        try:
            with SWITCH.paused():
                return bytes(cloudpickle.dumps(self.envs))
        except Exception:  # pickling a user's environment may raise anything
            return b""

    def resume(self, paused: bytes, parity: int) -> bool:
        """Go on from such a state; return false, and change nothing, if it cannot be read."""
        try:
            # From the checkpoint of a run of the user's own.
            with SWITCH.paused():
                envs = cloudpickle.loads(paused)
        except Exception:  # as in `pause`
            return False
        self.envs.close()
        self.envs = envs
        envs.watch(*self._watch)
        if self._bell is not None:
            last = envs.rows
            self._write_into(self._board)
            self._turn(parity, swap=False)
            for i in range(len(self._board.read_actions(self._index))):
                envs.rows.copy_row(i, last)
        return True

    def close(self) -> None:
        """Close the environments."""
        if hasattr(self, "envs"):
            self.envs.close()

    def _turn(self, parity: int, swap: bool = True) -> None:
        """Let the next rows go into this list of observations."""
        if (self._parity != parity) != swap:
            self.envs.swap_rows()
        self._parity = parity

    def _needed(self, infos: dict[str, Any]) -> dict[str, Any]:
        """Return the infos that the VectorEnv needs."""
        if self._keys is None:
            return infos
        keys = self._keys & infos.keys()
        if at_end := self._keys_at_end & infos.keys():
            _, terminated, truncated = self.envs.outcomes
            keys |= at_end if (terminated | truncated).any() else set()
        needed = {key: infos[key] for key in keys}
        for key in needed.keys() - {CRASH}:  # of a whole, all have it
            if not key.startswith("_") and f"_{key}" not in infos:
                needed[f"_{key}"] = np.ones(len(self.envs.outcomes[0]), np.bool_)
        return needed

    def _message(self, infos: dict[str, Any]) -> Message:
        envs = self.envs
        rest = Rest(self._needed(infos), envs.pop_crashes())
        rows = envs.rows
        return Message(rows.arrays, rows.objects, envs.outcomes, rest)

    def _send(self, bell: Bell, data: bytes) -> None:
        """Put it into the mail, a part at a time."""
        board, host = self._board, self._index
        for begin in range(0, len(data), MAIL):
            part = data[begin : begin + MAIL]
            board.mail[host, : len(part)] = np.frombuffer(part, np.uint8)
            is_last = begin + MAIL >= len(data)
            board.mail_nbytes[host] = len(part) if is_last else -len(part)  # 4
            if not is_last:
                bell.answer()
                if bell.wait() != MORE:
                    raise BrokenPipeError("the VectorEnv is gone")


def _pickled(rest: Rest) -> bytes:
    try:
        return pickle.dumps(rest, 5)
    except (pickle.PicklingError, TypeError, AttributeError):  # a class of the user's script
        return bytes(cloudpickle.dumps(rest, 5))


def _is_wrapped(env: gymnasium.Env[Any, Any], wrapper: type) -> bool:
    while not isinstance(env, wrapper):
        if not isinstance(env, gymnasium.Wrapper):
            return False
        env = env.env
    return True
