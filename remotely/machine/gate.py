"""A gate: what nothing passes after its end.

Threads open something (channels, connections, tasks) that another thread ends.  Whoever looks
whether it has ended, and opens, must not cross the one that ends it, and closes what is open.  So a
gate is the lock of both:

    with gate:         one thread at a time, as with any RLock
        gate.check()   raises why, if it was closed
        ...            open something, and enter it where the end finds it

    with gate:
        gate.close()   from now on nothing is opened; false if it is closed already
        ...            take what is open
    ...                and close that

`is_open` may be read without the lock by those who only want to know, and in place of `check` where
that costs too much.
"""

from collections.abc import Callable

from remotely.machine.shield import RLock


class Gate(RLock):  # type: ignore[misc] # final for type checkers alone
    """`why` returns the error of those who come too late."""

    __slots__ = ("is_open", "why")

    def __init__(self, why: Callable[[], Exception] = RuntimeError) -> None:
        self.why = why
        self.is_open = True

    def check(self) -> None:
        """Raise an error if it is closed."""
        if not self.is_open:
            raise self.why()

    def forget(self) -> None:
        """In a forked child, where its lock may be that of a thread of the parent: free it."""
        self._at_fork_reinit()  # type: ignore[attr-defined]

    def close(self, why: Callable[[], Exception] | None = None) -> bool:
        """Close it; return whether it was open.  Then `why` is the reason, if one is given."""
        was_open, self.is_open = self.is_open, False
        if was_open and why is not None:
            self.why = why
        return was_open
