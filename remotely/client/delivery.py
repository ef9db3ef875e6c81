"""Replies that a thread has taken from a socket and has yet to hand over to their futures.

They stay in the thread's own deques until that is done.  So an interrupt loses none of them:
whoever is interrupted leaves what is there to the loop's thread (channel.py).  And a done-callback,
or a signal handler, that waits for a call whose reply has been taken already finds it here.

All outcomes are delivered before any done-callback runs: no thread whose reply is here waits for a
user's code.  And a callback that itself waits delivers what comes meanwhile, and leaves what is to
be told to the hand-over that it is called from: they do not nest, a level for each.

To hand over one may be begun twice, and is written so that this does no harm.
"""

import os
import threading
import traceback
from collections import deque
from contextlib import suppress
from typing import Any, Protocol

from remotely.errors import ActorRaised, RemoteTraceback
from remotely.futures.future import CallFuture
from remotely.machine.owned_fd import OwnedFd
from remotely.protocol import wire
from remotely.values import codec
from remotely.values.source_lines import with_source_lines


class Receiver(Protocol):
    """Who took a reply."""

    def deliver(self, future: CallFuture[Any], message: wire.Message | BaseException) -> None:
        """Give a call its outcome."""


Arrival = tuple[Receiver, CallFuture[Any], wire.Message | BaseException]
Arrived = deque[Arrival]


class OfThread:
    """What one thread has to receive with.  `wake` is an eventfd that goes with the thread.

    All its waits share it.  So a wait within another, in a signal handler, hands on a word that may
    have been for the outer one.
    """

    def __init__(self) -> None:
        self.arrived: Arrived = deque()
        self.to_tell: deque[CallFuture[Any]] = deque()  # delivered; their callbacks are to run
        self.hands_over = False
        self.waits = False
        self._wake = OwnedFd(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC))
        self.wake = self._wake.fd


_local = threading.local()


def of_this_thread() -> OfThread:
    try:
        return _local.own  # type: ignore[no-any-return]
    except AttributeError:
        own = _local.own = OfThread()
        return own


def _after_fork() -> None:
    """The parent's replies, and its descriptors, are the parent's."""
    global _local
    _local = threading.local()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def hand_over(own: OfThread) -> None:
    """Hand over all that a thread has taken.  Not with a lock held: it runs a user's code."""
    deliver(own)
    if own.hands_over:
        return
    own.hands_over = True
    to_tell = own.to_tell
    try:
        while to_tell:
            told: CallFuture[Any] = to_tell[0]
            told.tell()
            if to_tell and to_tell[0] is told:  # else an interrupted wait left them to the loop
                del to_tell[0]
    finally:
        own.hands_over = False


def deliver(own: OfThread) -> None:
    """Give all calls whose replies a thread has taken their outcomes; run no callback yet."""
    arrived, to_tell = own.arrived, own.to_tell
    while arrived:
        try:
            arrival = arrived[0]
        except IndexError:  # a signal handler that waited has delivered them all
            break
        receiver, future, message = arrival
        receiver.deliver(future, message)
        if future.has_callbacks:
            to_tell.append(future)
        if arrived and arrived[0] is arrival:  # else a signal handler has been here
            arrived.popleft()


def error_of(message: wire.Message) -> BaseException:
    """Return the error that a RAISED tells of."""
    text = with_source_lines(bytes(message.buffers[0]).decode(errors="replace"))
    if message.payload:
        with suppress(Exception):  # its class may not exist here, or not take its own arguments
            error = codec.decode(message.payload, [])
            if isinstance(error, BaseException):
                error.__cause__ = RemoteTraceback(text)
                return error
    return ActorRaised(text)


def without_frames(error: BaseException) -> BaseException:
    """Keep a traceback as text: its frames, and their callers, hold the future; see future.py."""
    if error.__cause__ is None:
        error.__cause__ = RemoteTraceback("".join(traceback.format_exception(error)))
    return error.with_traceback(None)
