"""FlightRecord: what the environments of a process are doing, readable after the process has died.

The record is in memory that another process owns (`remotely.flight_recorder`, or a file), so it
survives a native crash, a SIGKILL and a hang.  It has

    the environment that is being stepped, and since when; its seed, the step of its episode and
    its last actions; after a hang, the stack of its thread

Cost: one store per step of an environment (its start time; the latest start is the environment
being stepped), and one copy of the batch of actions per step of all.  The steps of an episode are
not counted but computed as the difference of two step numbers.

The record begins with a description of its layout in JSON, because its reader has nothing else.
Its writer may be broken: `read` returns None for a record that makes no sense.
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
NBYTES = 1 << 18  # size of a record
NBYTES_OF_ENV = 256  # plus this per environment
NBYTES_MAX = 1 << 20  # the limit of `remotely.flight_recorder`

_MAGIC = b"flight-1"
_STATE = 8  # numbers that concern all environments, with these indices
_BUSY, _NOW, _THREAD, _HUNG_NBYTES, _OPTIONS_NBYTES, _LIMIT_MS, _OPTIONS = range(7)
_HUNG_NBYTES_MAX, _OPTIONS_NBYTES_MAX = 8 << 10, 1 << 10
_Layout = list[Any]  # of an action's bytes, see below
_NO_SEED = -1  # or one of more than 63 bits
_NOT_KEPT = -1  # options that do not fit


def nbytes_of(count: int) -> int:
    """Return the size of a record of `count` environments."""
    return min(NBYTES + NBYTES_OF_ENV * count, NBYTES_MAX)


class FlightRecord:
    """The record of `count` environments stepped in turn; 0 for a vector environment as a whole."""

    def __init__(
        self,
        count: int,
        action_space: gymnasium.Space[Any] | None = None,
        buffer: Any = None,
    ):
        """Begin a record in `buffer`, or in private memory of this process."""
        memory = memoryview(bytearray(nbytes_of(count)) if buffer is None else buffer).cast("B")
        layout = None if action_space is None else _layout_of(action_space)
        row = sum(count * dtype.itemsize * int(np.prod(shape)) for dtype, shape in _leaves(layout))
        # 4 KiB for the head and for alignment.
        room = len(memory) - _end_of_fields(count) - 4_096
        kept = min(ACTIONS_KEPT, room // row) if row else 0
        head = json.dumps({"count": count, "kept": kept, "actions": layout if kept else None})
        memory[:] = bytes(len(memory))
        memory[8:16] = len(head).to_bytes(8, "little")
        memory[16 : 16 + len(head)] = head.encode()
        self._open(memory, count, kept, layout if kept else None, _aligned(16 + len(head)))
        self.start[:] = self.made[:] = self.options[:] = 0
        self.seed[:] = _NO_SEED
        memory[:8] = _MAGIC  # last: this makes the record readable

    @classmethod
    def read(cls, data: bytes | bytearray | memoryview | None) -> "FlightRecord | None":
        """Open the record that a process has left; return None if there is none."""
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

    def _open(
        self, memory: memoryview, count: int, kept: int, layout: _Layout | None, at: int
    ) -> None:
        self.memory = memory
        self.count = count
        self._kept = kept
        self._layout = layout
        whole = max(1, count)

        def field(code: Any, length: int) -> Any:
            nonlocal at
            start, at = at, at + 8 * length
            return memory[start:at].cast(code)

        self._state: memoryview[int] = field("q", _STATE)
        # The start of each environment's last step or reset.
        self.began: memoryview[float] = field("d", whole)
        # Of each environment: the number of the step in which its episode began; that before which
        # it was made; and the number of its options, 0 for none, _OPTIONS for the stored ones.
        self.start, self.made, self.seed, self.episode, self.options = (
            np.frombuffer(field("q", whole), np.int64) for _ in range(5)
        )
        self._hung, at = memory[at : at + _HUNG_NBYTES_MAX], at + _HUNG_NBYTES_MAX
        self._options, at = memory[at : at + _OPTIONS_NBYTES_MAX], at + _OPTIONS_NBYTES_MAX
        self._actions: list[NDArray[Any]] = []
        for dtype, shape in _leaves(layout):
            of = (kept, count, *shape)
            length = dtype.itemsize * int(np.prod(of))
            array = np.frombuffer(memory[at : at + length], dtype).reshape(of)
            self._actions.append(array)
            at += _aligned(length)
        self._ring = self._actions[0] if layout is not None and not layout[0] else None

    # --- writing ----------------------------------------------------------------------------------

    def begin(self, thread: int, actions: Any = None, is_step: bool = True) -> None:
        """Record that `thread` begins a step of all environments, or a reset."""
        state = self._state
        self.began[0] = time.monotonic()  # before _BUSY, or the last step would seem to hang
        state[_NOW] = now = state[_NOW] + is_step
        state[_THREAD] = thread
        if self._ring is not None:
            if actions is not None:
                self._ring[now % self._kept] = actions
        elif self._layout is not None and actions is not None:
            _scatter(self._layout, actions, iter(self._actions), now % self._kept)
        state[_BUSY] = 1

    def end(self) -> None:
        """Record the end of the step or reset."""
        self._state[_BUSY] = 0

    def made_now(self, env: int) -> None:
        """Record that an environment is about to be made."""
        self.made[env] = self.start[env] = self._state[_NOW]

    def skip(self, env: int) -> None:
        """Do not count the current step for an environment: it is reset or left alone instead."""
        self.made[env] += 1

    def reset_now(
        self, env: int, seed: int | None, episode: int, options: dict[str, Any] | None
    ) -> None:
        """Record that an episode of an environment is about to begin."""
        self.start[env] = self._state[_NOW]
        self.episode[env] = episode
        if seed is not None:  # otherwise the last one holds; `episode` counts episodes since then
            self.seed[env] = seed if seed < 1 << 63 else _NO_SEED
        self.options[env] = self._keep(options) if options else 0

    def _keep(self, options: dict[str, Any]) -> int:
        """Store options in place of the previous ones; return their number."""
        try:
            text = json.dumps(options).encode()
        except (TypeError, ValueError):
            return _NOT_KEPT
        if len(text) > _OPTIONS_NBYTES_MAX:
            return _NOT_KEPT
        state = self._state
        if bytes(self._options[: state[_OPTIONS_NBYTES]]) != text:
            number, state[_OPTIONS] = state[_OPTIONS], 0  # until they are written
            self._options[: len(text)] = text
            state[_OPTIONS_NBYTES] = len(text)
            state[_OPTIONS] = number + 1
        return state[_OPTIONS]

    def hung(self, stack: str, limit_s: float) -> None:
        """Record that the current step has exceeded the limit, at this stack."""
        text = stack.encode()[-_HUNG_NBYTES_MAX:]
        self._hung[: len(text)] = text
        self._state[_LIMIT_MS] = int(1000 * limit_s)
        self._state[_HUNG_NBYTES] = len(text)

    def move_to(self, buffer: Any) -> "FlightRecord":
        """Copy the record to other memory, at least as large; return the copy."""
        memory = memoryview(buffer).cast("B")
        memory[: len(self.memory)] = self.memory
        moved = FlightRecord.read(memory)
        assert moved is not None
        return moved

    # --- reading ----------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether a step or a reset is running."""
        return bool(self._state[_BUSY])

    @property
    def thread(self) -> int:
        """The identifier of the thread that steps."""
        return self._state[_THREAD]

    @property
    def now(self) -> int:
        """The number of the current or last step of all environments."""
        return self._state[_NOW]

    @property
    def began_at(self) -> float:
        """The start of the current step of an environment, by time.monotonic()."""
        return max(self.began)

    @property
    def env(self) -> int | None:
        """The environment that is being stepped, or was when the process died, if any."""
        if not self.busy or not self.count:
            return None
        return max(range(self.count), key=self.began.__getitem__)

    @property
    def stack_of_hang(self) -> str | None:
        """The stack of the hung step, if it hung."""
        length = self._state[_HUNG_NBYTES]
        return bytes(self._hung[:length]).decode(errors="replace") if length else None

    @property
    def limit_s(self) -> float:
        """The time limit that the hung step exceeded."""
        return self._state[_LIMIT_MS] / 1000

    def report(self, env: int, cause: Cause, what: str, details: str = "") -> CrashReport:
        """Return the report of an environment that crashed in the current step."""
        seed, options = int(self.seed[env]), None
        if number := self.options[env]:
            if number == self._state[_OPTIONS]:
                options = json.loads(bytes(self._options[: self._state[_OPTIONS_NBYTES]]))
            else:
                seed = _NO_SEED  # no replay without the options
        return CrashReport(
            env=env,
            cause=cause,
            what=what,
            details=details,
            step=int(self.now - self.start[env]),
            seed=None if seed == _NO_SEED else seed,
            episode=int(self.episode[env]),
            options=options,
            actions=tuple(self._actions_of(env)),
            lived=int(self.now - self.made[env]),
        )

    def _actions_of(self, env: int) -> Iterator[Any]:
        """Yield the kept actions of the current episode."""
        if self._layout is None:
            return
        first = max(int(self.start[env]), self.now - self._kept) + 1
        for step in range(first, self.now + 1):
            yield _gather(self._layout, iter(self._actions), (step % self._kept, env))


