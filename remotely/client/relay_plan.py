"""The plan of one bulk transfer: from which machine each machine receives the value.

The sender sends the value to the first machine, which relays it to the second as it arrives, and so
on: a chain.  So the sender's link carries the value once, and all links are busy at the same time.

Each machine has a path.  If the value does not arrive by one path, the next one is tried:

    path      event                                             next path
    CHAIN     the previous machine did not relay it             DIRECT
    CHAIN     the sender cannot reach it (it is the first)      SOCKETS
    DIRECT    the sender cannot reach it                        SOCKETS

Pure: events come in, and `next` says what the sender does.
"""

from collections.abc import Mapping, Sequence
from enum import Enum, auto
from typing import Generic, TypeVar

M = TypeVar("M")


class Path(Enum):
    """The way of large values to a machine."""

    CHAIN = auto()  # from the previous machine, or, for the first, from the sender
    DIRECT = auto()  # from the sender
    SOCKETS = auto()  # no transfer: through the sockets of the actors, as small values


class Whereabouts(Enum):
    """The state of the value on one machine."""

    WAITING = auto()  # not sent yet
    COMING = auto()
    HERE = auto()
    LOST = auto()  # the sender cannot reach the machine


class RelayPlan(Generic[M]):
    """The plan for the machines of `paths`, of which none is SOCKETS."""

    def __init__(self, paths: Mapping[M, Path]) -> None:
        self._paths = dict(paths)
        self._states = dict.fromkeys(paths, Whereabouts.WAITING)

    def next(self) -> list[M]:
        """Return the machine to send to now, and those to which it relays; empty if none."""
        waiting = [
            machine for machine, state in self._states.items() if state is Whereabouts.WAITING
        ]
        chain = [m for m in waiting if self._paths[m] is Path.CHAIN] or waiting[:1]
        self._states.update(dict.fromkeys(chain, Whereabouts.COMING))
        return chain

    @property
    def is_over(self) -> bool:
        """Whether nothing more will happen."""
        return not any(
            s in (Whereabouts.WAITING, Whereabouts.COMING) for s in self._states.values()
        )

    @property
    def here(self) -> set[M]:
        return {machine for machine, state in self._states.items() if state is Whereabouts.HERE}

    def arrived(self, machine: M) -> None:
        self._states[machine] = Whereabouts.HERE

    def not_relayed(self, machine: M) -> None:
        """Note that a machine, and so those after it, did not get it from the previous machine."""
        if self._states[machine] is Whereabouts.COMING:
            self._paths[machine] = Path.DIRECT
            machines = list(self._states)
            self._resend(machines[machines.index(machine) :])

    def unreachable(self, machine: M, onward: Sequence[M] = ()) -> None:
        """Note that the sender cannot reach a machine, which was to relay it to `onward`."""
        self._states[machine] = Whereabouts.LOST
        self._resend(onward)

    def _resend(self, machines: Sequence[M]) -> None:
        for machine in machines:
            if self._states[machine] is Whereabouts.COMING:
                self._states[machine] = Whereabouts.WAITING
