"""FlightRecord: what a process's environments are doing, readable after the process has died.

It lives in memory that somebody else keeps (`remotely.flight_recorder`, or a file), so it is there
after a native crash, a kill or a hang:

    which environment is being stepped, and since when; its seed, the step of its episode and its
    last actions; if it hung, the stack of its thread

Writing costs one store for each step of an environment (the time at which it began: the last one
that began is the one that is being stepped), and a copy of the batch of actions for each step of
all.  The steps of an episode are not counted: they are the difference of two numbers of steps.

The record describes itself, in JSON at its beginning, because whoever reads it has nothing else.
It is written by a process that may be broken: reading one that makes no sense returns None.
"""

import json
import time
from collections.abc import Iterator, Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from remotely_rl.supervision.report import Cause, CrashReport

ACTIONS_KEPT = 1_000  # of an episode, for its replay, as far as they fit
NBYTES = 1 << 18  # of a record
NBYTES_OF_ENV = 256  # and for each environment
NBYTES_MAX = 1 << 20  # `remotely.flight_recorder` has no more

_MAGIC = b"flight-1"
_STATE = 8  # numbers of the whole
_BUSY, _NOW, _THREAD, _HUNG_NBYTES, _OPTIONS_NBYTES, _LIMIT_MS, _OPTIONS = range(7)
_HUNG_NBYTES_MAX, _OPTIONS_NBYTES_MAX = 8 << 10, 1 << 10
_Plan = list[Any]  # of an action's bytes, see below
_NONE = -1  # for a seed that there is none of, or that takes more than 63 bits
_NOT_KEPT = -1  # for options that do not fit


def nbytes_of(count: int) -> int:
    """Return how much memory the record of so many environments takes."""
    return min(NBYTES + NBYTES_OF_ENV * count, NBYTES_MAX)


