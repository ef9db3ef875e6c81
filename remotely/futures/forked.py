"""What a forked child cannot wait for: everything that was pending in its parent at the fork.

The child has a copy of each future, stream and pool, and none of the threads and connections that
complete them, so a wait for one would never end.  Each notes the `process` in which it was made.
What waits for it, watches or cancels it, asks a future's `done`, which raises NotConnected in any
other process; or `check`, where there is no future to ask.  What only gives up, such as the end of
a `with` block, leaves everything to the parent, and raises nothing.
"""

import os

from remotely.errors import NotConnected

process = object()  # stands for this process: a forked child has another


def is_of_parent(made_in: object) -> bool:
    """Return whether this process is a fork of the one in which that was made."""
    return made_in is not process


def check(made_in: object, what: str) -> None:
    """Raise NotConnected for what was pending in another process, of which this one is a fork."""
    if is_of_parent(made_in):
        error = NotConnected(
            f"{what} was pending when this process was forked, or its result not fetched, which "
            "only the parent can do: wait for it there. To make calls of its own, a forked child "
            "calls remotely.connect() first"
        )
        error.may_have_run = True
        raise error


def _after_fork() -> None:
    global process
    process = object()


os.register_at_fork(after_in_child=_after_fork)
