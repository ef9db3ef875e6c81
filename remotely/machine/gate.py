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

`is_open` may be read without the lock by those who only want to know.
"""

from collections.abc import Callable

from remotely.machine.shield import RLock


class Gate(RLock):  # type: ignore[misc] # final for type checkers alone
    """`why` returns the error of those who come too late, for `check`."""

    __slots__ = ("_why", "is_open")

    def __init__(self, why: Callable[[], Exception] = RuntimeError) -> None:
        self._why = why
        self.is_open = True

    def check(self) -> None:
        """Raise an error if it is closed."""
        if not self.is_open:
            raise self._why()

    def close(self) -> bool:
        """Close it; return whether it was open."""
        was_open, self.is_open = self.is_open, False
        return was_open
