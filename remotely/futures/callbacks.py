"""Where done-callbacks run: on threads that no signal reaches.

A future is settled by whichever thread has received the reply: often one that waits for another
call.  If callbacks ran there, Ctrl-C would end one in its middle, and what it had left to do would
never happen: a queue would not be served, a process of a pool get no further call.  Python runs
signal handlers on the main thread.  So no callback runs there:

    the runtime's   `AwaitableFuture.then`: the check of a queue, the next call of a pool, the
                    waking of an event loop.  They never block and run none of the user's code, so
                    they run on the thread that settles the future.  The main thread has a thread
                    of an engine run them
    the user's      `add_done_callback`: on one thread, one after the other, in the order in which
                    the futures completed.  They may block, and wait for other calls: nothing but
                    the callbacks behind them waits for them

Either way, the thread that settles a future only names what is to run, which can be repeated.  The
one exception is that of the standard library: a callback that is added to a future that is done is
called by `add_done_callback` itself.
"""

import os
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from remotely.machine.interrupts import is_main_thread
from remotely.machine.shield import shield
from remotely.machine.task_thread import TaskThread


class EngineThread(Protocol):
    """A thread of an engine that no signal reaches, such as the loop of a client."""

    def call(self, action: Callable[[], object], /) -> None:
        """Run an action soon."""


users = TaskThread("callbacks")
os.register_at_fork(after_in_child=users.forget)

_lent: list[EngineThread] = []
os.register_at_fork(after_in_child=_lent.clear)


def lend(thread: EngineThread) -> None:
    """Have a thread run what the main thread must not, until `withdraw`."""
    _lent.append(thread)


def withdraw(thread: EngineThread) -> None:
    if thread in _lent:
        _lent.remove(thread)


def off_main(action: Callable[..., object], *given: Any) -> None:
    """Run an action of the runtime: here, or if a signal may interrupt it here, soon and elsewhere.

    Without an engine there is no other thread, and nothing that could be lost: all calls run here.
    """
    if _lent and is_main_thread() and not shield.is_open():
        _lent[-1].call(partial(action, *given) if given else action)
    else:
        action(*given)