class FlightRecord:
    """The record of `count` environments that are stepped in turn, or of all as one (`count` 0)."""

    def __init__(
        self,
        count: int,
        action_space: gymnasium.Space[Any] | None = None,
        buffer: Any = None,
    ):
        """Begin a record in `buffer`, or in memory of this process alone."""
        memory = memoryview(bytearray(nbytes_of(count)) if buffer is None else buffer).cast("B")
        plan = None if action_space is None else _plan_of(action_space)
        row = sum(count * dtype.itemsize * int(np.prod(shape)) for dtype, shape in _leaves(plan))
        # Some room for the head itself, and for alignment.
        room = len(memory) - _end_of_fields(count) - 4_096
        kept = min(ACTIONS_KEPT, room // row) if row else 0
        head = json.dumps({"count": count, "kept": kept, "actions": plan if kept else None})
        memory[:] = bytes(len(memory))
        memory[8:16] = len(head).to_bytes(8, "little")
        memory[16 : 16 + len(head)] = head.encode()
        self._open(memory, count, kept, plan if kept else None, _aligned(16 + len(head)))
        self.start[:] = self.made[:] = self.options[:] = 0
        self.seed[:] = _NONE
        memory[:8] = _MAGIC  # last: from now on it can be read

    @classmethod
    def read(cls, data: bytes | bytearray | memoryview | None) -> "FlightRecord | None":
        """Open what is left of a process; return None if there is no record in it."""
        memory = memoryview(data or b"").cast("B")
        try:
            if bytes(memory[:8]) != _MAGIC:
                return None
            length = int.from_bytes(memory[8:16], "little")
            head = json.loads(bytes(memory[16 : 16 + length]))
            record = cls.__new__(cls)
            record._open(
                memory, head["count"], head["kept"], head["actions"], _aligned(16 + length)
            )
        except (ValueError, KeyError, TypeError, IndexError):
            return None
        return record

    def _open(self, memory: memoryview, count: int, kept: int, plan: _Plan | None, at: int) -> None:
        self.memory = memory
        self.count = count
        self._kept = kept
        self._plan = plan
        whole = max(1, count)

        def field(code: Any, length: int) -> Any:
            nonlocal at
            start, at = at, at + 8 * length
            return memory[start:at].cast(code)

        self._state: memoryview[int] = field("q", _STATE)
        # When the step, or the reset, of each began that began last.
        self.began: memoryview[float] = field("d", whole)
        # The numbers of the steps in which its episode began, and before which it was made.
        # Its options by number: 0 for none, and _OPTIONS of the whole for those that are kept.
        self.start, self.made, self.seed, self.episode, self.options = (
            np.frombuffer(field("q", whole), np.int64) for _ in range(5)
        )
        self._hung, at = memory[at : at + _HUNG_NBYTES_MAX], at + _HUNG_NBYTES_MAX
        self._options, at = memory[at : at + _OPTIONS_NBYTES_MAX], at + _OPTIONS_NBYTES_MAX
        self._actions: list[NDArray[Any]] = []
        for dtype, shape in _leaves(plan):
            of = (kept, count, *shape)
            length = dtype.itemsize * int(np.prod(of))
            array = np.frombuffer(memory[at : at + length], dtype).reshape(of)
            self._actions.append(array)
            at += _aligned(length)
        self._ring = self._actions[0] if plan is not None and not plan[0] else None

    # --- writing ----------------------------------------------------------------------------------

    def begin(self, thread: int, actions: Any = None, is_step: bool = True) -> None:
        """A step of all environments begins, on this thread; or a reset, of some perhaps."""
        state = self._state
        self.began[0] = time.monotonic()  # before the busy mark, or the last one would look stuck
        state[_NOW] = now = state[_NOW] + is_step
        state[_THREAD] = thread
        if self._ring is not None:
            if actions is not None:
                self._ring[now % self._kept] = actions
        elif self._plan is not None and actions is not None:
            _scatter(self._plan, actions, iter(self._actions), now % self._kept)
        state[_BUSY] = 1

    def end(self) -> None:
        """The step, or the reset, is over."""
        self._state[_BUSY] = 0

    def made_now(self, env: int) -> None:
        """An environment is about to be made."""
        self.made[env] = self.start[env] = self._state[_NOW]

    def skip(self, env: int) -> None:
        """The present step is not one of the environment: it is reset instead."""
        self.made[env] += 1

    def reset_now(
        self, env: int, seed: int | None, episode: int, options: dict[str, Any] | None
    ) -> None:
        """An episode of the environment is about to begin."""
        self.start[env] = self._state[_NOW]
        self.episode[env] = episode
        if seed is not None:  # otherwise the last one holds, and `episode` says since when
            self.seed[env] = seed if seed < 1 << 63 else _NONE
        self.options[env] = self._keep(options) if options else 0

    def _keep(self, options: dict[str, Any]) -> int:
        """Keep options, instead of those before them; return their number."""
        try:
            text = json.dumps(options).encode()
        except (TypeError, ValueError):
            return _NOT_KEPT
        if len(text) > _OPTIONS_NBYTES_MAX:
            return _NOT_KEPT
        state = self._state
        if bytes(self._options[: state[_OPTIONS_NBYTES]]) != text:
            number, state[_OPTIONS] = state[_OPTIONS], 0  # until they are whole
            self._options[: len(text)] = text
            state[_OPTIONS_NBYTES] = len(text)
            state[_OPTIONS] = number + 1
        return state[_OPTIONS]

    def hung(self, stack: str, limit_s: float) -> None:
        """The present step has taken too long; this is where it is."""
        text = stack.encode()[-_HUNG_NBYTES_MAX:]
        self._hung[: len(text)] = text
        self._state[_LIMIT_MS] = int(1000 * limit_s)
        self._state[_HUNG_NBYTES] = len(text)

    def move_to(self, buffer: Any) -> "FlightRecord":
        """Return the same record in other memory, which must be as large at least."""
        memory = memoryview(buffer).cast("B")
        memory[: len(self.memory)] = self.memory
        moved = FlightRecord.read(memory)
        assert moved is not None
        return moved

    # --- reading ----------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether a step, or a reset, has begun and is not over."""
        return bool(self._state[_BUSY])

    @property
    def thread(self) -> int:
        """The thread that steps."""
        return self._state[_THREAD]

    @property
    def now(self) -> int:
        """The number of the present step of all, or of the last."""
        return self._state[_NOW]

    @property
    def began_at(self) -> float:
        """When the present step of an environment began, by time.monotonic()."""
        return max(self.began)

    @property
    def env(self) -> int | None:
        """The environment that is being stepped, or was when the process died; None if none."""
        if not self.busy or not self.count:
            return None
        return max(range(self.count), key=self.began.__getitem__)

    @property
    def stack_of_hang(self) -> str | None:
        """Where it hangs, if it does."""
        length = self._state[_HUNG_NBYTES]
        return bytes(self._hung[:length]).decode(errors="replace") if length else None

    @property
    def limit_s(self) -> float:
        """Which limit a hang has passed."""
        return self._state[_LIMIT_MS] / 1000

    def report(self, env: int, cause: Cause, what: str, details: str = "") -> CrashReport:
        """Return the report of an environment that crashed in the present step."""
        seed, options = int(self.seed[env]), None
        if number := self.options[env]:
            if number == self._state[_OPTIONS]:
                options = json.loads(bytes(self._options[: self._state[_OPTIONS_NBYTES]]))
            else:
                seed = _NONE  # without its options there is no replay
        return CrashReport(
            env=env,
            cause=cause,
            what=what,
            details=details,
            step=int(self.now - self.start[env]),
            seed=None if seed == _NONE else seed,
            episode=int(self.episode[env]),
            options=options,
            actions=tuple(self._actions_of(env)),
            lived=int(self.now - self.made[env]),
        )

    def _actions_of(self, env: int) -> Iterator[Any]:
        """Yield the actions of the present episode, as far as they are kept."""
        if self._plan is None:
            return
        first = max(int(self.start[env]), self.now - self._kept) + 1
        for step in range(first, self.now + 1):
            yield _gather(self._plan, iter(self._actions), (step % self._kept, env))


def _aligned(nbytes: int) -> int:
    return -(-nbytes // 8) * 8


def _end_of_fields(count: int) -> int:
    return 8 * (_STATE + 6 * max(1, count)) + _HUNG_NBYTES_MAX + _OPTIONS_NBYTES_MAX


# --- actions as bytes -----------------------------------------------------------------------------

# Box, Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of these have a fixed size.  Actions
# of any other space cannot be kept.  How a space is laid out is plain data, since whoever reads a
# record has nothing else: a leaf is ["", dtype, shape], a tuple ["()", parts], a dict ["{}", keys,
# parts].


def _plan_of(space: gymnasium.Space[Any]) -> _Plan | None:
    """Return how actions of a space are laid out; None if they cannot be."""
    match space:
        case spaces.Discrete():
            first, last = int(space.start), int(space.start + space.n) - 1
            dtype = np.promote_types(np.min_scalar_type(first), np.min_scalar_type(last))
            return ["", dtype.str, []]
        case spaces.Box() | spaces.MultiDiscrete() | spaces.MultiBinary():
            assert space.dtype is not None
            return ["", space.dtype.str, list(space.shape or ())]
        case spaces.Tuple():
            parts = [_plan_of(part) for part in space]
            return None if None in parts else ["()", parts]
        case spaces.Dict():
            parts = [_plan_of(part) for part in space.values()]
            return None if None in parts else ["{}", list(space.keys()), parts]
    return None


def _leaves(plan: _Plan | None) -> Iterator[tuple[np.dtype[Any], tuple[int, ...]]]:
    """Yield dtype and shape of each leaf."""
    if plan is None:
        return
    if not plan[0]:
        yield np.dtype(plan[1]), tuple(plan[2])
    else:
        for part in plan[-1]:
            yield from _leaves(part)


def _scatter(plan: _Plan, batch: Any, arrays: Iterator[NDArray[Any]], at: int) -> None:
    """Write a batch of actions, as Gymnasium batches them, to row `at` of each leaf's array."""
    if not plan[0]:
        next(arrays)[at] = np.asarray(batch)
    elif plan[0] == "()":
        for part, item in zip(plan[1], batch, strict=True):
            _scatter(part, item, arrays, at)
    else:
        for part, key in zip(plan[2], plan[1], strict=True):
            _scatter(part, batch[key] if isinstance(batch, Mapping) else None, arrays, at)


def _gather(plan: _Plan, arrays: Iterator[NDArray[Any]], at: tuple[int, int]) -> Any:
    """Return one action from the arrays of the leaves."""
    if not plan[0]:
        action = np.array(next(arrays)[at])
        return action if action.ndim else action.item()
    if plan[0] == "()":
        return tuple(_gather(part, arrays, at) for part in plan[1])
    return {key: _gather(part, arrays, at) for part, key in zip(plan[2], plan[1], strict=True)}
