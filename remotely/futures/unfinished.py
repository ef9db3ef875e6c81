"""The calls that a script leaves behind: submitted, and without an outcome when the script ends.

Nobody waits for them, so they are named in one line.  An executor's calls are waited for
(pools/scheduler.py), and left behind only after Ctrl-C.
"""

import sys
from collections import Counter
from collections.abc import Iterable
from typing import Protocol

from remotely.machine.living import Living

NAMED = 3  # the most names in the line


class CallMaker(Protocol):
    """Something that has made calls."""

    def unfinished(self) -> Iterable[str]:
        """Return the name of each submitted call without an outcome.  Takes no lock."""


_callers: Living[CallMaker] = Living()


def watch(caller: CallMaker) -> None:
    """Include the calls of this caller for as long as it exists."""
    _callers.add(caller)


def report() -> None:
    """Say on stderr which calls the script leaves behind, if there are any."""
    calls = Counter(name for caller in _callers.all() for name in caller.unfinished())
    if calls and sys.stderr is not None:
        print(text(calls), file=sys.stderr, flush=True)


def text(calls: "Counter[str]") -> str:
    """Return the line about calls that are left behind, by name."""
    count = calls.total()
    names = [name if n == 1 else f"{n} of {name}" for name, n in calls.most_common(NAMED)]
    rest = ", ..." if len(calls) > NAMED else ""
    subject = "1 submitted call has" if count == 1 else f"{count} submitted calls have"
    return (
        f"remotely: the script ends, and {subject} no outcome ({', '.join(names)}{rest}): what has "
        "not begun will not run; call result() on a future to wait for it"
    )
