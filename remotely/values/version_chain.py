"""The chain in which the versions of a published value pass from machine to machine.

The writer tells each follower that asks for a new version where it gets it: from the follower
before it in a chain, which passes the version on as it arrives.  So the writer's line carries a
version once, and all lines are busy at the same time, as with the arguments of calls
(client/relay_plan.py).  That plan is the sender's, which knows its receivers; here nobody knows who
will ask, so the chain grows as they do:

    event                                              where the follower gets the version
    the first one asks for a version                   from the writer
    another one asks                                   from the one before it in the chain
    ... which has failed it lately                     from the next one before that, which so has
                                                       two; without any, from the writer
    one asks that MOST_FAILED have failed lately       from the writer: it may reach nobody else
    one asks again, because its source has failed      from the writer
    one that cannot relay asks                         from the last of the chain; it has none after
                                                       it

    event                                              the chain
    a new version is asked for                         those that wait for it, in the order in which
                                                       they were, so that connections are used again
    one asks that is not in the chain                  has it at the end, if it can relay

Each follower comes after its source in the chain of a version, so none waits for itself.  One that
does not ask for a version is not in its chain: nobody depends on a machine that is gone or stopped
for longer than one version.

Pure: the caller holds a lock.
"""

from collections.abc import Collection
from typing import Generic, NamedTuple, TypeVar

R = TypeVar("R")

MOST_FAILED = 3


class Predecessor(NamedTuple, Generic[R]):
    """A follower that has a version, or is receiving it.

    `depth` is the number of followers before the one that asks, at most.
    """

    relay: R
    depth: int


class VersionChain(Generic[R]):
    """The followers of one value.  An R is where a follower passes versions on."""

    def __init__(self) -> None:
        self._version = 0
        self._order: list[R] = []
        self._waiting: list[R] = []  # one may wait twice, if it has connected again

    def wait(self, follower: R | None) -> None:
        """Note that a follower waits for a new version; None for one that cannot relay."""
        if follower is not None:
            self._waiting.append(follower)

    def leave(self, follower: R | None) -> None:
        """Note that a follower waits no more: it is answered, or gone."""
        if follower is not None:
            self._waiting.remove(follower)

    def source(
        self, follower: R | None, version: int, failed: Collection[R] = (), again: bool = False
    ) -> Predecessor[R] | None:
        """Return where a follower gets a version; None for the writer itself.

        `failed` are those that have failed it lately.  With `again`, its source has just done so.
        """
        if version > self._version:
            self._version = version
            known = dict.fromkeys([m for m in self._order if m in self._waiting])
            self._order = list(known | dict.fromkeys(self._waiting))
        if follower is not None and follower not in self._order:
            self._order.append(follower)
        if again or len(failed) >= MOST_FAILED:
            return None
        end = len(self._order) if follower is None else self._order.index(follower)
        before = [m for m in self._order[:end] if m not in failed]
        return Predecessor(before[-1], end) if before else None
