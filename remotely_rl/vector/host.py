"""Host: an actor with some of the environments of a VectorEnv.

On the VectorEnv's machine, the host spends its time in one call of `serve`: a bell wakes it for
each step, and it writes its rows to shared memory.  For any other call the VectorEnv first rings
PAUSE, which ends `serve`.  On another machine a step is an ordinary remote call.
"""

import os
import pickle
from collections.abc import Callable, Mapping, Sequence
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
from remotely_rl.vector.bells import MORE, STEP, Bell, BellAddress
from remotely_rl.vector.board import FAILED, MAIL, Board
from remotely_rl.vector.whole import Whole

# As Gymnasium's: the observation spaces are equal, or differ in their bounds at most, and are named
# or not: that of all environments, and that of one.
ObservationMode = str | tuple[gymnasium.Space[Any], gymnasium.Space[Any]]


def checked_observation_mode(mode: ObservationMode) -> ObservationMode:
    """Return the mode.  Raises what Gymnasium raises: ValueError, TypeError."""
    if isinstance(mode, tuple) and len(mode) == 2:
        if not all(isinstance(space, gymnasium.Space) for space in mode):
            kinds = " and ".join(str(type(space)) for space in mode)
            raise TypeError(f"Expected both elements of observation_mode to be Spaces, got {kinds}")
    elif mode not in ("same", "different"):
        raise ValueError(
            "Invalid `observation_mode`, expected: 'same' or 'different' or tuple of single and "
            f"batch observation space, actual got {mode}"
        )
    return mode


class Settings(NamedTuple):
    """Settings of a VectorEnv that its hosts need."""

    autoreset_mode: AutoresetMode
    episode_seeds: bool
    check_finite: bool
    step_timeout_s: float
    options: Mapping[str, Any]  # of a host, as in `remotely.options`
    # `makes` of a host repeats one function, which makes a vector environment of all of them:
    # `make(count, watch, first)`, numbered from `first` on.
    are_whole: bool = False
    keys: frozenset[str] | None = None  # of infos, those to return; None: all
    keys_at_end: frozenset[str] = frozenset()  # and these, in a step that ends an episode
    first_host: int = 0  # of this VectorEnv, if it has a part of all
    waits: bool = False  # steps leave an environment unchanged whose episode is over
    observation_mode: ObservationMode = "same"


class Description(NamedTuple):
    """Properties of a host's environments that the VectorEnv needs."""

    observation_spaces: list[gymnasium.Space[Any]]  # of each
    action_space: gymnasium.Space[Any]
    metadata: dict[str, Any]
    render_mode: str | None
    pid: int


class Rest(NamedTuple):
    """The part of a step's rows that is not in arrays."""

    infos: dict[str, Any]
    crashes: list[CrashReport]


class StepRows(NamedTuple):
    """The rows of a step or a reset, as a message."""

    observations: list[NDArray[Any]]  # leaves that are arrays
    objects: list[list[Any]]  # the other leaves
    outcomes: tuple[NDArray[Any], ...]  # rewards, terminated, truncated
    rest: Rest


