"""Replies that a thread has taken from a socket, on their way to their futures.

They stay in the thread's own deques until they are handed over.  So an interrupt loses none of
them: an interrupted thread leaves what is there to the loop's thread (inbox.py).  And if a
done-callback or a signal handler waits for a call whose reply has been taken already, it finds the
reply here.

All outcomes are delivered before any done-callback runs, so that no thread whose reply is here
waits for the user's code.  A callback that itself waits delivers what arrives meanwhile, and leaves
the done-callbacks to the hand-over that called it; so hand-overs do not nest.

Delivery of a reply may start twice, and is written so that this does no harm.
"""

import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from remotely.futures.future import CallFuture
from remotely.machine.owned_fd import OwnedFd
from remotely.protocol import wire

# Gives a call its outcome.  It gets what arrived: a message, or the error that ends the call.
Deliver = Callable[[CallFuture[Any], Any], None]

Arrival = tuple[Deliver, CallFuture[Any], wire.Message | BaseException]
Arrived = deque[Arrival]


class ThreadState:
    """What one thread receives with.

    arrived     replies that it has taken from a socket and not delivered yet
    to_tell     delivered futures whose done-callbacks still have to run
    wake        an eventfd that wakes the thread, and is closed with it

    All waits of a thread share `wake`.  So a wait within another one, in a signal handler, passes
    on a wake-up that may have been for the outer one.
    """

    def __init__(self) -> None:
        self.arrived: Arrived = deque()
        self.to_tell: deque[CallFuture[Any]] = deque()
        self.hands_over = False
        self.waits = False
        self._wake = OwnedFd(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC))
        self.wake = self._wake.fd


_local = threading.local()


def this_thread() -> ThreadState:
    try:
        return _local.own  # type: ignore[no-any-return]
    except AttributeError:
        own = _local.own = ThreadState()
        return own


def _after_fork() -> None:
    """The replies and descriptors of the parent stay with the parent."""
    global _local
    _local = threading.local()


os.register_at_fork(after_in_child=_after_fork)


def hand_over(own: ThreadState) -> None:
    """Hand over all that a thread has taken.  Hold no lock: this runs the user's code."""
    deliver(own)
    if own.hands_over:
        return
    own.hands_over = True
    to_tell = own.to_tell
    try:
        while to_tell:
            told: CallFuture[Any] = to_tell[0]
            told.tell()
            if to_tell and to_tell[0] is told:  # else an interrupted wait left it to the loop
                del to_tell[0]
    finally:
        own.hands_over = False


def deliver(own: ThreadState) -> None:
    """Give outcomes to all calls whose replies a thread has taken; run no callback yet."""
    arrived, to_tell = own.arrived, own.to_tell
    while arrived:
        try:
            arrival = arrived[0]
        except IndexError:  # a signal handler waited, and has delivered them all
            break
        deliver_one, future, message = arrival
        deliver_one(future, message)
        if future.has_callbacks:
            to_tell.append(future)
        if arrived and arrived[0] is arrival:  # else a signal handler has been here
            arrived.popleft()
