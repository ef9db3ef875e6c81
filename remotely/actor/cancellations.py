"""Calls that their callers take back before they have begun.

An actor reads a message when it is about to run it, so a cancellation over the connection of its
call would come too late.  It comes by the master and the worker to the background thread, which
marks the call; the thread that is about to run it looks for the mark.  Which of the two was first
is decided without a lock on the path of a call:

    begins      notes that the call begins (activity.py), then looks for a mark
    cancels     marks the call, then looks whether it has begun

So at least one of them sees the other.  If both do, the mark is taken by one of them.
"""

import functools
import mmap
import threading
from collections.abc import Callable

from remotely.actor.replies import RoutedReply
from remotely.protocol import control, wire
from remotely.protocol.wire import Kind
from remotely.transport.activity import Begun
from remotely.values import codec

MAX_MARKS = 10_000
ANSWER_TRIES = 25  # the caller waits for half a second
TRY_AGAIN_S = 0.02

Call = tuple[bytes, int]  # its route and id


class Cancellations:
    """`begun` has the calls that have begun, `marks` those that are not to.

    A caller that runs calls on one thread uses these two as `begins` does.
    """

    def __init__(
        self,
        page: mmap.mmap,
        answer: Callable[[RoutedReply], bool],
        after: Callable[[float, Callable[[], None]], object],
    ) -> None:
        self.begun = Begun(page)
        self.marks: set[Call] = set()
        self._answer = answer
        self._after = after
        self._lock = threading.Lock()  # of several threads that begin calls

    def begins(self, route: bytes, call_id: int) -> bool:
        """A call is about to run; return whether it may.  Any thread may ask."""
        with self._lock:
            self.begun.note(route, call_id)
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
        if len(self.marks) >= MAX_MARKS:
            return False
        self.marks.add((route, call_id))
        last = self.begun.last_of(route)
        may_have_begun = last is None or last >= call_id
        return not (may_have_begun and self.takes_mark(route, call_id))
