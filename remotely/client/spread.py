"""Who brings a value to which machine: the plan of one transfer.

The sender brings it to the first machine, which passes it on to the second as it arrives, and so
on: a chain.  So the sender's line carries it once, and all lines are busy at the same time.  Where
one machine is known not to reach the next, a new chain begins.  A machine that does not get it from
the one before it gets it from the sender; one that the sender cannot reach does without.

Pure: events come in, and `next` says what the sender is to do.
"""

from collections.abc import Collection, Hashable, Sequence
from enum import Enum, auto
from typing import Generic, TypeVar

M = TypeVar("M", bound=Hashable)


class State(Enum):
    WAITING = auto()  # nobody brings it yet
    COMING = auto()  # from the machine before, or from the sender
    HERE = auto()
    LOST = auto()  # the sender cannot bring it


class Spread(Generic[M]):
    """`unusable` are pairs of machines of which the first cannot reach the second."""

    def __init__(self, machines: Sequence[M], unusable: Collection[tuple[M, M]] = ()) -> None:
        self._states = dict.fromkeys(machines, State.WAITING)
        self._unusable = unusable
        self._alone: set[M] = set()  # to which it did not come by a chain

    def next(self) -> list[M]:
        """Return to which machine to bring it now, and to which it goes on; nothing: to none."""
        chain: list[M] = []
        for machine, state in self._states.items():
            if state is not State.WAITING or (chain and machine in self._alone):
                continue
            if chain and (chain[-1] in self._alone or (chain[-1], machine) in self._unusable):
                break
            chain.append(machine)
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

    def broke(self, machine: M) -> None:
        """It did not come to a machine from the one before: the sender has to bring it."""
        if self._states[machine] is State.COMING:
            self._states[machine] = State.WAITING
            self._alone.add(machine)

    def lose(self, machine: M, onward: Sequence[M] = ()) -> None:
        """The sender cannot bring it to a machine, which was to pass it on to others."""
        self._states[machine] = State.LOST
        for other in onward:
            if self._states[other] is State.COMING:
                self._states[other] = State.WAITING
