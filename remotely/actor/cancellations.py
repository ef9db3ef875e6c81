"""Calls that their callers take back before they have begun.

An actor reads a message when it is about to run it, so a cancellation over the connection of its
call would come too late.  It comes by the master and the worker to the background thread, which
marks the call; the thread that is about to run it looks for the mark.  Which of the two was first
is decided without a lock on the path of a call:

    begins      notes that the call begins, then looks for a mark
    cancels     marks the call, then looks whether it has begun

So at least one of them sees the other.  If both do, the mark is taken by one of them.

Calls of a connection begin in the order of their ids, so the last one that has begun says it all.
"""

import functools
import threading
from collections.abc import Callable

from remotely.actor.replies import RoutedReply
from remotely.protocol import control, wire
from remotely.protocol.wire import Kind
from remotely.values import codec

MAX_MARKS = 10_000
MAX_ROUTES = 10_000
ANSWER_TRIES = 25  # the caller waits for half a second
TRY_AGAIN_S = 0.02

Call = tuple[bytes, int]  # its route and id


class Cancellations:
    """`begun` has the last call of each route that has begun, `marks` those that are not to.

    A caller that runs calls on one thread uses these two as `begins` does.
    """

    def __init__(
        self,
        answer: Callable[[RoutedReply], bool],
        after: Callable[[float, Callable[[], None]], object],
    ) -> None:
        self.begun: dict[bytes, int] = {}
        self.marks: set[Call] = set()
        self._answer = answer
        self._after = after
        self._has_forgotten = False
        self._lock = threading.Lock()  # of several threads that begin calls

    def begins(self, route: bytes, call_id: int) -> bool:
        """A call is about to run; return whether it may.  Any thread may ask."""
        with self._lock:
            self.begun[route] = max(call_id, self.begun.get(route, 0))
        return not (self.marks and self.takes_mark(route, call_id))

    def takes_mark(self, route: bytes, call_id: int) -> bool:
        """Return whether a call has a mark, and remove that."""
        try:
            self.marks.remove((route, call_id))
        except KeyError:
            return False
        return True

    def hear(self, cancel: control.Cancel) -> None:
        """On the background thread: cancel a call, and tell its caller whether it was in time."""
        pieces = codec.encode(self.cancels(cancel.route, cancel.call)).pieces
        frames = wire.encode(Kind.RESULT, cancel.answer, "", pieces)
        self._tell(RoutedReply(cancel.route, frames), ANSWER_TRIES)

    def _tell(self, answer: RoutedReply, tries: int) -> None:
        """Answer; again a little later, if the connection of the caller is still being made."""
        if not self._answer(answer) and tries > 1:
            self._after(TRY_AGAIN_S, functools.partial(self._tell, answer, tries - 1))

    def cancels(self, route: bytes, call_id: int) -> bool:
        """Mark a call on another thread; return whether that was in time."""
        known = route in self.begun or not self._has_forgotten
        if not known or len(self.marks) >= MAX_MARKS:
            return False
        self.marks.add((route, call_id))
        has_begun = self.begun.get(route, 0) >= call_id
        return not (has_begun and self.takes_mark(route, call_id))

    def tidy(self) -> None:
        """On the background thread, now and then: forget the connections of clients that are gone.

        Nobody knows which those are.  Others are known again with their next call.
        """
        if len(self.begun) > MAX_ROUTES:
            self._has_forgotten = True
            self.begun.clear()