@remotely.remote_class
class Host:
    """See the module's docstring.  It has no environments until `make`; a spare host has none."""

    envs: Any  # a SupervisedVectorEnv or a Whole
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
        """Make the environments and set their attributes; the first has index `first_index`.

        The first step of a replacement begins an episode in each environment.
        """
        if is_replacement:
            failures.disable_stack_dumps()
        is_actor = remotely.current_actor() is not None  # otherwise this is the user's process
        self._keys, self._keys_at_end = settings.keys, settings.keys_at_end
        self._watch = Watch(
            remotely.flight_recorder(flight.nbytes_of(len(makes))),
            settings.step_timeout_s if is_actor else 0.0,
        )
        if settings.are_whole:
            make: Any = makes[0]
            first = settings.first_host * len(makes) + first_index
            vector = make(len(makes), self._watch, first)
            if isinstance(vector, SupervisedVectorEnv):
                vector.copy, vector.first_index = False, first
            self.envs = vector if isinstance(vector, SupervisedVectorEnv) else Whole(vector)
        else:
            self.envs = SupervisedVectorEnv(
                makes,
                copy=False,
                autoreset_mode=settings.autoreset_mode,
                same_spaces=settings.observation_mode == "same",
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
        """Return, to show that the host is alive."""

    def describe(self) -> Description:
        """Return the description of the environments."""
        envs = self.envs
        return Description(
            envs.observation_spaces,
            envs.single_action_space,
            envs.metadata,
            envs.render_mode,
            os.getpid(),
        )

    def share(self, board: Board, address: BellAddress) -> int:
        """Write rows into this memory from now on, and open the bell; return the pid."""
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
        """Take a step whenever the bell rings for one; return on any other command."""
        bell, board, index = self._bell, self._board, self._index
        assert bell is not None
        while (command := bell.wait()) in STEP:  # 3 of bells.py
            try:
                self._use_rows(STEP.index(command))
                infos = self._needed(self.envs.step(board.read_actions(index))[-1])
                if infos or self.envs.crashes:
                    self._send(bell, _pickled(Rest(infos, self.envs.pop_crashes())))
                else:
                    board.mail_nbytes[index] = 0  # 4: after the rows
            except BaseException:
                # Otherwise the VectorEnv would wait for rows that never come.
                board.mail_nbytes[index] = FAILED
                bell.answer()
                raise
            bell.answer()  # 5

    def step(self, actions: Any) -> StepRows:
        """Take a step; return its rows as a message."""
        return self._message(self.envs.step(actions)[-1])

    def reset(
        self, seeds: Sequence[int | None], options: dict[str, Any] | None, parity: int
    ) -> StepRows | Rest:
        """Reset the environments; return the rows, or only their rest if the arrays are shared."""
        if self._bell is None:
            return self._message(self.envs.reset(seed=seeds, options=options)[1])
        self._use_rows(parity, stepping=False)
        infos = self.envs.reset(seed=seeds, options=options)[1]
        return Rest(self._needed(infos), self.envs.pop_crashes())

    def end_episodes(self, which: Sequence[int]) -> None:
        """Make the next step reset these environments."""
        self.envs.end_episodes(which)

    def call(self, which: Sequence[int], name: str, args: Any, kwargs: Any) -> list[Any]:
        """Call a method of these environments, or read an attribute."""
        with SWITCH.paused():
            called: list[Any] = self.envs.call_at(which, name, *args, **kwargs)
            return called

    def set_attr(self, name: str, values: dict[int, Any]) -> None:
        """Set an attribute of some environments."""
        with SWITCH.paused():
            self.envs.set_attr_at(list(values), name, list(values.values()))

    def render(self) -> tuple[Any, ...] | None:
        """Return a frame of each environment."""
        with SWITCH.paused():
            frames: tuple[Any, ...] | None = self.envs.render()
            return frames

    def apply(self, which: Sequence[int], function: Callable[..., Any], *args: Any) -> list[Any]:
        """Call a function with each of these environments, and with `args`."""
        with SWITCH.paused():
            return [function(self.envs.envs[i], *args) for i in which]

    def pause(self) -> bytes:
        """Return a state from which `resume` continues exactly, or b"" if pickling fails."""
        try:
            with SWITCH.paused():
                return bytes(cloudpickle.dumps(self.envs))
        except Exception:  # pickling a user's environment may raise anything
            return b""

    def resume(self, paused: bytes, parity: int) -> bool:
        """Continue from such a state; return false, and change nothing, if it cannot be read."""
        try:
            # Trusted: it is from a checkpoint of the user's own run.
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
            self._use_rows(parity, stepping=False)
            for i in range(len(self._board.read_actions(self._index))):
                envs.rows.copy_row(i, last)
        return True

    def close(self) -> None:
        """Close the environments."""
        if hasattr(self, "envs"):
            self.envs.close()

    def _use_rows(self, parity: int, stepping: bool = True) -> None:
        """Write the next rows into this list of observations; a step itself swaps the two."""
        if (self._parity != parity) != stepping:
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
        for key in needed.keys() - {CRASH}:  # a key without a mask is that of all
            if not key.startswith("_") and f"_{key}" not in infos:
                needed[f"_{key}"] = np.ones(len(self.envs.outcomes[0]), np.bool_)
        return needed

    def _message(self, infos: dict[str, Any]) -> StepRows:
        envs = self.envs
        rest = Rest(self._needed(infos), envs.pop_crashes())
        rows = envs.rows
        return StepRows(rows.arrays, rows.objects, envs.outcomes, rest)

    def _send(self, bell: Bell, data: bytes) -> None:
        """Send data as mail, one part at a time."""
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


def is_wrapped(env: gymnasium.Env[Any, Any], wrapper: type) -> bool:
    """Whether a class wraps an environment."""
    while not isinstance(env, wrapper):
        if not isinstance(env, gymnasium.Wrapper):
            return False
        env = env.env
    return True