def _aligned(nbytes: int) -> int:
    return -(-nbytes // 8) * 8


def _end_of_fields(count: int) -> int:
    return 8 * (_STATE + 6 * max(1, count)) + _HUNG_NBYTES_MAX + _OPTIONS_NBYTES_MAX


# --- actions as bytes -----------------------------------------------------------------------------

# Only actions of a fixed size can be kept: of Box, Discrete, MultiDiscrete, MultiBinary, and Dict
# and Tuple of these.  A layout is plain data: a leaf is ["", dtype, shape], a tuple ["()", parts],
# a dict ["{}", keys, parts].


def _layout_of(space: gymnasium.Space[Any]) -> _Layout | None:
    """Return the layout of a space's actions; None if their size is not fixed."""
    match space:
        case spaces.Discrete():
            first, last = int(space.start), int(space.start + space.n) - 1
            dtype = np.promote_types(np.min_scalar_type(first), np.min_scalar_type(last))
            return ["", dtype.str, []]
        case spaces.Box() | spaces.MultiDiscrete() | spaces.MultiBinary():
            assert space.dtype is not None
            return ["", space.dtype.str, list(space.shape or ())]
        case spaces.Tuple():
            parts = [_layout_of(part) for part in space]
            return None if None in parts else ["()", parts]
        case spaces.Dict():
            parts = [_layout_of(part) for part in space.values()]
            return None if None in parts else ["{}", list(space.keys()), parts]
    return None


def _leaves(layout: _Layout | None) -> Iterator[tuple[np.dtype[Any], tuple[int, ...]]]:
    """Yield dtype and shape of each leaf."""
    if layout is None:
        return
    if not layout[0]:
        yield np.dtype(layout[1]), tuple(layout[2])
    else:
        for part in layout[-1]:
            yield from _leaves(part)


def _scatter(layout: _Layout, batch: Any, arrays: Iterator[NDArray[Any]], at: int) -> None:
    """Write a batch of actions, as Gymnasium batches them, to row `at` of each leaf's array."""
    if not layout[0]:
        next(arrays)[at] = np.asarray(batch)
    elif layout[0] == "()":
        for part, item in zip(layout[1], batch, strict=True):
            _scatter(part, item, arrays, at)
    else:
        for part, key in zip(layout[2], layout[1], strict=True):
            _scatter(part, batch[key] if isinstance(batch, Mapping) else None, arrays, at)


def _gather(layout: _Layout, arrays: Iterator[NDArray[Any]], at: tuple[int, int]) -> Any:
    """Return one action from the arrays of the leaves."""
    if not layout[0]:
        action = np.array(next(arrays)[at])
        return action if action.ndim else action.item()
    if layout[0] == "()":
        return tuple(_gather(part, arrays, at) for part in layout[1])
    return {key: _gather(part, arrays, at) for part, key in zip(layout[2], layout[1], strict=True)}
