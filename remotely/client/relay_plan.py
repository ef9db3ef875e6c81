"""The plan of one bulk transfer: which machine brings a value to which.

The sender brings it to the first machine, which passes it on to the second as it arrives, and so
on: a chain.  So the sender's line carries it once, and all lines are busy at the same time.

For each machine there is one choice, its path.  A machine that does not get the value on one path
gets it on the next one:

    path      event                                        next path
    CHAIN     the machine before it did not pass it on     DIRECT
    CHAIN     the sender cannot bring it (it was first)    SOCKETS
    DIRECT    the sender cannot bring it                   SOCKETS

Pure: events come in, and `next` says what the sender is to do.
"""

from collections.abc import Mapping, Sequence
from enum import Enum, auto
from typing import Generic, TypeVar

M = TypeVar("M")


class Path(Enum):
    """How large values get to a machine."""

    CHAIN = auto()  # from the machine before it; from the sender to the first
    DIRECT = auto()  # from the sender
    SOCKETS = auto()  # not at all: through the sockets of the actors there, as small ones do


class State(Enum):
    WAITING = auto()  # nobody brings it yet
    COMING = auto()
    HERE = auto()
    LOST = auto()  # the sender cannot bring it


class RelayPlan(Generic[M]):
    """`paths` are the choices made so far, for each machine; none is SOCKETS."""

    def __init__(self, paths: Mapping[M, Path]) -> None:
        self._paths = dict(paths)
        self._states = dict.fromkeys(paths, State.WAITING)

    def next(self) -> list[M]:
        """Return to which machine to bring it now, and to which it goes on; nothing: to none."""
        waiting = [machine for machine, state in self._states.items() if state is State.WAITING]
        chain = [m for m in waiting if self._paths[m] is Path.CHAIN] or waiting[:1]
        self._states.update(dict.fromkeys(chain, State.COMING))
        return chain

    @property
    def is_over(self) -> bool:
        """Whether nothing more will happen."""
        return not any(s in (State.WAITING, State.COMING) for s in self._states.values())

    @property
    def here(self) -> set[M]:
        return {machine for machine, state in self._states.items() if state is State.HERE}

    def arrived(self, machine: M) -> None:
        self._states[machine] = State.HERE

    def not_passed_on(self, machine: M) -> None:
        """It did not come to a machine from the one before, and so not to those after it."""
        if self._states[machine] is State.COMING:
            self._paths[machine] = Path.DIRECT
            machines = list(self._states)
            self._bring_again(machines[machines.index(machine) :])

    def unreachable(self, machine: M, onward: Sequence[M] = ()) -> None:
        """The sender cannot bring it to a machine, which was to pass it on to others."""
        self._states[machine] = State.LOST
        self._bring_again(onward)

    def _bring_again(self, machines: Sequence[M]) -> None:
        for machine in machines:
            if self._states[machine] is State.COMING:
                self._states[machine] = State.WAITING
