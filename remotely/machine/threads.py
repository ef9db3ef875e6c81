"""The making of threads.  All are daemons: none keeps the process from ending."""

import threading
from collections.abc import Callable

from remotely.machine.shield import shield


def new(name: str, run: Callable[..., object], *args: object) -> threading.Thread:
    """Return a thread `remotely-<name>`, not started, for `run(*args)`."""
    return threading.Thread(target=run, args=args, name=f"remotely-{name}", daemon=True)


def start(name: str, run: Callable[..., object], *args: object) -> threading.Thread:
    """Start such a thread, and return it.

    Raises RuntimeError if no thread can be started: the script has ended, or there are too many.
    """
    thread = new(name, run, *args)
    with shield:  # an interrupted `start` holds a lock for which the new thread would wait
        thread.start()
    return thread
